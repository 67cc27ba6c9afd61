import json
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection, inspect, text

from longshore.cluster.files.errors import LongshoreError
from longshore.scheduler.store.database import (
    VERSION_TABLE,
    Store,
    StoreError,
    StoreUnreachableError,
    alembic_config,
    check_url,
    connect,
    open_store,
    revision_of,
)
from longshore.scheduler.store.schema import METADATA

from .postgresql_server import Server
from .store_rows import job_now, submit


def test_a_store_has_the_tables_that_the_code_names(store: Store) -> None:
    options = {"version_table": VERSION_TABLE, "target_metadata": METADATA}
    with store.read() as tx:
        assert compare_metadata(MigrationContext.configure(tx, opts=options), METADATA) == []


def tables_of(tx: Connection) -> dict[str, list[str]]:
    """Return all that a database tells of its tables, whatever the order in which it was made."""
    seen = inspect(tx)
    parts = (
        seen.get_columns, seen.get_indexes, seen.get_unique_constraints, seen.get_check_constraints,
        seen.get_foreign_keys, lambda table: [seen.get_pk_constraint(table)],
    )  # fmt: skip
    return {
        table: sorted(json.dumps(each, sort_keys=True, default=str) for part in parts for each in part(table))
        for table in seen.get_table_names()
    }


def rows_of(tx: Connection) -> dict[str, list[tuple[object, ...]]]:
    tables = inspect(tx).get_table_names()
    return {name: [tuple(row) for row in tx.execute(text(f'SELECT * FROM "{name}"'))] for name in tables}


def test_all_migrations_come_to_what_a_new_store_is(url: str) -> None:
    store = open_store(url)
    with store.engine.begin() as tx:
        new, rows = tables_of(tx), rows_of(tx)
        command.downgrade(alembic_config(tx), "base")
        assert set(inspect(tx).get_table_names()) == {VERSION_TABLE}
        assert revision_of(tx) is None
    with store.engine.begin() as tx:
        command.upgrade(alembic_config(tx), "head")
    with store.engine.begin() as tx:
        assert tables_of(tx) == new
        assert rows_of(tx) == rows
    submit(store)
    store.close()


def test_a_store_keeps_its_rows_when_it_is_opened_again(url: str) -> None:
    store = open_store(url)
    job = submit(store)
    store.close()
    again = open_store(url)
    assert job_now(again, job.id) == job
    again.close()


def test_a_new_store_can_be_read_by_its_user_alone(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    store = open_store(f"sqlite:///{tmp_path / 'store.db'}")
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}
    store.close()


def test_a_new_store_can_be_opened_by_many_at_once(url: str) -> None:
    with ThreadPoolExecutor(6) as pool:
        for store in pool.map(open_store, [url] * 6):
            store.close()


def test_a_store_of_a_newer_version_is_refused(url: str) -> None:
    store = open_store(url)
    store.write(lambda tx: tx.execute(text(f"UPDATE {VERSION_TABLE} SET version_num = '9999'")))
    store.close()
    with pytest.raises(StoreError, match=r"newer version of Longshore .*'9999'"):
        open_store(url)


def test_a_database_of_something_else_is_refused(url: str) -> None:
    engine = connect(url)
    with engine.begin() as tx:
        tx.exec_driver_sql("CREATE TABLE recipe (id INTEGER)")
    engine.dispose()
    with pytest.raises(StoreError, match="no store, it has a table 'recipe'"):
        open_store(url)


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("Dear diary, " * 1000)
    with pytest.raises(StoreError, match=r"notes\.txt: file is not a database"):
        open_store(f"sqlite:///{path}")


@pytest.mark.parametrize(
    ("name", "reported"),
    [
        ("sqlite:////nowhere/at/all/store.db", "folder does not exist"),
        ("sqlite://", "needs a file"),
        ("sqlite:///store.db?durability=most", "'most'; write normal or full"),
        ("mysql://host/store", "'mysql'"),
        ("store.db", "no URL of a store"),
    ],
)
def test_a_store_that_cannot_be_is_refused_in_one_line(name: str, reported: str) -> None:
    with pytest.raises(LongshoreError, match=reported) as refusal:
        open_store(name)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(("query", "synchronous"), [("", 1), ("?durability=normal", 1), ("?durability=full", 2)])
def test_sqlite_writes_ahead_and_as_durably_as_asked(sqlite_url: str, query: str, synchronous: int) -> None:
    store = open_store(sqlite_url + query)
    settings = ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
    got = store.write(lambda tx: [tx.exec_driver_sql(f"PRAGMA {name}").scalar() for name in settings])
    store.close()
    assert got == ["wal", synchronous, 1, 30000]


def test_a_read_waits_for_no_writer_and_sees_one_moment(sqlite_url: str) -> None:
    store = open_store(sqlite_url)
    other = sqlite3.connect(sqlite_url.removeprefix("sqlite:///"), isolation_level=None)
    with store.read() as tx:
        count = text("SELECT count(*) FROM lease")
        assert tx.execute(count).scalar() == 0
        other.execute("BEGIN IMMEDIATE")
        other.execute("INSERT INTO lease VALUES ('a', 'b', 1, 0, 1)")
        assert tx.execute(count).scalar() == 0
        other.execute("COMMIT")
        assert tx.execute(count).scalar() == 0
    other.close()
    store.close()


def test_a_store_works_again_after_its_server_was_away(server: Server, postgresql_url: str) -> None:
    store = open_store(postgresql_url)
    server.stop()
    with pytest.raises(StoreUnreachableError):
        submit(store, 1)
    with pytest.raises(StoreUnreachableError), store.read():
        pass
    with pytest.raises(StoreUnreachableError):
        open_store(postgresql_url)
    server.start()
    assert job_now(store, submit(store, 2).id).name == "job-2"
    store.close()


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:hunter2@1:hunter2@db/y",
        "postgresql://u:hunter2@db:no/y",
        "postgresql://u:hunter2@db:5432:1/y",
        "postgresql:/u:hunter2@db",
        "hunter2@db",
        "postgresql://nowhere.invalid/y?user=u&password=hunter2",
        "postgresql://u:hunter2@nowhere.invalid/y?sslpassword=hunter2",
    ],
)
def test_no_message_about_a_store_has_its_password(url: str) -> None:
    with pytest.raises(StoreError) as raised:
        open_store(url)
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize("query", ["timeout=abc", "timeout=5", "mode=ro", "other=1", "durability=full&uri=true"])
def test_a_file_takes_no_settings_of_the_driver(tmp_path: Path, query: str) -> None:
    for call in (check_url, open_store):
        with pytest.raises(StoreError):
            call(f"sqlite:///{tmp_path / 'store.db'}?{query}")
