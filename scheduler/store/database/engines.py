"""Connections to the databases that can hold a store, set up so that both keep the same promises.

SQLite: one writer at a time, which takes the lock when its transaction begins; a read that turns into a write could
not wait for it. Readers see the state at their first statement and take no lock that stops the writer.
PostgreSQL: READ COMMITTED, with writes that repeat what they had read as their condition. Each transaction that may
write holds a shared lock, which a follower of events asks for alone: then all events with a smaller number than those
it can see are committed or will never be.
"""

import json
from pathlib import Path

from sqlalchemy import URL, Connection, Engine, create_engine, event
from sqlalchemy.engine import make_url
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import ArgumentError
from sqlalchemy.pool import ConnectionPoolEntry

from ...files.paths import exists, is_folder
from .errors import StoreError

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
    return _sqlite(parsed) if parsed.get_backend_name() == "sqlite" else _postgresql(parsed)


def check_url(url: str) -> URL:
    """Return the parts of a URL that a store can have; nothing is opened.

    Raises:
        StoreError: If it can have none such.
    """
    parsed = _parsed(url)
    kind = parsed.get_backend_name()
    if kind not in ("sqlite", "postgresql"):
        raise StoreError(f"a store cannot be in {kind!r}; write sqlite:///FILE or postgresql://...")
    if kind == "sqlite" and parsed.database in (None, "", ":memory:"):
        raise StoreError("a store needs a file; write sqlite:///FILE")
    durability = parsed.query.get("durability", "normal")
    if kind == "sqlite" and durability not in DURABILITIES:
        raise StoreError(f"durability is {durability!r}; write normal or full")
    return parsed


def file_of(url: str) -> Path | None:
    """Return the file of a store, None if it is in no file.

    Raises:
        StoreError: If that is no URL of a store.
    """
    parsed = _parsed(url)
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


def restore_mark(file: Path) -> Path:
    """Return the file that is there while another one takes the place of a store's."""
    return file.with_name(f"{file.name}.restoring")


def _parsed(url: str) -> URL:
    try:
        return make_url(url)
    except ArgumentError as error:
        raise StoreError(f"{url!r} is no URL of a store; write sqlite:///FILE or postgresql://...") from error


def lock_for_writing(tx: Connection) -> None:
    """Begin a transaction that may write; not in SQLAlchemy's event, which slows down all statements by a fifth."""
    sqlite = tx.dialect.name == "sqlite"
    tx.exec_driver_sql("BEGIN IMMEDIATE" if sqlite else f"SELECT pg_advisory_xact_lock_shared({EVENTS_LOCK})")


def lock_for_reading(tx: Connection) -> None:
    """Begin a transaction that only reads."""
    if tx.dialect.name == "sqlite":
        tx.exec_driver_sql("BEGIN")


def _json(text: str) -> object:
    """Return what JSON says, nothing if it is none: PostgreSQL refuses that, SQLite does not."""
    try:
        return json.loads(text)
    except ValueError:
        return None


def _sqlite(url: URL) -> Engine:
    file = url.database or ""
    check_folder_of(Path(file))
    durability = url.query.get("durability", "normal")
    if exists(restore_mark(Path(file))):
        raise StoreError(f"{file}: a restore of it was cut off; call `longshore restore` again")
    if not exists(Path(file)):
        try:
            Path(file).touch(mode=0o600)  # whatever may be read in its folder: it holds what everybody runs
        except OSError as error:
            raise StoreError(f"{file}: cannot be made: {error.strerror}") from error
    # isolation_level None: the driver would begin transactions by its own rules.
    engine = create_engine(
        url.difference_update_query(["durability"]), connect_args={"isolation_level": None}, json_deserializer=_json
    )

    @event.listens_for(engine, "connect")
    def set_up(connection: DBAPIConnection, entry: ConnectionPoolEntry) -> None:
        cursor = connection.cursor()
        for pragma in (*_PRAGMAS, f"synchronous = {DURABILITIES[str(durability)]}"):
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    return engine


def _postgresql(url: URL) -> Engine:
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
