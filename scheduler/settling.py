"""Attempts, step by step: from reserved GPUs to processes, and back to free GPUs."""

import logging
from dataclasses import replace
from functools import partial

from sqlalchemy import Connection

from ..cluster.errors import BackendError
from ..cluster.random import uniform
from .backends.protocol import Attempt, CannotHonourError, RefusedError, Run, Status
from .book import WRITER, Book
from .decide import Do, Seen, Step, next_step
from .exits import ExitClass, Outcome, outcome_of
from .job_file import JobFile
from .recall import used_by
from .states import AfterStop, AttemptState, Contact, Desired, JobState
from .store.attempts import AttemptRow, change_attempt, release, set_contact
from .store.jobs import JobColumns, JobRow, change_job

log = logging.getLogger(__name__)

AFTER: dict[AfterStop, JobState] = {
    AfterStop.RETRY: JobState.QUEUED,
    AfterStop.HOLD: JobState.HELD,
    AfterStop.SUCCEED: JobState.SUCCEEDED,
    AfterStop.FAIL: JobState.FAILED,
    AfterStop.CANCEL: JobState.CANCELLED,
}


def attempt_name(row: AttemptRow) -> str:
    """Return what a backend knows an attempt by."""
    return f"ls-{row.job_id}-{row.number}"


def attempt_of(job: JobRow, row: AttemptRow) -> Attempt:
    """Return what a backend is asked to start."""
    spec = JobFile.model_validate(job.spec)
    limit_s = float("inf") if spec.limit_s is None else spec.limit_s
    return Attempt(
        attempt_name(row),
        job.id,
        row.number,
        spec.command,
        spec.folder,
        spec.environment,
        spec.grace_s,
        limit_s,
        spec.image,
    )


def settle(book: Book, now_s: float) -> None:
    """Take every attempt as far as it goes."""
    names = {job: attempt_name(row) for job, row in book.attempts.items()}
    try:
        statuses = book.parts.backend.statuses(tuple(names.values()))
    except BackendError as error:
        log.warning("attempts cannot be seen: %s", error)
        statuses = {}
    # In the order of submission, and those without an open job, which only have to be closed, last.
    for job in sorted(names, key=lambda job: book.jobs[job].submit_seq if job in book.jobs else 1 << 62):
        status = statuses.get(names[job], Status(Run.UNREACHABLE))
        while (row := book.attempts.get(job)) is not None and _step(book, row, status, now_s):
            pass


def _step(book: Book, row: AttemptRow, status: Status, now_s: float) -> bool:
    """Take one step with an attempt, and return whether another may follow at once."""
    step = next_step(_seen(book, row, status), now_s)
    if step.contact is not row.contact:
        cause = "no answer" if step.contact is Contact.UNKNOWN else "it answers"
        book.write(partial(_set_contact, row=row, contact=step.contact, at_s=now_s, cause=cause))
        book.read_again(row.job_id)
        return True
    if step.do is Do.NOTHING:
        return False
    if step.do is Do.LAUNCH:
        return _launch(book, row, now_s)
    if step.do is Do.CANCEL:
        book.parts.backend.cancel(attempt_name(row), book.jobs[row.job_id].cause)
        return False
    if step.do is Do.CLOSE:
        return _close(book, row, now_s)
    if step.do is Do.RELEASE:
        _release(book, row, status, now_s)
    else:
        _change_both(book, row, step, now_s)
    return True


def _seen(book: Book, row: AttemptRow, status: Status) -> Seen:
    job = book.jobs.get(row.job_id)
    drains = row.state is AttemptState.DRAINING
    return Seen(
        desired=Desired.RUN if job is None else job.desired,
        state=row.state,
        opened_s=row.opened_s,
        status=status,
        is_gone=drains and book.parts.backend.released(attempt_name(row)),
        has_fault=bool(book.down) and not set(book.down).isdisjoint(book.parts.layout.numbers(row.placement)),
    )


def _set_contact(tx: Connection, fence: int, *, row: AttemptRow, contact: Contact, at_s: float, cause: str) -> None:
    set_contact(tx, fence, row, contact, at_s=at_s, cause=cause, writer=WRITER)


def _launch(book: Book, row: AttemptRow, now_s: float) -> bool:
    """Ask the backend to start an attempt; one that it will never start is stopped."""
    try:
        book.parts.backend.launch(attempt_of(book.jobs[row.job_id], row), row.placement)
    except (CannotHonourError, RefusedError) as error:
        _change_both(book, row, Step(Do.STOP, str(error), AfterStop.FAIL), now_s)
        return True
    except BackendError as error:
        log.warning("attempt %s: %s", attempt_name(row), error)
        return False
    if row.state is AttemptState.RESERVED:
        book.write(partial(_move, row=row, now=AttemptState.LAUNCHED, at_s=now_s, cause="launched"))
        book.read_again(row.job_id)
    return False


def _move(tx: Connection, fence: int, *, row: AttemptRow, now: AttemptState, at_s: float, cause: str) -> None:
    times = {AttemptState.RUNNING: {"started_s": at_s}}.get(now, {})
    change_attempt(
        tx, fence, row.job_id, row.number, row.state, now, at_s=at_s, cause=cause, writer=WRITER, **times,  # type: ignore[arg-type]
    )  # fmt: skip


def _change_both(book: Book, row: AttemptRow, step: Step, now_s: float) -> None:
    """Let an attempt and its job run, or drain and stop."""
    job, runs = book.jobs[row.job_id], step.do is Do.RUN
    now = JobState.RUNNING if runs else JobState.STOPPING

    def write(tx: Connection, fence: int) -> None:
        attempt_now = AttemptState.RUNNING if runs else AttemptState.DRAINING
        _move(tx, fence, row=row, now=attempt_now, at_s=now_s, cause=step.cause)
        change_job(
            tx, fence, job.id, job.state, now, version=job.version, at_s=now_s, cause=step.cause, writer=WRITER,
            after_stop=step.after,
        )  # fmt: skip

    book.write(write)
    book.read_again(job.id)


def _close(book: Book, row: AttemptRow, now_s: float) -> bool:
    """Let the backend forget an attempt; what goes wrong never changes the job's outcome."""
    try:
        book.parts.backend.forget(attempt_name(row))
    except BackendError as error:
        log.warning("attempt %s is not cleaned up: %s", attempt_name(row), error)
        return False
    book.write(partial(_move, row=row, now=AttemptState.CLOSED, at_s=now_s, cause=row.cause))
    book.attempts.pop(row.job_id, None)
    return False


def _release(book: Book, row: AttemptRow, status: Status, now_s: float) -> None:
    """Free an attempt's GPUs, and settle what becomes of its job."""
    job = book.jobs[row.job_id]
    kept_s = status.progress.get("saved_s")
    book.happens(now_s)
    outcome = _outcome(job, row, status, progressed=bool(kept_s))
    state = AFTER[outcome.after]
    columns = _columns(outcome, now_s)
    if outcome.after in (AfterStop.RETRY, AfterStop.HOLD):
        book.live.stop(job.id, kept_s)
        back = book.live.standing(job.id)
        columns |= JobColumns(
            saved_s=back.saved_s, guess_s=back.guess_s, wait_s=back.wait_s, entered_s=back.entered_s
        )  # fmt: skip
        if outcome.after is AfterStop.HOLD or outcome.wait_s > 0.0:
            book.live.withdraw(job.id)
            book.outside.add(job.id)
    else:
        book.live.finish(job.id)

    def write(tx: Connection, fence: int) -> None:
        release(
            tx, fence, row.job_id, row.number, at_s=now_s, cause=outcome.cause, writer=WRITER,
            outcome=str(outcome.exit_class), ended_s=now_s,
        )  # fmt: skip
        change_job(
            tx, fence, job.id, job.state, state, version=job.version, at_s=now_s, cause=outcome.cause, writer=WRITER,
            **columns,
        )  # fmt: skip

    book.write(write)
    book.read_again(job.id)


def _columns(outcome: Outcome, now_s: float) -> JobColumns:
    used = outcome.used
    return JobColumns(
        cause_class=str(outcome.exit_class), no_progress=outcome.no_progress, after_stop=None,
        not_before_s=now_s + outcome.wait_s, stops_infra=used.infra, stops_resource=used.resource,
        stops_user=used.user, stops_asked=used.asked, stops_ambiguous=used.ambiguous,
    )  # fmt: skip


def _outcome(job: JobRow, row: AttemptRow, status: Status, *, progressed: bool) -> Outcome:
    allowed = JobFile.model_validate(job.spec).retry.tries()
    share = float(uniform(job.submit_seq, row.number, 0))
    found = outcome_of(
        status, job.after_stop, allowed, used_by(job), job.no_progress, progressed=progressed, wait_share=share
    )
    # Who asked for the end knows more of why than how the ranks took it.
    return replace(found, cause=job.cause) if found.exit_class is ExitClass.ASKED else found
