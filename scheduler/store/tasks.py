"""Tasks: what was seen of each rank of an attempt. Observations only; they decide nothing by themselves."""

from typing import NamedTuple

from sqlalchemy import Connection, Executable, bindparam, select
from sqlalchemy.dialects import postgresql, sqlite

from ..states import OPEN_ATTEMPTS
from .events import NewEvent, append
from .schema import attempt, task

STALE = "stale"  # kind of events


class TaskRow(NamedTuple):
    """A rank as it was last seen."""

    job_id: str
    number: int  # of the attempt
    rank: int
    seq: int  # of the observation; an older one changes nothing
    node: str
    gpu: int  # index on the node
    identity: str  # of its process
    seen_s: float  # Unix time
    code: int | None = None  # exit code
    signal: int | None = None  # that ended it, 0 if none did
    ended_s: float | None = None  # Unix time
    evidence: str = ""  # what proves the end


_KEY = ("job_id", "number", "rank")
_ROWS = select(*(task.c[name] for name in TaskRow._fields)).order_by(task.c.rank)
_OF_ATTEMPT = _ROWS.where(task.c.job_id == bindparam("of_job"), task.c.number == bindparam("at_number"))
_OPEN = select(attempt.c.number).where(
    attempt.c.job_id == bindparam("of_job"),
    attempt.c.number == bindparam("at_number"),
    attempt.c.state.in_(sorted(OPEN_ATTEMPTS)),
)


def tasks_of(tx: Connection, job_id: str, number: int) -> list[TaskRow]:
    """Return what was seen of the ranks of an attempt, by rank."""
    return [TaskRow._make(row) for row in tx.execute(_OF_ATTEMPT, {"of_job": job_id, "at_number": number})]


def observe_task(tx: Connection, seen: TaskRow, *, writer: str) -> bool:
    """Write down what was seen of a rank; of several observations the one with the highest seq stays.

    What is told of an attempt that is not open becomes an event of the kind "stale" and changes nothing.

    Returns:
        Whether the observation was of an open attempt and newer than what was known.
    """
    if tx.execute(_OPEN, {"of_job": seen.job_id, "at_number": seen.number}).first() is None:
        data = {"rank": seen.rank, "code": seen.code, "signal": seen.signal}
        append(tx, NewEvent(STALE, writer, seen.seen_s, seen.job_id, seen.number, data=data))
        return False
    statement = _SQLITE_UPSERT if tx.dialect.name == "sqlite" else _POSTGRESQL_UPSERT
    return tx.execute(statement, seen._asdict()).first() is not None


def _upsert(insert: sqlite.Insert | postgresql.Insert) -> Executable:
    changes = {name: insert.excluded[name] for name in TaskRow._fields if name not in _KEY}
    newer = task.c.seq < insert.excluded.seq
    return insert.on_conflict_do_update(index_elements=_KEY, set_=changes, where=newer).returning(task.c.rank)


_SQLITE_UPSERT, _POSTGRESQL_UPSERT = _upsert(sqlite.insert(task)), _upsert(postgresql.insert(task))
