"""Bringing a store to the schema of this version: a new one at once, an older one by one transaction a migration."""

from alembic.command import stamp, upgrade
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import Connection, Engine, inspect

from .database.engines import lock_for_writing
from .database.errors import StoreError
from .database.schema import METADATA

VERSION_TABLE = "longshore_version"
MIGRATING_LOCK = 0x6D69677261746500  # "migrate", the number of PostgreSQL's advisory lock


def migrate(engine: Engine) -> None:
    """Bring a store to the schema of this version.

    Several may do so at the same time: each reads where the store stands in the transaction that changes it.

    Raises:
        StoreError: If a newer version has written the store, or if it holds tables of something else.
    """
    step = True
    while step:
        with engine.begin() as tx:
            lock_for_writing(tx)
            step = _step(tx)


def configuration(tx: Connection) -> Config:
    """Return what Alembic's commands need to work in a transaction."""
    config = _configuration()
    config.attributes["connection"] = tx
    return config


def is_known(revision: str) -> bool:
    """Say whether this version has a migration of a name."""
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


def _step(tx: Connection) -> bool:
    """Make the tables of a new store, or run one migration; return whether another one may be missing."""
    if tx.dialect.name == "postgresql":
        tx.exec_driver_sql(f"SELECT pg_advisory_xact_lock({MIGRATING_LOCK})")
    config = configuration(tx)
    script = ScriptDirectory.from_config(config)
    current = version(tx)
    if current == script.get_current_head():
        return False
    _check(tx, script, current)
    if current is None:  # All migrations, one after the other, come to the same, and take ten times as long.
        METADATA.create_all(tx)
        stamp(config, "head")
        return False
    upgrade(config, "+1")
    return True


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
