"""A job that its owner wants to be tried again: from its end, or from where it is held, with all its tries."""

from collections.abc import Sequence

from sqlalchemy import Connection, bindparam, update

from ...model.event import NewEvent
from ...model.states import Desired, JobState
from ...rules.job_step import Retry, retry_step
from ..database.schema import job
from .events import append
from .jobs import CHANGE, MANY, WISH, locked_job

CAUSE = "to be tried again, as its owner wants"

_FRESH = {
    **dict.fromkeys(("stops_infra", "stops_resource", "stops_user", "stops_asked", "stops_ambiguous"), 0),
    "no_progress": 0,
    "desired": Desired.RUN,
    "version": job.c.version + 1,
}
_AGAIN = (
    update(job)
    .where(job.c.id == bindparam("at_id"))
    .values(
        **_FRESH, state=JobState.QUEUED, cause=CAUSE, after_stop=None, ended_s=None, not_before_s=0.0,
        entered_s=bindparam("at_s"), wait_s=0.0,  # what it waited before its last run, that run was for
    )
)  # fmt: skip
_FORWARD = (
    update(job)
    .where(job.c.id.in_(bindparam("ids", expanding=True)), job.c.state == JobState.QUEUED)
    .values(not_before_s=bindparam("at_s"))
)
_RELEASE = update(job).where(job.c.id == bindparam("at_id")).values(**_FRESH)


def try_again(tx: Connection, job_id: str, *, at_s: float, writer: str) -> bool:
    """Put a failed job back into the queue, or let one run that is held; with all its tries, as if it had used none.

    No scheduler knows a job that has ended: so this is the one change of a state that is not the scheduler's, and it
    takes the job up as it takes up one that is new. One that is held it lets into the queue itself.

    Args:
        tx: Transaction.
        job_id: The job.
        at_s: Unix time.
        writer: Role that writes it.

    Returns:
        Whether anything was written: not of a job that is to run, or is about to, or ended in another way.

    Raises:
        ValueError: If there is no such job.
    """
    row = locked_job(tx, job_id)
    step, version = retry_step(row), row.version + 1
    if step is Retry.REQUEUE:
        tx.execute(_AGAIN, {"at_id": job_id, "at_s": at_s})
        change = (version, row.state.value, JobState.QUEUED.value)
        append(tx, NewEvent(CHANGE, writer, at_s, job_id, None, *change, cause=CAUSE))
    elif step is Retry.RELEASE:
        tx.execute(_RELEASE, {"at_id": job_id})
        change = (version, row.desired.value, Desired.RUN.value)
        append(tx, NewEvent(WISH, writer, at_s, job_id, None, *change, cause=CAUSE))
    else:
        return False
    return True


def bring_forward(tx: Connection, job_ids: Sequence[str], at_s: float) -> None:
    """Let jobs that wait for a later time be started from now on.

    Args:
        tx: Transaction.
        job_ids: The jobs; those that do not wait stay as they are.
        at_s: Unix time.
    """
    for at in range(0, len(job_ids), MANY):
        tx.execute(_FORWARD, {"ids": job_ids[at : at + MANY], "at_s": at_s})
