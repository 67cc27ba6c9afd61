"""What was written and who may write: events in the order of their commit, and leases.

Rows of events are only ever added. A lease that has expired can be taken, and each taking raises its token. The token
is the fence of all that its holder writes: a holder that wakes up after another took over still has the old token, and
`check_fence` refuses it.

Agents of nodes compare tokens, too, and outlive the store. So a token is at least the Unix time of its taking: a store
that was restored from a backup, or a new one, does not fall behind tokens that agents know.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import (
    BigInteger,
    BindParameter,
    Connection,
    Executable,
    Row,
    and_,
    bindparam,
    case,
    func,
    insert,
    literal,
    or_,
    select,
    union_all,
    update,
)

from ..model.job import NewEvent
from ..model.states import AttemptState, JobState
from .database import EVENTS_LOCK, FencedError
from .schema import event, insert_if_absent, job, lease


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
_EVENTS = select(*(event.c[name] for name in EventRow._fields))
_AFTER = _EVENTS.where(event.c.seq > bindparam("after")).order_by(event.c.seq).limit(bindparam("most"))
_AFTER_OF_JOB = _AFTER.where(event.c.job_id == bindparam("of_job"))
# By number and not by owner, who may have many jobs: a range of numbers is read, whatever the database makes of it.
_OWNER = select(job.c.owner).where(job.c.id == event.c.job_id).scalar_subquery()
_OF_OWNER = _AFTER.where(event.c.seq <= bindparam("until"), bindparam("of_owner") == _OWNER)
# Of all events the number of the last one is needed, of those with a lease nothing else.
_BY_OTHERS = union_all(
    select(event.c.seq, event.c.job_id).where(event.c.seq > bindparam("after"), event.c.fence.is_(None)),
    select(func.max(event.c.seq), literal(None)).where(event.c.seq > bindparam("after")),
).order_by("seq")
_SUCH = (event.c.job_id == bindparam("of_job"), event.c.kind == bindparam("of_kind"), event.c.now == bindparam("word"))
_LAST_SUCH_S = select(func.max(event.c.at_s)).where(*_SUCH)
_SUCH_EVENTS = _EVENTS.where(*_SUCH).order_by(event.c.seq)
_LAST_SEQ = select(func.coalesce(func.max(event.c.seq), 0))
_FIRST_S = select(event.c.at_s).order_by(event.c.seq).limit(1)
_LAST_OF_NO_JOB = (
    _EVENTS.where(event.c.job_id.is_(None), event.c.kind == bindparam("of_kind"), event.c.at_s >= bindparam("since_s"))
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
    """Return the first events behind the one of a number, of one job if it is given, in the order of their numbers.

    Who goes on from the last one it got misses none: no event with a smaller number is committed later. On PostgreSQL
    that takes waiting for the transactions that write at the moment, if there is anything to return; so call it in a
    read.
    """
    statement = _AFTER if job_id is None else _AFTER_OF_JOB
    parameters = {"after": seq, "most": limit, "of_job": job_id}
    return [EventRow._make(row) for row in _rows_without_gaps(tx, statement, parameters)]


def owners_events_after(
    tx: Connection, seq: int, limit: int, owner: str, within: int
) -> tuple[list[EventRow], int]:  # fmt: skip
    """Return events of an owner's jobs behind the one of a number, and the number up to which none was missed."""
    last = last_seq(tx)
    if last <= seq:
        return [], seq
    last = min(seq + within, last_complete_seq(tx))
    values = {"after": seq, "until": last, "of_owner": owner, "most": limit}
    rows = [EventRow._make(row) for row in tx.execute(_OF_OWNER, values)]
    return rows, rows[-1].seq if len(rows) == limit else last


def jobs_changed_by_others(tx: Connection, seq: int) -> tuple[list[str], int]:
    """Return the jobs of events that writers without a lease added since an event, and the number of the last event.

    Who goes on from there misses none; as with `events_after`.
    """
    last = last_seq(tx)
    if last == seq:
        return [], seq
    rows = _rows_without_gaps(tx, _BY_OTHERS, {"after": seq})
    return list(dict.fromkeys(row.job_id for row in rows if row.job_id is not None)), max(row.seq for row in rows)


def _rows_without_gaps(tx: Connection, statement: Executable, parameters: Mapping[str, object]) -> Sequence[Row[Any]]:
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


def last_events_without_job(tx: Connection, kind: str, since_s: float, most: int) -> list[EventRow]:
    """Return the last events of a kind since a Unix time that concern no job, in the order of their numbers."""
    rows = tx.execute(_LAST_OF_NO_JOB, {"of_kind": kind, "since_s": since_s, "most": most}).all()
    return [EventRow._make(row) for row in reversed(rows)]


def last_change_s(tx: Connection, job_id: str, kind: str, now: str) -> float | None:
    """Return the time of the last event of a kind that brought a job to something, None if there is none."""
    last: float | None = tx.execute(_LAST_SUCH_S, {"of_job": job_id, "of_kind": kind, "word": now}).scalar_one()
    return last


def changes_to(tx: Connection, job_id: str, kind: str, now: str) -> list[EventRow]:
    """Return the events of a kind that brought a job to something."""
    return [EventRow._make(row) for row in tx.execute(_SUCH_EVENTS, {"of_job": job_id, "of_kind": kind, "word": now})]


def last_seq(tx: Connection) -> int:
    """Return the number of the last event, 0 if there is none."""
    last: int = tx.execute(_LAST_SEQ).scalar_one()
    return last


def last_complete_seq(tx: Connection) -> int:
    """Return the same, such that none with a smaller number is committed later: who follows from there misses none."""
    last: int = _rows_without_gaps(tx, _LAST_SEQ, {})[0][0]
    return last


SCHEDULER_LEASE = "scheduler"


class LeaseRow(NamedTuple):
    """A lease as it stands."""

    owner: str  # the last holder, "" if there was none
    token: int
    expires_s: float  # Unix time by `clock`; 0 if it was given up, or never taken


NO_LEASE_ROW = LeaseRow("", 0, 0.0)

_LEASE_NAME: BindParameter[str] = bindparam("held_name")
_TOKEN: BindParameter[int] = bindparam("held_token")
_LEAST_TOKEN: BindParameter[int] = bindparam("least_token", type_=BigInteger)
# FOR SHARE: on PostgreSQL a takeover waits for the transactions that the old holder has begun.
_HELD = select(lease.c.token).where(lease.c.name == _LEASE_NAME, lease.c.token == _TOKEN).with_for_update(read=True)
_LEASE_ROW = select(*(lease.c[name] for name in LeaseRow._fields)).where(lease.c.name == _LEASE_NAME)
_LEFT = and_(*(lease.c[name] == bindparam(f"left_{name}") for name in LeaseRow._fields))
_TAKE = (
    update(lease)
    .where(lease.c.name == _LEASE_NAME, or_(lease.c.expires_s <= bindparam("now_s"), _LEFT))
    .values(
        owner=bindparam("owner"),
        token=case((lease.c.token >= _LEAST_TOKEN, lease.c.token + 1), else_=_LEAST_TOKEN),
        expires_s=bindparam("expires_s"),
        takeovers=lease.c.takeovers + 1,
    )
    .returning(lease.c.token)
)
_EXTEND = (
    update(lease)
    .where(lease.c.name == _LEASE_NAME, lease.c.token == _TOKEN)
    .values(expires_s=bindparam("expires_s"))
    .returning(lease.c.token)
)
_EXPIRES = select(lease.c.expires_s).where(lease.c.name == _LEASE_NAME)
_CLOCK = select(func.extract("epoch", func.clock_timestamp()))


def database_now_s(tx: Connection) -> float:
    """Return the time of the database's host, the only one by which leases are compared: Unix time in seconds."""
    if tx.dialect.name == "sqlite":
        return time.time()
    return float(tx.execute(_CLOCK).scalar_one())


def lease_row(tx: Connection, name: str) -> LeaseRow:
    """Return how a lease stands."""
    row = tx.execute(_LEASE_ROW, {"held_name": name}).first()
    return NO_LEASE_ROW if row is None else LeaseRow._make(row)


def is_lease_held(tx: Connection, name: str) -> bool:
    """Return whether a lease is held."""
    expires_s = tx.execute(_EXPIRES, {"held_name": name}).scalar_one_or_none()
    return expires_s is not None and expires_s > database_now_s(tx)


def acquire_lease(
    tx: Connection, name: str, owner: str, now_s: float, ttl_s: float, *, left: LeaseRow = NO_LEASE_ROW
) -> int | None:
    """Take a lease that is free.

    Args:
        tx: Transaction.
        name: Of the lease.
        owner: Who takes it, for people.
        now_s: By `clock`.
        ttl_s: Seconds until it expires if it is not renewed.
        left: The lease as it was read by one who knows that its owner is gone; if it still stands so, it can be taken
            before it expires.

    Returns:
        The token, larger than all before and no smaller than `now_s` in whole seconds; None if the lease is held.
    """
    insert_if_absent(tx, lease, {"name": name, "owner": "", "token": 0, "expires_s": 0.0})
    parameters = {
        "held_name": name, "owner": owner, "now_s": now_s, "expires_s": now_s + ttl_s,
        "least_token": int(now_s),
    }  # fmt: skip
    parameters |= {f"left_{field}": value for field, value in left._asdict().items()}
    return tx.execute(_TAKE, parameters).scalar_one_or_none()


def renew_lease(tx: Connection, name: str, token: int, now_s: float, ttl_s: float) -> bool:
    """Hold a lease for longer and return whether it still was held; one that expired untaken goes on as well."""
    return _extend_lease(tx, name, token, now_s + ttl_s)


def release_lease(tx: Connection, name: str, token: int) -> bool:
    """Let others take a lease at once and return whether it still was held."""
    return _extend_lease(tx, name, token, 0.0)


def check_fence(tx: Connection, fence: int, name: str = SCHEDULER_LEASE) -> None:
    """Make sure that a lease still carries a token, until the transaction ends.

    Raises:
        FencedError: If another holder has taken the lease.
    """
    if tx.execute(_HELD, {"held_name": name, "held_token": fence}).first() is None:
        raise FencedError(f"the lease {name!r} does not carry token {fence} any more: another process holds it")


def _extend_lease(tx: Connection, name: str, token: int, expires_s: float) -> bool:
    parameters = {"held_name": name, "held_token": token, "expires_s": expires_s}
    return tx.execute(_EXTEND, parameters).first() is not None


_TAKEOVERS = select(lease.c.name, lease.c.takeovers)
_LAST_EVENTS = _EVENTS.where(event.c.seq < bindparam("before")).order_by(event.c.seq.desc()).limit(bindparam("most"))
_LAST_EVENTS_OF_JOB = _LAST_EVENTS.where(event.c.job_id == bindparam("of_job"), event.c.kind != bindparam("without"))
_LAST_EVENT_OF_JOB = select(func.coalesce(func.max(event.c.seq), 0)).where(event.c.job_id == bindparam("of_job"))
_QUEUED_AT = select(func.max(event.c.at_s)).where(
    event.c.job_id == bindparam("of_job"), event.c.seq < bindparam("before"), event.c.now == JobState.QUEUED.value
)
_OPENED = select(func.max(event.c.number)).where(
    event.c.job_id == bindparam("of_job"), event.c.seq < bindparam("before"), event.c.now == AttemptState.RESERVED.value
)


def lease_takeovers(tx: Connection) -> dict[str, int]:
    """Return how often each lease was taken."""
    return {row.name: row.takeovers for row in tx.execute(_TAKEOVERS)}


def last_events(
    tx: Connection, limit: int, *, before_seq: int | None = None, job_id: str | None = None, without: str = ""
) -> list[EventRow]:
    """Return events before the one of a number, of one job if it is given, without those of a kind, the last first."""
    parameters = {"before": before_seq or 1 << 62, "most": limit, "of_job": job_id, "without": without}
    statement = _LAST_EVENTS if job_id is None else _LAST_EVENTS_OF_JOB
    return [EventRow._make(row) for row in tx.execute(statement, parameters)]


def last_seq_of_job(tx: Connection, job_id: str) -> int:
    """Return the number of the last event of a job, 0 if there is none."""
    last: int = tx.execute(_LAST_EVENT_OF_JOB, {"of_job": job_id}).scalar_one()
    return last


def queued_at(tx: Connection, job_id: str, before_seq: int) -> float | None:
    """Return when a job last came into the queue before an event: Unix time, None if it never did."""
    at_s: float | None = tx.execute(_QUEUED_AT, {"of_job": job_id, "before": before_seq}).scalar_one()
    return at_s


def attempt_opened_before(tx: Connection, job_id: str, before_seq: int) -> int | None:
    """Return the number of the last attempt of a job that was opened before an event, None if none was."""
    number: int | None = tx.execute(_OPENED, {"of_job": job_id, "before": before_seq}).scalar_one()
    return number
