"""The database of a store: connections, its schema brought to this version, its errors, and the one thread that writes.

SQLite: one writer at a time, which takes the lock when its transaction begins; a read that turns into a write could
not wait for it. Readers see the state at their first statement and take no lock that stops the writer.
PostgreSQL: READ COMMITTED, with writes that repeat what they had read as their condition. Each transaction that may
write holds a shared lock, which a follower of events asks for alone: then all events with a smaller number than those
it can see are committed or will never be.

LongshoreError
└── StoreError               a store that cannot be used as it is
    ├── StoreUnreachableError   it does not answer; nothing was changed, or it is not known whether it was
    │   ├── StoreFullError         its disk is full
    │   └── StoreLostError         its file was deleted or replaced under it
    ├── StoreRefusesError       it takes no change, whichever job it is of
    ├── FencedError             another scheduler has taken over, and the writer has to stop
    ├── StaleWriteError         the row is not what the writer had read; read again and decide again
    ├── TakenError              another attempt holds a GPU
    ├── OlderAttemptError       a later attempt of the job has begun, so reports of an older one no longer count
    ├── TakenNameError          there is one of that name already
    └── TooManyTokensError      an owner has as many tokens as are allowed
"""

import json
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Lock, Thread, current_thread
from typing import Any, Generic, TypeVar

from alembic.command import stamp, upgrade
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import URL, Connection, Engine, create_engine, event, inspect
from sqlalchemy.engine import make_url
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import ArgumentError, DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.pool import ConnectionPoolEntry

from ...cluster.files.errors import LongshoreError
from ...cluster.files.paths import exists, is_folder
from .schema import METADATA


class StoreError(LongshoreError):
    """A store that cannot be used as it is."""


class StoreUnreachableError(StoreError):
    """The store does not answer.

    A read or write that raises it can be repeated. If the answer to a commit was lost, a write that is guarded by a
    version raises StaleWriteError when it is repeated.
    """


class StoreFullError(StoreUnreachableError):
    """The disk of the store is full; nothing was changed, and what is stored can be read."""


class StoreLostError(StoreUnreachableError):
    """The file of the store is not the one that was opened; nothing is read or written until it is there again."""


class StoreRefusesError(StoreError):
    """The store answers, and refuses what any change writes; nothing was changed, and no job is at fault."""


class FencedError(StoreError):
    """Another scheduler has taken the lease over; the one that gets this has to stop at once."""


class StaleWriteError(StoreError):
    """A row is not, or no longer, what the writer had read of it; nothing was changed."""


class TakenError(StoreError):
    """A GPU of a placement is reserved for another attempt; nothing was changed."""


class OlderAttemptError(StoreError):
    """A later attempt of the job has begun, so reports of an older one no longer count; nothing was changed."""


class TakenNameError(StoreError):
    """There is one of that name already; nothing was changed."""


class TooManyTokensError(StoreError):
    """An owner has as many tokens as are allowed; nothing was changed."""


EVENTS_LOCK = 0x6C6F6E6773686F72  # "longshor", the number of PostgreSQL's advisory lock
DURABILITIES = {"normal": "NORMAL", "full": "FULL"}

PATIENCE_S = 30  # with a transaction that does nothing, or holds a lock that others wait for
_ALIVE = {
    "connect_timeout": 10,
    "keepalives": 1,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
}
_PRAGMAS = (
    "journal_mode = WAL", "busy_timeout = 30000", "foreign_keys = ON", "wal_autocheckpoint = 1000",
    "temp_store = MEMORY",  # reads go on where the disk is full
)  # fmt: skip


def connect(url: str) -> Engine:
    """Return an engine for a store; no connection is made yet.

    Args:
        url: `sqlite:///FILE`, with `?durability=full` for transactions that survive a loss of power, or
            `postgresql://USER@HOST/DATABASE`.

    Raises:
        StoreError: If the URL is not one of these, the folder of the file does not exist, or it cannot be made there.
        InputError: If that cannot be seen.
    """
    parsed = check_url(url)
    return _sqlite_engine(parsed) if parsed.get_backend_name() == "sqlite" else _postgresql_engine(parsed)


def check_url(url: str) -> URL:
    """Return the parts of a URL that a store can have; nothing is opened.

    Raises:
        StoreError: If it can have none such.
    """
    parsed = _parse_url(url)
    kind = parsed.get_backend_name()
    if kind not in ("sqlite", "postgresql"):
        raise StoreError(f"a store cannot be in {kind!r}; write sqlite:///FILE or postgresql://...")
    if kind == "sqlite" and parsed.database in (None, "", ":memory:"):
        raise StoreError("a store needs a file; write sqlite:///FILE")
    durability = parsed.query.get("durability", "normal")
    if kind == "sqlite" and durability not in DURABILITIES:
        raise StoreError(f"durability is {durability!r}; write normal or full")
    if kind == "sqlite" and (others := sorted(parsed.query.keys() - {"durability"})):
        raise StoreError(f"{others[0]!r} cannot be chosen for a store in a file; only durability can")
    return parsed


def file_of(url: str) -> Path | None:
    """Return the file of a store, None if it is in no file.

    Raises:
        StoreError: If that is no URL of a store.
    """
    parsed = _parse_url(url)
    is_file = parsed.get_backend_name() == "sqlite" and parsed.database not in (None, "", ":memory:")
    return Path(str(parsed.database)) if is_file else None


def check_folder_of(file: Path) -> None:
    """Refuse a file of a store whose folder is not there.

    Raises:
        StoreError: If it is not.
        InputError: If that cannot be seen.
    """
    if not is_folder(file.parent):
        raise StoreError(f"{file}: the folder does not exist; create it first")


def restore_mark_path(file: Path) -> Path:
    """Return the file that is there while another one takes the place of a store's."""
    return file.with_name(f"{file.name}.restoring")


def _parse_url(url: str) -> URL:
    try:
        return make_url(url)
    except (ArgumentError, ValueError) as error:  # without its text, which may have a password
        shown = repr(url) if "@" not in url and ":" not in url else "what is given"
        problem = f"{shown} is no URL of a store; write sqlite:///FILE or postgresql://..."
        raise StoreError(f"{problem}, with @, : and / of a password as %40, %3A and %2F") from error


def shown_url(url: URL) -> str:
    """Return the URL of a store without its passwords, wherever they stand."""
    query = {name: "***" if "password" in name else value for name, value in url.query.items()}
    return url.set(query=query).render_as_string(hide_password=True)


def begin_writing(tx: Connection) -> None:
    """Begin a transaction that may write; not in SQLAlchemy's event, which slows down all statements by a fifth."""
    sqlite = tx.dialect.name == "sqlite"
    tx.exec_driver_sql("BEGIN IMMEDIATE" if sqlite else f"SELECT pg_advisory_xact_lock_shared({EVENTS_LOCK})")


def begin_reading(tx: Connection) -> None:
    """Begin a transaction that only reads."""
    if tx.dialect.name == "sqlite":
        tx.exec_driver_sql("BEGIN")


def _json_or_none(text: str) -> object:
    """Return the value of a JSON text, None if it is invalid: PostgreSQL refuses that, SQLite does not."""
    try:
        return json.loads(text)
    except ValueError:
        return None


def _sqlite_engine(url: URL) -> Engine:
    file = url.database or ""
    check_folder_of(Path(file))
    durability = url.query.get("durability", "normal")
    if exists(restore_mark_path(Path(file))):
        raise StoreError(f"{file}: a restore of it was cut off; call `longshore store restore` again")
    if not exists(Path(file)):
        try:
            Path(file).touch(mode=0o600)  # whatever may be read in its folder: it holds what everybody runs
        except OSError as error:
            raise StoreError(f"{file}: cannot be made: {error.strerror}") from error
    # isolation_level None: the driver would begin transactions by its own rules.
    engine = create_engine(
        url.difference_update_query(["durability"]),
        connect_args={"isolation_level": None},
        json_deserializer=_json_or_none,
    )

    @event.listens_for(engine, "connect")
    def set_up(connection: DBAPIConnection, entry: ConnectionPoolEntry) -> None:
        cursor = connection.cursor()
        for pragma in (*_PRAGMAS, f"synchronous = {DURABILITIES[str(durability)]}"):
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    return engine


def _postgresql_engine(url: URL) -> Engine:
    # A host that is lost or a process that is paused in a transaction must not hold all others up.
    engine = create_engine(url.set(drivername="postgresql+psycopg"), pool_pre_ping=True, connect_args=_ALIVE)

    @event.listens_for(engine, "connect")
    def set_up(connection: DBAPIConnection, entry: ConnectionPoolEntry) -> None:
        cursor = connection.cursor()
        cursor.execute(f"SET idle_in_transaction_session_timeout = '{PATIENCE_S}s'")
        cursor.execute(f"SET lock_timeout = '{PATIENCE_S}s'")
        cursor.close()
        connection.commit()

    return engine


T = TypeVar("T")

GROUP = 64  # most requests in one transaction


class _Request(Generic[T]):
    """Work that waits for its transaction. A bare lock shows that it is over; a Future takes several times as long."""

    def __init__(self, work: Callable[[Connection], T]) -> None:
        self._work = work
        self._result: T
        self._error: BaseException | None = None
        self._open = Lock()
        self._open.acquire()

    def run(self, tx: Connection) -> None:
        """Do the work, or leave no trace of it in the transaction."""
        execute_savepoint(tx, "SAVEPOINT request")
        try:
            self._result = self._work(tx)
        except BaseException as error:  # whatever it is, it goes to the caller
            self._error = error
            execute_savepoint(tx, "ROLLBACK TO SAVEPOINT request")
        execute_savepoint(tx, "RELEASE SAVEPOINT request")

    def finish(self, error: BaseException | None = None) -> None:
        """Report that the transaction is over, and how it failed; an error of the work itself goes before."""
        self._error = self._error or error
        self._open.release()

    def outcome(self) -> T:
        """Wait until the transaction is over; return what the work returned, or raise what went wrong."""
        self._open.acquire()
        if self._error is not None:
            raise self._error
        return self._result


class Writer:
    """The thread and its queue.

    Args:
        engine: Of the store.
    """

    def __init__(self, engine: Engine) -> None:
        self.observe_s: Callable[[float], object] = lambda _took_s: None  # called with the time of each transaction
        self._engine = engine
        self._waiting: SimpleQueue[_Request[Any] | None] = SimpleQueue()
        self._closing = Lock()
        self._closed = False
        self._thread = Thread(target=self._run_writes, name="store-writer", daemon=True)
        self._thread.start()

    def write(self, work: Callable[[Connection], T]) -> T:
        """Return what the work returns, after its transaction is committed.

        Raises:
            ValueError: If the writer is closed, or if the work itself writes.
            Exception: What the work or the commit raises; then nothing of the work was written.
        """
        if current_thread() is self._thread:
            raise ValueError("a write inside a write would wait for itself; pass the connection on")
        request = _Request(work)
        with self._closing:
            if self._closed:
                raise ValueError("the store is closed")
            self._waiting.put(request)
        return request.outcome()

    def close(self) -> None:
        """Finish what waits, then end the thread."""
        with self._closing:
            self._closed = True
            self._waiting.put(None)
        self._thread.join()

    def _run_writes(self) -> None:
        while True:
            group, last = self._next_group()
            if group:
                self._commit(group)
            if last:
                return

    def _next_group(self) -> tuple[list[_Request[Any]], bool]:
        """Wait for a request and return it with those behind it, and whether they are the last."""
        group: list[_Request[Any]] = []
        request = self._waiting.get()
        while request is not None:
            group.append(request)
            if len(group) == GROUP:
                return group, False
            try:
                request = self._waiting.get_nowait()
            except Empty:
                return group, False
        return group, True

    def _commit(self, group: list[_Request[Any]]) -> None:
        failure: Exception | None = None
        began = time.perf_counter()
        try:
            with self._engine.begin() as tx:
                begin_writing(tx)
                for request in group:
                    request.run(tx)
        except Exception as error:
            failure = error
        self.observe_s(time.perf_counter() - began)
        for request in group:
            request.finish(failure)


def execute_savepoint(tx: Connection, statement: str) -> None:
    """Set or leave a savepoint through the driver: SQLAlchemy's take longer than the writes between them."""
    try:
        cursor = tx.connection.cursor()
        cursor.execute(statement)
        cursor.close()
    except Exception as error:  # each driver has its own; whichever it is, the transaction is gone
        raise StoreUnreachableError(f"a transaction was lost: {error}") from error


VERSION_TABLE = "longshore_version"
MIGRATING_LOCK = 0x6D69677261746500  # "migrate", the number of PostgreSQL's advisory lock


def migrate(engine: Engine) -> None:
    """Bring a store to the schema of this version.

    Several may do so at the same time: each reads the revision of the store in the transaction that changes it.

    Raises:
        StoreError: If a newer version has written the store, or if it holds tables of something else.
    """
    with engine.begin() as tx:
        begin_writing(tx)
        if tx.dialect.name == "postgresql":
            tx.exec_driver_sql(f"SELECT pg_advisory_xact_lock({MIGRATING_LOCK})")
        config = alembic_config(tx)
        script, current = ScriptDirectory.from_config(config), revision_of(tx)
        _check_revision(tx, script, current)
        if current is None:  # the migrations would make the same tables, in more time
            METADATA.create_all(tx)
            stamp(config, "head")
        elif current != script.get_current_head():
            upgrade(config, "head")


def alembic_config(tx: Connection) -> Config:
    """Return what Alembic's commands need to work in a transaction."""
    config = _migrations_config()
    config.attributes["connection"] = tx
    return config


def is_known_revision(revision: str) -> bool:
    """Return whether this version has a migration of a name."""
    try:
        ScriptDirectory.from_config(_migrations_config()).get_revision(revision)
    except CommandError:
        return False
    return True


def _migrations_config() -> Config:
    config = Config()
    config.set_main_option("script_location", f"{__package__}:migrations")
    config.set_main_option("path_separator", "os")
    return config


def revision_of(tx: Connection) -> str | None:
    """Return the name of a store's last migration, None if it has none."""
    return MigrationContext.configure(tx, opts={"version_table": VERSION_TABLE}).get_current_revision()


def _check_revision(tx: Connection, script: ScriptDirectory, current: str | None) -> None:
    if current is None:
        tables = set(inspect(tx).get_table_names()) - {VERSION_TABLE}
        if tables:
            raise StoreError(f"the database is no store, it has a table {min(tables)!r}; name an empty one")
        return
    try:
        script.get_revision(current)
    except CommandError as error:
        raise StoreError(
            f"a newer version of Longshore has written the store (migration {current!r}); use that version"
        ) from error


log = logging.getLogger(__name__)

# Codes of errors. SQLite reports a quota that is used up as a failed write.
SQLITE_FULL, SQLITE_IOERR_WRITE, POSTGRESQL_FULL = 13, 778, "53100"


class Store:
    """An open store. Every thread may use it; a process has one.

    Args:
        engine: Of a database with the schema of this version.
        file: That it is in, None if it is in no file.
    """

    def __init__(self, engine: Engine, file: Path | None = None) -> None:
        self.engine = engine
        self.file = file
        self.make_room: Callable[[], bool] = lambda: False  # called when the disk is full; returns whether it helped
        self._rooms, self._making = 0, Lock()  # how often room was made
        self._writer = Writer(engine)
        self._identity, self._is_lost = _file_identity(file), False

    def write(self, work: Callable[[Connection], T]) -> T:
        """Do work in a transaction and return what it returns, once that is committed.

        Requests that wait at the same time share a transaction, each behind a savepoint: one that raises is undone
        alone. So the work has to be short and must call nothing outside, or it holds up all others.

        Raises:
            StoreUnreachableError: If the database does not answer, its disk is full, or its file is not there any more.
            Exception: What the work raises; then nothing of it was written.
        """
        rooms = self._rooms
        try:
            return self._write(work)
        except StoreFullError:
            if not self._make_room_once(rooms):
                raise
            return self._write(work)

    def _make_room_once(self, rooms: int) -> bool:
        """Make room and return whether there is some; the first transaction that found none makes it for all."""
        with self._making:
            if self._rooms == rooms and self.make_room():
                self._rooms += 1
            return self._rooms != rooms

    def _write(self, work: Callable[[Connection], T]) -> T:
        self.check_file()
        with _translated_errors():
            result = self._writer.write(work)
        self.check_file()  # what was written to a deleted file is not stored
        return result

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """Give a connection for reading. Leave soon: an open read keeps SQLite's log from being emptied.

        Raises:
            StoreUnreachableError: If the database does not answer.
        """
        self.check_file()
        with _translated_errors(), self.engine.connect() as tx:
            begin_reading(tx)
            yield tx

    def check_file(self) -> None:
        """Make sure that the file is the one that was opened.

        Raises:
            StoreLostError: If it was deleted or replaced: what is written to it would be lost.
        """
        if _file_identity(self.file) == self._identity:
            self._is_lost = False
            return
        text = "the file of the store was deleted or replaced under the scheduler"
        if not self._is_lost:
            log.error("%s: %s; stop all schedulers of it, put it back, and start again", self.file, text)
        self._is_lost = True
        raise StoreLostError(f"{text}: nothing is read, written or started until it is put back")

    def watch_commits(self, observe_s: Callable[[float], object]) -> None:
        """Call a function with the seconds that each transaction takes, on the writer's thread."""
        self._writer.observe_s = observe_s

    def close(self) -> None:
        """Finish the writes that wait and close all connections."""
        self._writer.close()
        self.engine.dispose()


def open_store(url: str) -> Store:
    """Open a store, make it if there is none, and bring it to the schema of this version.

    Args:
        url: `sqlite:///FILE`, with `?durability=full` for transactions that survive a loss of power, or
            `postgresql://USER@HOST/DATABASE`.

    Raises:
        StoreUnreachableError: If the database does not answer.
        StoreError: If it is not a store, is a newer version's, or cannot be used.
    """
    engine = connect(url)
    try:
        _migrate_named(engine)
    except BaseException:
        engine.dispose()
        raise
    return Store(engine, file_of(url))


def _migrate_named(engine: Engine) -> None:
    """Migrate a store; errors name it."""
    place = shown_url(engine.url)
    try:
        with _translated_errors():
            migrate(engine)
    except DBAPIError as error:
        raise StoreError(f"{place}: {error.orig}") from error
    except StoreError as error:
        raise type(error)(f"{place}: {error}") from error


@contextmanager
def _translated_errors() -> Iterator[None]:
    """Distinguish a database that does not answer from a mistake in a statement."""
    try:
        yield
    except (OperationalError, InterfaceError, StoreUnreachableError) as error:
        if _is_full(error):
            raise StoreFullError("the disk of the store is full, or the quota of its user") from error
        if isinstance(error, StoreUnreachableError):
            raise
        raise StoreUnreachableError(f"the store does not answer: {error.orig}") from error
    except PoolTimeoutError as error:
        raise StoreUnreachableError(f"the store does not answer: {error}") from error


def _is_full(error: BaseException | None) -> bool:
    """Return whether a full disk is behind an error; a transaction that it ended fails in what follows as well."""
    while error is not None:
        if getattr(error, "sqlite_errorcode", None) in (SQLITE_FULL, SQLITE_IOERR_WRITE):
            return True
        if getattr(error, "sqlstate", "") == POSTGRESQL_FULL:
            return True
        error = getattr(error, "orig", None) or error.__cause__ or error.__context__
    return False


def _file_identity(file: Path | None) -> tuple[int, int] | None:
    """Return what identifies a file, None if it is not there."""
    if file is None:
        return None
    try:
        found = os.stat(file)  # noqa: PTH116
    except OSError:
        return None
    return found.st_dev, found.st_ino
