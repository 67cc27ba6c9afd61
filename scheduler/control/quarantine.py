"""What becomes of a job that the scheduler cannot handle: it is held, and its GPUs are freed on proof as always."""

import logging
from typing import Unpack

from ..model.event import NewEvent
from ..model.job import JobRow
from ..model.states import AfterStop, AttemptState, Desired, JobState
from ..rules.job_step import Hold, hold_step
from ..rules.retry_policy import ExitClass
from ..store.row_by_row import hold_unreadable
from ..store.rows.attempts import AttemptRow
from ..store.rows.jobs import JobColumns
from .job_errors import ERROR, MOST
from .state_cache import WRITER, StateCache

log = logging.getLogger(__name__)


def hold_failing(cache: StateCache, now_s: float) -> None:
    """Hold the jobs with which something went wrong three times in a row, and those that cannot be read.

    One that runs is left running: it has lost nothing yet.
    """
    for job, words in cache.errors.due(now_s).items():
        if job in cache.jobs:
            with cache.about(job, now_s):
                _hold(cache, cache.jobs[job], f"it could not be handled {MOST} times in a row: {words}", now_s)
    cache.write(now_s)
    for job, why in cache.unreadable.items():
        with cache.about(job, now_s):
            _hold_unreadable(cache, job, f"its row in the store cannot be read: {why}", now_s)
    cache.unreadable.clear()


def _hold(cache: StateCache, job: JobRow, cause: str, now_s: float) -> None:
    row = cache.attempts.get(job.id)
    # What its owner wants already stands; else it is held until its owner wants it to run once more.
    columns = JobColumns(desired=Desired.HOLD) if job.desired is Desired.RUN else JobColumns()
    step = hold_step(job, None if row is None else row.state)
    if step is Hold.NOW:
        cache.happens(now_s)
        cache.leave(job.id)
        cache.change_job(job, JobState.HELD, cause, now_s, **columns)
    elif step is Hold.DRAIN and row is not None:
        drain(cache, row, cause, now_s, AfterStop.HOLD, **columns)
    else:
        return
    number = None if row is None else row.number
    cache.tell(NewEvent(ERROR, WRITER, now_s, job.id, number, cause=cause), {})


def drain(
    cache: StateCache, row: AttemptRow, cause: str, now_s: float, after: AfterStop | None, **columns: Unpack[JobColumns]
) -> None:  # fmt: skip
    """Let an attempt drain and its job stop; what becomes of the job then, None if its end tells."""
    cache.change_attempt(row, AttemptState.DRAINING, cause, now_s)
    columns["after_stop"] = after
    cache.change_job(cache.jobs[row.job_id], JobState.STOPPING, cause, now_s, **columns)


def give_up(cache: StateCache, row: AttemptRow, now_s: float) -> None:
    """Free the GPUs of an attempt that is proven gone, and hold its job, with as little as can go wrong."""
    job = cache.jobs[row.job_id]
    cache.is_torn = True  # what the cluster's arrays hold of it is not touched, and read anew
    cache.outside.add(job.id)
    columns = JobColumns(after_stop=None, cause_class=str(ExitClass.AMBIGUOUS), entered_s=now_s)
    after = JobState.CANCELLED if job.desired is Desired.CANCEL else JobState.HELD
    if job.desired is Desired.RUN:
        columns["desired"] = Desired.HOLD
    cause = f"its end could not be handled {MOST} times in a row: {cache.errors.words(job.id)}"
    cache.change_attempt(
        row, AttemptState.RELEASED, cause, now_s, outcome=str(ExitClass.AMBIGUOUS), ended_s=now_s, ends=()
    )
    cache.change_job(job, after, cause, now_s, **columns)
    cache.tell(NewEvent(ERROR, WRITER, now_s, job.id, row.number, cause=cause), {})


def _hold_unreadable(cache: StateCache, job: str, cause: str, now_s: float) -> None:
    event = NewEvent(ERROR, WRITER, now_s, job, cause=cause, fence=cache.fence)
    if cache.parts.store.write(lambda tx: hold_unreadable(tx, event)):
        log.error("job %s is held: %s", job, cause)
