"""Rows that are read one by one where not all of them can be read: one that makes no sense hides no other."""

from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeVar

from sqlalchemy import Connection, select, update

from ..model.event import NewEvent
from ..model.job import JobRow
from ..model.states import FINAL, AttemptState, Desired, JobState
from .database import schema
from .rows.attempts import AttemptRow, get_attempt, unclosed_attempts
from .rows.events import append, append_for_jobs
from .rows.jobs import CHANGE as JOB_CHANGE
from .rows.jobs import get_job, get_jobs, open_jobs
from .rows.leases import check_fence

RowT = TypeVar("RowT")
KeyT = TypeVar("KeyT")
NO_SENSE = (ValueError, LookupError, TypeError)  # what types of columns raise for a value that is none of theirs

_OPEN_JOBS = (
    select(schema.job.c.id)
    .where(schema.job.c.state.in_(sorted(set(JobState) - FINAL)))
    .order_by(schema.job.c.submit_seq)
)
_UNCLOSED = (
    select(schema.attempt.c.job_id, schema.attempt.c.number)
    .where(schema.attempt.c.state.in_(sorted(set(AttemptState) - {AttemptState.CLOSED})))
    .order_by(schema.attempt.c.job_id, schema.attempt.c.number)
)


class Jobs(NamedTuple):
    """Jobs as far as they can be read."""

    rows: list[JobRow]
    unreadable: dict[str, str]  # why, by the ids of the others


def open_jobs_apart(tx: Connection) -> Jobs:
    """Return all jobs that are in no final state, in the order of submission."""
    return Jobs(*_apart(lambda: open_jobs(tx), lambda: tx.execute(_OPEN_JOBS).scalars(), lambda job: get_job(tx, job)))


def jobs_apart(tx: Connection, job_ids: list[str]) -> Jobs:
    """Return those of some jobs that there are, in the order of submission."""
    rows, unreadable = _apart(lambda: get_jobs(tx, job_ids), lambda: job_ids, lambda job: get_job(tx, job))
    return Jobs(sorted(rows, key=lambda row: row.submit_seq), unreadable)


def unclosed_attempts_apart(tx: Connection) -> tuple[list[AttemptRow], dict[tuple[str, int], str]]:
    """Return all attempts that still hold something, and why others cannot be read, by job and number."""
    return _apart(
        lambda: unclosed_attempts(tx),
        lambda: [(row.job_id, row.number) for row in tx.execute(_UNCLOSED)],
        lambda key: get_attempt(tx, *key),
    )


def hold_unreadable(tx: Connection, event: NewEvent) -> bool:
    """Hold a job that waits and cannot be read; return whether it waited.

    Args:
        tx: Transaction.
        event: Of the job, with the cause, to be stored beside that of the change.

    Raises:
        FencedError: If another scheduler has taken over.
    """
    check_fence(tx, event.fence or 0)
    job = schema.job
    at = (job.c.id == event.job_id, job.c.state == JobState.QUEUED)
    values = {"state": JobState.HELD, "desired": Desired.HOLD, "cause": event.cause, "version": job.c.version + 1}
    if tx.execute(update(job).where(*at).values(values)).rowcount != 1:
        return False
    was, now = JobState.QUEUED.value, JobState.HELD.value
    append_for_jobs(tx, [event._replace(kind=JOB_CHANGE, was=was, now=now)])
    append(tx, event)
    return True


def _apart(
    read_all: Callable[[], list[RowT]], keys: Callable[[], Iterable[KeyT]], read: Callable[[KeyT], RowT | None]
) -> tuple[list[RowT], dict[KeyT, str]]:  # fmt: skip
    try:
        return read_all(), {}
    except NO_SENSE:
        rows, unreadable = list[RowT](), dict[KeyT, str]()
    for key in list(keys()):
        try:
            row = read(key)
        except NO_SENSE as error:
            unreadable[key] = f"{type(error).__name__}: {error}"
        else:
            rows.extend([] if row is None else [row])
    return rows, unreadable
