"""What becomes of a job that the scheduler cannot handle: it is held, and its GPUs are freed on proof as always."""

import logging
from typing import Unpack

from ..model.event import NewEvent
from ..model.job import JobRow
from ..model.states import AfterStop, AttemptState, Desired, JobState
from ..rules.retry_policy import ExitClass
from ..store.row_by_row import hold_unreadable
from ..store.rows.attempts import AttemptRow
from ..store.rows.jobs import JobColumns
from .job_errors import ERROR, MOST
from .state_cache import WRITER, Book

log = logging.getLogger(__name__)


def hold_failing(book: Book, now_s: float) -> None:
    """Hold the jobs with which something went wrong three times in a row, and those that cannot be read.

    One that runs is left running: it has lost nothing yet.
    """
    for job, words in book.errors.due(now_s).items():
        if job in book.jobs:
            with book.about(job, now_s):
                _hold(book, book.jobs[job], f"it could not be handled {MOST} times in a row: {words}", now_s)
    book.write(now_s)
    for job, why in book.unreadable.items():
        with book.about(job, now_s):
            _hold_unreadable(book, job, f"its row in the store cannot be read: {why}", now_s)
    book.unreadable.clear()


def _hold(book: Book, job: JobRow, cause: str, now_s: float) -> None:
    row = book.attempts.get(job.id)
    # What its owner wants already stands; else it is held until its owner wants it to run once more.
    columns = JobColumns(desired=Desired.HOLD) if job.desired is Desired.RUN else JobColumns()
    if job.state is JobState.QUEUED:
        book.happens(now_s)
        book.leave(job.id)
        book.change_job(job, JobState.HELD, cause, now_s, **columns)
    elif row is not None and row.state in (AttemptState.RESERVED, AttemptState.LAUNCHED):
        drain(book, row, cause, now_s, AfterStop.HOLD, **columns)
    else:
        return
    number = None if row is None else row.number
    book.tell(NewEvent(ERROR, WRITER, now_s, job.id, number, cause=cause), {})


def drain(
    book: Book, row: AttemptRow, cause: str, now_s: float, after: AfterStop | None, **columns: Unpack[JobColumns]
) -> None:  # fmt: skip
    """Let an attempt drain and its job stop; what becomes of the job then, None if its end tells."""
    book.change_attempt(row, AttemptState.DRAINING, cause, now_s)
    columns["after_stop"] = after
    book.change_job(book.jobs[row.job_id], JobState.STOPPING, cause, now_s, **columns)


def give_up(book: Book, row: AttemptRow, now_s: float) -> None:
    """Free the GPUs of an attempt that is proven gone, and hold its job, with as little as can go wrong."""
    job = book.jobs[row.job_id]
    book.is_torn = True  # what the cluster's arrays hold of it is not touched, and read anew
    book.outside.add(job.id)
    columns = JobColumns(after_stop=None, cause_class=str(ExitClass.AMBIGUOUS), entered_s=now_s)
    after = JobState.CANCELLED if job.desired is Desired.CANCEL else JobState.HELD
    if job.desired is Desired.RUN:
        columns["desired"] = Desired.HOLD
    cause = f"its end could not be handled {MOST} times in a row: {book.errors.words(job.id)}"
    book.change_attempt(
        row, AttemptState.RELEASED, cause, now_s, outcome=str(ExitClass.AMBIGUOUS), ended_s=now_s, ends=()
    )
    book.change_job(job, after, cause, now_s, **columns)
    book.tell(NewEvent(ERROR, WRITER, now_s, job.id, row.number, cause=cause), {})


def _hold_unreadable(book: Book, job: str, cause: str, now_s: float) -> None:
    event = NewEvent(ERROR, WRITER, now_s, job, cause=cause, fence=book.fence)
    if book.parts.store.write(lambda tx: hold_unreadable(tx, event)):
        log.error("job %s is held: %s", job, cause)
