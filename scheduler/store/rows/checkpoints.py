"""Checkpoints of jobs. What an older attempt says no longer counts once a later one has begun.

Source: SPEC K4; docs/steps.md.
"""

from typing import NamedTuple

from sqlalchemy import Connection, bindparam, delete, select, update

from ...model.event import NewEvent
from ..database.errors import OlderAttemptError
from ..database.schema import checkpoint, job
from .events import append
from .upsert import put_all

SAVED = "checkpoint"  # kind of events
MOST_KEPT = 100  # of one job, the newest
MOST_TOLD = 10_000  # events of the checkpoints of one job
LAST_WORDS = "; further checkpoints of this job are kept without an event"


class CheckpointRow(NamedTuple):
    """A checkpoint."""

    job_id: str
    number: int  # of the attempt that wrote it
    step: int  # the last one that it holds
    path: str  # or URL
    digest: str  # in hexadecimal, "" for none
    at_s: float  # Unix time at which it was registered


_ROWS = (
    select(*(checkpoint.c[name] for name in CheckpointRow._fields))
    .where(checkpoint.c.job_id == bindparam("of_job"))
    .order_by(checkpoint.c.number.desc(), checkpoint.c.step.desc())
    .limit(bindparam("most"))
)
_ROWS_BEFORE = _ROWS.where(checkpoint.c.number < bindparam("before"))
# FOR NO KEY UPDATE: on PostgreSQL no attempt begins until the transaction ends.
_JOB = (
    select(job.c.attempt, job.c.checkpoints_told).where(job.c.id == bindparam("of_job")).with_for_update(key_share=True)
)
# Counted here and not among the events: there, each registration would read as many as there are.
_TELL = update(job).where(job.c.id == bindparam("of_job")).values(checkpoints_told=job.c.checkpoints_told + 1)
_AT = (
    checkpoint.c.job_id == bindparam("of_job"),
    checkpoint.c.number == bindparam("at_number"),
    checkpoint.c.step == bindparam("at_step"),
)
_ONE = select(*(checkpoint.c[name] for name in CheckpointRow._fields)).where(*_AT)
_DELETE = delete(checkpoint).where(*_AT)


def register(
    tx: Connection, row: CheckpointRow, *, writer: str, fence: int | None = None, most_told: int = MOST_TOLD
) -> bool:
    """Write down a checkpoint, in place of one that the same attempt has of the same step.

    An event tells of it, unless there are as many of the job as are kept: what a job says must not fill the disk.

    Args:
        tx: Transaction.
        row: The checkpoint.
        writer: Role that writes it.
        fence: Token of its lease.
        most_told: Events of the checkpoints of one job.

    Returns:
        Whether it was not known.

    Raises:
        OlderAttemptError: If a later attempt of the job has begun.
        ValueError: If the job has no such attempt.
    """
    last, told = tx.execute(_JOB, {"of_job": row.job_id}).one_or_none() or (0, 0)
    if not 0 < row.number <= last:
        raise ValueError(f"job {row.job_id} has no attempt {row.number}")
    if row.number < last:
        raise OlderAttemptError(f"attempt {last} of job {row.job_id} has begun; attempt {row.number} does not count")
    known = tx.execute(_ONE, {"of_job": row.job_id, "at_number": row.number, "at_step": row.step}).first()
    if known is not None and (known.path, known.digest) == (row.path, row.digest):
        return False
    put_all(tx, checkpoint, [row._asdict()])
    if told < most_told:
        tx.execute(_TELL, {"of_job": row.job_id})
        data = {"step": row.step, "path": row.path, "digest": row.digest}
        cause = f"step {row.step} is saved at {row.path}" + (LAST_WORDS if told == most_told - 1 else "")
        append(tx, NewEvent(SAVED, writer, row.at_s, row.job_id, row.number, fence=fence, cause=cause, data=data))
    for old in checkpoints_of(tx, row.job_id, MOST_KEPT + 10)[MOST_KEPT:]:
        tx.execute(_DELETE, {"of_job": old.job_id, "at_number": old.number, "at_step": old.step})
    return True


def checkpoints_of(tx: Connection, job_id: str, most: int = MOST_KEPT) -> list[CheckpointRow]:
    """Return the checkpoints of a job, the newest first."""
    return [CheckpointRow._make(row) for row in tx.execute(_ROWS, {"of_job": job_id, "most": most})]


def latest_before(tx: Connection, job_id: str, number: int) -> CheckpointRow | None:
    """Return the checkpoint that an attempt begins with: the newest of those before it, which nobody changes any more.

    Args:
        tx: Transaction.
        job_id: The job.
        number: Of the attempt.
    """
    row = tx.execute(_ROWS_BEFORE, {"of_job": job_id, "before": number, "most": 1}).first()
    return None if row is None else CheckpointRow._make(row)
