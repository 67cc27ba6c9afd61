"""Opens a store: brought to the schema of this version, tried for changes, read on any thread and written by one."""

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock
from typing import TypeVar

from alembic.command import stamp, upgrade
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import Connection, Engine, inspect
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from ...cluster.model.placement import Share
from ..model.states import AttemptState
from .attempts import AttemptColumns, NewAttempt
from .decisions import NewDecision
from .engines import (
    StoreError,
    StoreFullError,
    StoreLostError,
    StoreUnreachableError,
    Writer,
    connect,
    file_of,
    lock_for_reading,
    lock_for_writing,
)
from .jobs import NewJob, insert_job
from .schema import METADATA
from .transitions import AttemptChange, Changes, Opened, opened_attempt, write_changes

VERSION_TABLE = "longshore_version"
MIGRATING_LOCK = 0x6D69677261746500  # "migrate", the number of PostgreSQL's advisory lock


def migrate(engine: Engine) -> None:
    """Bring a store to the schema of this version.

    Several may do so at the same time: each reads the revision of the store in the transaction that changes it.

    Raises:
        StoreError: If a newer version has written the store, or if it holds tables of something else.
    """
    with engine.begin() as tx:
        lock_for_writing(tx)
        if tx.dialect.name == "postgresql":
            tx.exec_driver_sql(f"SELECT pg_advisory_xact_lock({MIGRATING_LOCK})")
        config = configuration(tx)
        script, current = ScriptDirectory.from_config(config), version(tx)
        _check(tx, script, current)
        if current is None:  # the migrations would make the same tables, in more time
            METADATA.create_all(tx)
            stamp(config, "head")
        elif current != script.get_current_head():
            upgrade(config, "head")


def configuration(tx: Connection) -> Config:
    """Return what Alembic's commands need to work in a transaction."""
    config = _configuration()
    config.attributes["connection"] = tx
    return config


def is_known(revision: str) -> bool:
    """Return whether this version has a migration of a name."""
    try:
        ScriptDirectory.from_config(_configuration()).get_revision(revision)
    except CommandError:
        return False
    return True


def _configuration() -> Config:
    config = Config()
    config.set_main_option("script_location", f"{__package__}:migrations")
    config.set_main_option("path_separator", "os")
    return config


def version(tx: Connection) -> str | None:
    """Return the name of a store's last migration, None if it has none."""
    return MigrationContext.configure(tx, opts={"version_table": VERSION_TABLE}).get_current_revision()


def _check(tx: Connection, script: ScriptDirectory, current: str | None) -> None:
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

T = TypeVar("T")
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
        self._identity, self._is_lost = _identity(file), False

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
            if not self._has_room_since(rooms):
                raise
            return self._write(work)

    def _has_room_since(self, rooms: int) -> bool:
        """Make room and return whether there is some; the first transaction that found none makes it for all."""
        with self._making:
            if self._rooms == rooms and self.make_room():
                self._rooms += 1
            return self._rooms != rooms

    def _write(self, work: Callable[[Connection], T]) -> T:
        self.check_file()
        with _reachable():
            result = self._writer.write(work)
        self.check_file()  # what went into a file that is gone was not stored
        return result

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """Give a connection for reading. Leave soon: an open read keeps SQLite's log from being emptied.

        Raises:
            StoreUnreachableError: If the database does not answer.
        """
        self.check_file()
        with _reachable(), self.engine.connect() as tx:
            lock_for_reading(tx)
            yield tx

    def check_file(self) -> None:
        """Make sure that the file is the one that was opened.

        Raises:
            StoreLostError: If it was deleted or replaced: what is written to it would be lost.
        """
        if _identity(self.file) == self._identity:
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
        _migrate(engine)
    except BaseException:
        engine.dispose()
        raise
    return Store(engine, file_of(url))


def _migrate(engine: Engine) -> None:
    """Migrate a store; errors name it."""
    place = engine.url.render_as_string(hide_password=True)
    try:
        with _reachable():
            migrate(engine)
    except DBAPIError as error:
        raise StoreError(f"{place}: {error.orig}") from error
    except StoreError as error:
        raise type(error)(f"{place}: {error}") from error


@contextmanager
def _reachable() -> Iterator[None]:
    """Tell a database that does not answer from a mistake in a statement."""
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


def _identity(file: Path | None) -> tuple[int, int] | None:
    """Return what identifies a file, None if it is not there."""
    if file is None:
        return None
    try:
        found = os.stat(file)  # noqa: PTH116
    except OSError:
        return None
    return found.st_dev, found.st_ino


TRIAL_ID = ""  # no job has this id, and no node this name


class _UndoError(Exception):
    """What was tried is to leave no trace."""


def try_out(store: Store, fence: int, at_s: float, writer: str) -> None:
    """Submit a job, start it, and take all of it back: it writes to each table to which changes of jobs write.

    Args:
        store: The store.
        fence: Token of the scheduler's lease.
        at_s: Unix time.
        writer: Role that writes.

    Raises:
        FencedError: If another scheduler has taken over.
        Exception: What the store has against it; it would have the same against any job.
    """

    def work(tx: Connection) -> None:
        job = insert_job(tx, NewJob(TRIAL_ID, TRIAL_ID, TRIAL_ID, {}, 0, 1, 1.0, at_s), writer=writer)
        opened = Opened(job, NewAttempt(TRIAL_ID, (Share(TRIAL_ID, (0,)),), 1.0, 0.0), "")
        decision = NewDecision(job.id, 1, at_s, "", "", "", None, None, {}, None, None, None, None, 0.0)
        attempt = opened_attempt(opened, at_s)
        launched = AttemptChange(attempt, AttemptState.LAUNCHED, attempt.contact, "", AttemptColumns())
        for changes in (Changes(opened=[opened], decisions=[decision]), Changes(attempts=[launched])):
            write_changes(tx, fence, changes, at_s=at_s, writer=writer)
        raise _UndoError

    with suppress(_UndoError):
        store.write(work)
