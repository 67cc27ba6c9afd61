"""Inserts that leave what is there, or replace it: the two databases write them alike, SQLAlchemy apart."""

from collections.abc import Mapping, Sequence
from functools import cache

from sqlalchemy import Connection, Executable, Table, bindparam
from sqlalchemy.dialects import postgresql, sqlite


def insert_if_absent(tx: Connection, table: Table, values: Mapping[str, object]) -> bool:
    """Insert a row unless one with its key is there, and return whether it was inserted."""
    return tx.execute(_absent(table, tuple(values), tx.dialect.name), values).first() is not None


def put_all(tx: Connection, table: Table, rows: Sequence[Mapping[str, object]]) -> None:
    """Insert rows that name the same columns, or replace these of the rows with their keys."""
    if rows:
        tx.execute(_put(table, tuple(rows[0]), tx.dialect.name), rows)


@cache
def _absent(table: Table, names: tuple[str, ...], dialect: str) -> Executable:
    """Return a statement; SQLAlchemy takes longer to build one than to run it."""
    return _insert(table, names, dialect).on_conflict_do_nothing().returning(*table.primary_key)


@cache
def _put(table: Table, names: tuple[str, ...], dialect: str) -> Executable:
    insert = _insert(table, names, dialect)
    key = [column.name for column in table.primary_key]
    changes = {name: insert.excluded[name] for name in names if name not in key}
    return insert.on_conflict_do_update(index_elements=key, set_=changes)


def _insert(table: Table, names: tuple[str, ...], dialect: str) -> postgresql.Insert | sqlite.Insert:
    insert = sqlite.insert(table) if dialect == "sqlite" else postgresql.insert(table)
    return insert.values({name: bindparam(name) for name in names})
