"""Attempts and the GPUs that they hold. A GPU has one reservation at most, whoever asks for it."""

from collections.abc import Collection, Mapping
from functools import cache, partial
from typing import NamedTuple, TypedDict, Unpack

from sqlalchemy import Connection, Executable, bindparam, insert, select, update

from ..backends.protocol import Placement
from ..states import ATTEMPT_CHANGES, AttemptState, Contact, JobState
from .errors import StaleWriteError
from .events import NewEvent, append
from .jobs import JobRow, change_job
from .leases import FENCED, check_fence
from .reservations import free, reserve
from .schema import attempt

CHANGE, CONTACT = "attempt", "contact"  # kinds of events


class Opening(NamedTuple):
    """What an attempt begins with."""

    backend: str
    placement: Placement
    slowdown: float  # run time over work on the placement
    overhead_s: float  # restart cost at its begin


class AttemptRow(NamedTuple):
    """An attempt as the store holds it; the columns of the table say what each field is."""

    job_id: str
    number: int
    state: AttemptState
    version: int
    backend: str
    placement: Placement
    slowdown: float
    overhead_s: float
    opened_s: float
    started_s: float | None
    ended_s: float | None
    contact: Contact
    contact_since_s: float
    outcome: str
    cause: str
    cleanup_error: str


class AttemptColumns(TypedDict, total=False):
    """What can change with an attempt's state."""

    started_s: float
    ended_s: float
    outcome: str
    cleanup_error: str


_INSERT = insert(attempt)
_ROWS = select(*(attempt.c[name] for name in AttemptRow._fields)).order_by(attempt.c.job_id, attempt.c.number)
_OF_JOB = _ROWS.where(attempt.c.job_id == bindparam("of_job"))
_ONE = _OF_JOB.where(attempt.c.number == bindparam("at_number"))
_UNCLOSED = _ROWS.where(attempt.c.state.in_(sorted(set(AttemptState) - {AttemptState.CLOSED})))


def get_attempt(tx: Connection, job_id: str, number: int) -> AttemptRow | None:
    """Return an attempt, None if there is none."""
    row = tx.execute(_ONE, {"of_job": job_id, "at_number": number}).first()
    return None if row is None else AttemptRow._make(row)


def attempts_of(tx: Connection, job_id: str) -> list[AttemptRow]:
    """Return all attempts of a job in their order."""
    return [AttemptRow._make(row) for row in tx.execute(_OF_JOB, {"of_job": job_id})]


def unclosed_attempts(tx: Connection) -> list[AttemptRow]:
    """Return all attempts that still hold something: GPUs, or what they left at the backend."""
    return [AttemptRow._make(row) for row in tx.execute(_UNCLOSED)]


def open_attempt(
    tx: Connection, fence: int, job: JobRow, opening: Opening, *, at_s: float, cause: str, writer: str
) -> int:
    """Start a job: reserve all its GPUs, add its next attempt, and change it from QUEUED to STARTING.

    Args:
        tx: Transaction.
        fence: Token of the scheduler's lease.
        job: As it was read, queued.
        opening: What the attempt begins with.
        at_s: Unix time.
        cause: Why, for people.
        writer: Role that writes it.

    Returns:
        The number of the attempt; the job's version is the next one.

    Raises:
        ValueError: If the placement has not as many GPUs as the job asks for, or the job does not wait.
        FencedError: If another scheduler has taken over.
        StaleWriteError: If the job is not as it was read.
        TakenError: If one of the GPUs is reserved.
    """
    gpus = sum(len(share.gpus) for share in opening.placement)
    if gpus != job.gpus:
        raise ValueError(f"the placement of job {job.id} has {gpus} GPUs, it asks for {job.gpus}")
    number, now = job.attempt + 1, JobState.STARTING
    change = partial(change_job, version=job.version, at_s=at_s, cause=cause, writer=writer, attempt=number)
    with tx.begin_nested():  # a caller that catches an error and goes on has none of it
        change(tx, fence, job.id, job.state, now)
        tx.execute(_INSERT, _first_row(job.id, number, opening, at_s))
        reserve(tx, job.id, number, opening.placement, at_s)
        append(
            tx,
            NewEvent(CHANGE, writer, at_s, job.id, number, 1, "", AttemptState.RESERVED.value, fence, cause),
        )
    return number


def change_attempt(
    tx: Connection,
    fence: int,
    job_id: str,
    number: int,
    was: AttemptState,
    now: AttemptState,
    *,
    at_s: float,
    cause: str,
    writer: str,
    **columns: Unpack[AttemptColumns],
) -> None:
    """Change an attempt's state, with what else changes by it, and add the event.

    Args:
        tx: Transaction.
        fence: Token of the scheduler's lease.
        job_id: The job.
        number: Of the attempt.
        was: Its state as it was read; it never comes back to one, so this is condition enough.
        now: Its next state, not RELEASED: that is what `release` is for.
        at_s: Unix time.
        cause: Why, for people.
        writer: Role that writes it.
        **columns: Other columns to set.

    Raises:
        ValueError: If the change is not legal.
        FencedError: If another scheduler has taken over.
        StaleWriteError: If the attempt is not in that state.
    """
    if now is AttemptState.RELEASED:
        raise ValueError("an attempt is released with its GPUs; use release")
    _change(tx, fence, job_id, number, was, now, NewEvent(CHANGE, writer, at_s, cause=cause), columns)


def release(
    tx: Connection,
    fence: int,
    job_id: str,
    number: int,
    *,
    at_s: float,
    cause: str,
    writer: str,
    quarantine: Collection[str] = (),
    **columns: Unpack[AttemptColumns],
) -> None:
    """Release an attempt that was draining, whose processes are proven gone, and free its GPUs.

    Args:
        tx: Transaction.
        fence: Token of the scheduler's lease.
        job_id: The job.
        number: Of the attempt.
        at_s: Unix time.
        cause: Why, for people.
        writer: Role that writes it.
        quarantine: Nodes whose GPUs are not freed, since what ran there may still run.
        **columns: Other columns to set.

    Raises:
        FencedError: If another scheduler has taken over.
        StaleWriteError: If the attempt is not draining.
    """
    entry = NewEvent(CHANGE, writer, at_s, cause=cause, data={"quarantine": sorted(quarantine)} if quarantine else None)
    _change(tx, fence, job_id, number, AttemptState.DRAINING, AttemptState.RELEASED, entry, columns)
    free(tx, job_id, number, quarantine, at_s)


def set_contact(
    tx: Connection, fence: int, row: AttemptRow, contact: Contact, *, at_s: float, cause: str, writer: str
) -> None:
    """Write down whether an attempt can be reached, which changes nothing else.

    Raises:
        FencedError: If another scheduler has taken over.
        StaleWriteError: If the attempt is not as it was read.
    """
    version = _update(tx, fence, row.job_id, row.number, row.state, {"contact": contact, "contact_since_s": at_s})
    change = (row.contact.value, contact.value, fence, cause)
    append(tx, NewEvent(CONTACT, writer, at_s, row.job_id, row.number, version, *change))


def _first_row(job_id: str, number: int, opening: Opening, at_s: float) -> dict[str, object]:
    return {
        "job_id": job_id,
        "number": number,
        "state": AttemptState.RESERVED,
        "version": 1,
        "opened_s": at_s,
        "contact": Contact.OK,
        "contact_since_s": at_s,
        **dict.fromkeys(("outcome", "cause", "cleanup_error"), ""),
        **opening._asdict(),
    }


def _change(
    tx: Connection,
    fence: int,
    job_id: str,
    number: int,
    was: AttemptState,
    now: AttemptState,
    entry: NewEvent,
    columns: AttemptColumns,
) -> None:
    if now not in ATTEMPT_CHANGES[was]:
        raise ValueError(f"an attempt never goes from {was} to {now}")
    version = _update(tx, fence, job_id, number, was, {"state": now, "cause": entry.cause, **columns})
    changed = entry._replace(job_id=job_id, number=number, version=version, was=was.value, now=now.value, fence=fence)
    append(tx, changed)


def _update(
    tx: Connection, fence: int, job_id: str, number: int, state: AttemptState, values: Mapping[str, object]
) -> int:
    """Set columns of an attempt that is in a state, and return its next version."""
    parameters = {"of_job": job_id, "at_number": number, "at_state": state, "fence": fence, **values}
    version: int | None = tx.execute(_update_of(tuple(values)), parameters).scalar_one_or_none()
    if version is None:
        check_fence(tx, fence)
        raise StaleWriteError(f"attempt {number} of job {job_id} is not {state}")
    return version


@cache
def _update_of(names: tuple[str, ...]) -> Executable:
    """Return the statement that sets these columns; SQLAlchemy takes longer to build one than to run it."""
    at = (
        attempt.c.job_id == bindparam("of_job"),
        attempt.c.number == bindparam("at_number"),
        attempt.c.state == bindparam("at_state"),
        FENCED,
    )
    values = {"version": attempt.c.version + 1, **{name: bindparam(name) for name in names}}
    return update(attempt).where(*at).values(values).returning(attempt.c.version)
