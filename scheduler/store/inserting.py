"""Inserts that leave what is there, or replace it: the two databases write them alike, SQLAlchemy apart."""

from collections.abc import Mapping

from sqlalchemy import Connection, Table
from sqlalchemy.dialects import postgresql, sqlite


def insert_if_absent(tx: Connection, table: Table, values: Mapping[str, object]) -> bool:
    """Insert a row unless one with its key is there, and return whether it was inserted."""
    statement = _insert(tx, table).values(**values).on_conflict_do_nothing()
    return tx.execute(statement.returning(*table.primary_key)).first() is not None


def put(tx: Connection, table: Table, values: Mapping[str, object]) -> None:
    """Insert a row, or replace all other columns of the one with its key."""
    key = [column.name for column in table.primary_key]
    changes = {name: value for name, value in values.items() if name not in key}
    tx.execute(_insert(tx, table).values(**values).on_conflict_do_update(index_elements=key, set_=changes))


def _insert(tx: Connection, table: Table) -> postgresql.Insert | sqlite.Insert:
    return sqlite.insert(table) if tx.dialect.name == "sqlite" else postgresql.insert(table)
