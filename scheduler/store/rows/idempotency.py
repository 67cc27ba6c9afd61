"""Answers to requests that may come again: the same key gets the same answer, and nothing is done twice."""

from collections.abc import Mapping
from typing import NamedTuple

from sqlalchemy import Connection, bindparam, delete, select

from ..database.schema import idempotency
from .upsert import insert_if_absent


class Answer(NamedTuple):
    """What was answered to a request."""

    request: str  # SHA-256 of the canonical request in hexadecimal
    status: int
    response: Mapping[str, object]
    at_s: float  # Unix time


_ONE = select(*(idempotency.c[name] for name in Answer._fields)).where(
    idempotency.c.owner == bindparam("of_owner"), idempotency.c.key == bindparam("of_key")
)
_FORGET = delete(idempotency).where(idempotency.c.at_s < bindparam("before_s"))


def recall(tx: Connection, owner: str, key: str) -> Answer | None:
    """Return what was answered to an owner's request with a key, None if there was none."""
    row = tx.execute(_ONE, {"of_owner": owner, "of_key": key}).first()
    return None if row is None else Answer._make(row)


def remember(tx: Connection, owner: str, key: str, answer: Answer) -> bool:
    """Keep an answer in the transaction of what it tells; return False if there is one, and undo that then."""
    return insert_if_absent(tx, idempotency, {"owner": owner, "key": key, **answer._asdict()})


def forget_before(tx: Connection, before_s: float) -> int:
    """Delete the answers given before a Unix time, and return how many they were."""
    return tx.execute(_FORGET, {"before_s": before_s}).rowcount
