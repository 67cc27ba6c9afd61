"""Events: what happened, in the order in which it was committed. Rows are only ever added."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Connection, Executable, Row, bindparam, func, insert, literal, select, union_all

from ..model.job import NewEvent
from .engines import EVENTS_LOCK
from .schema import event, job


class EventRow(NamedTuple):
    """An event; the fields are those of NewEvent behind its number."""

    seq: int
    kind: str
    writer: str
    at_s: float
    job_id: str | None
    number: int | None
    version: int | None
    was: str
    now: str
    fence: int | None
    cause: str
    data: Mapping[str, object] | None


_INSERT_EVENT = insert(event).values({name: bindparam(name) for name in NewEvent._fields}).inline()
_VERSION = select(job.c.version).where(job.c.id == bindparam("of_job")).scalar_subquery()
_INSERT_FOR_JOBS = (
    insert(event).values({name: bindparam(name) for name in NewEvent._fields} | {"version": _VERSION}).inline()
)
_AFTER = (
    select(*(event.c[name] for name in EventRow._fields))
    .where(event.c.seq > bindparam("after"))
    .order_by(event.c.seq)
    .limit(bindparam("most"))
)
_AFTER_OF_JOB = _AFTER.where(event.c.job_id == bindparam("of_job"))
# By number and not by owner, who may have many jobs: a range of numbers is read, whatever the database makes of it.
_OWNER = select(job.c.owner).where(job.c.id == event.c.job_id).scalar_subquery()
_OF_OWNER = _AFTER.where(event.c.seq <= bindparam("until"), bindparam("of_owner") == _OWNER)
# Of all events the number of the last one is needed, of those with a lease nothing else.
_BY_OTHERS = union_all(
    select(event.c.seq, event.c.job_id).where(event.c.seq > bindparam("after"), event.c.fence.is_(None)),
    select(func.max(event.c.seq), literal(None)).where(event.c.seq > bindparam("after")),
).order_by("seq")
_LAST_EVENT_S = select(func.max(event.c.at_s)).where(
    event.c.job_id == bindparam("of_job"), event.c.kind == bindparam("of_kind"), event.c.now == bindparam("word")
)
_OF_KIND = (
    select(*(event.c[name] for name in EventRow._fields))
    .where(
        event.c.job_id == bindparam("of_job"), event.c.kind == bindparam("of_kind"), event.c.now == bindparam("word")
    )
    .order_by(event.c.seq)
)
_LAST_SEQ = select(func.coalesce(func.max(event.c.seq), 0))
_FIRST_S = select(event.c.at_s).order_by(event.c.seq).limit(1)
_LAST_OF_NO_JOB = (
    select(*(event.c[name] for name in EventRow._fields))
    .where(event.c.job_id.is_(None), event.c.kind == bindparam("of_kind"), event.c.at_s >= bindparam("since_s"))
    .order_by(event.c.seq.desc())
    .limit(bindparam("most"))
)


def append(tx: Connection, new: NewEvent) -> None:
    """Add an event, in the transaction of the change."""
    tx.execute(_INSERT_EVENT, new._asdict())


def append_all(tx: Connection, new: Sequence[NewEvent]) -> None:
    """Add events."""
    if new:
        tx.execute(_INSERT_EVENT, [each._asdict() for each in new])


def append_for_jobs(tx: Connection, new: Sequence[NewEvent]) -> None:
    """Add events of changes of jobs, which have the versions that the jobs now have."""
    if new:
        tx.execute(_INSERT_FOR_JOBS, [{**each._asdict(), "of_job": each.job_id} for each in new])


def events_after(tx: Connection, seq: int, limit: int, job_id: str | None = None) -> list[EventRow]:
    """Return the first events behind one, in the order of their numbers.

    Who goes on from the last one it got misses none: no event with a smaller number is committed later. On PostgreSQL
    that takes waiting for the transactions that write at the moment, if there is anything to return; so call it in a
    read.

    Args:
        tx: Transaction.
        seq: Number of the last event that is known, 0 for none.
        limit: Most events to return.
        job_id: Only those of one job.
    """
    statement = _AFTER if job_id is None else _AFTER_OF_JOB
    parameters = {"after": seq, "most": limit, "of_job": job_id}
    return [EventRow._make(row) for row in _complete(tx, statement, parameters)]


def owners_events_after(
    tx: Connection, seq: int, limit: int, owner: str, within: int
) -> tuple[list[EventRow], int]:  # fmt: skip
    """Return the first events behind one that are about an owner's jobs, and the number up to which none was missed.

    Args:
        tx: Transaction.
        seq: Number of the last event that is known, 0 for none.
        limit: Most events to return.
        owner: Whose jobs.
        within: Number of sequence numbers that are read.
    """
    last = last_seq(tx)
    if last <= seq:
        return [], seq
    last = min(seq + within, last_complete_seq(tx))
    values = {"after": seq, "until": last, "of_owner": owner, "most": limit}
    rows = [EventRow._make(row) for row in tx.execute(_OF_OWNER, values)]
    return rows, rows[-1].seq if len(rows) == limit else last


def changed_by_others(tx: Connection, seq: int) -> tuple[list[str], int]:
    """Return the jobs of events that writers without a lease added since an event, and the number of the last event.

    Who goes on from there misses none; as with `events_after`.
    """
    last = last_seq(tx)
    if last == seq:
        return [], seq
    rows = _complete(tx, _BY_OTHERS, {"after": seq})
    return list(dict.fromkeys(row.job_id for row in rows if row.job_id is not None)), max(row.seq for row in rows)


def _complete(tx: Connection, statement: Executable, parameters: Mapping[str, object]) -> Sequence[Row[Any]]:
    """Return rows of events of which none with a smaller number can still be committed."""
    rows = tx.execute(statement, parameters).all()
    if rows and tx.dialect.name == "postgresql":
        # Undoing the savepoint gives the lock back at once.
        alone = tx.begin_nested()
        tx.exec_driver_sql(f"SELECT pg_advisory_xact_lock({EVENTS_LOCK})")
        rows = tx.execute(statement, parameters).all()
        alone.rollback()
    return rows


def first_event_s(tx: Connection) -> float | None:
    """Return the time of the first event that is kept, None if there is none."""
    first: float | None = tx.execute(_FIRST_S).scalar_one_or_none()
    return first


def last_of_no_job(tx: Connection, kind: str, since_s: float, most: int) -> list[EventRow]:
    """Return the last events of a kind that concern no job, in the order of their numbers.

    Args:
        tx: Transaction.
        kind: Their kind.
        since_s: Unix time of the earliest.
        most: Most events to return.
    """
    rows = tx.execute(_LAST_OF_NO_JOB, {"of_kind": kind, "since_s": since_s, "most": most}).all()
    return [EventRow._make(row) for row in reversed(rows)]


def last_such_s(tx: Connection, job_id: str, kind: str, now: str) -> float | None:
    """Return the time of the last event of a kind that brought a job to something, None if there is none."""
    last: float | None = tx.execute(_LAST_EVENT_S, {"of_job": job_id, "of_kind": kind, "word": now}).scalar_one()
    return last


def such_events(tx: Connection, job_id: str, kind: str, now: str) -> list[EventRow]:
    """Return the events of a kind that brought a job to something."""
    return [EventRow._make(row) for row in tx.execute(_OF_KIND, {"of_job": job_id, "of_kind": kind, "word": now})]


def last_seq(tx: Connection) -> int:
    """Return the number of the last event, 0 if there is none."""
    last: int = tx.execute(_LAST_SEQ).scalar_one()
    return last


def last_complete_seq(tx: Connection) -> int:
    """Return the same, such that none with a smaller number is committed later: who follows from there misses none."""
    last: int = _complete(tx, _LAST_SEQ, {})[0][0]
    return last
