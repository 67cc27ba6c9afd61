"""Attempts, step by step: from reserved GPUs to processes, and back to GPUs that are proven free.

`advance_attempts` is the loop over all attempts; the rules of their steps are those of rules/attempts.py.

Source: SPEC K6, K10; docs/nodes.md, Leases.
"""

import logging
import time
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import Unpack

from ...cluster.files.errors import BackendError, error_line
from ...cluster.kernels.structures import uniform
from ..backends.protocol import Attempt, CannotHonourError, RefusedError, call_backend
from ..health.monitor import is_attempt_gone
from ..model.job import SCHEDULER_WRITER, JobRow, NewEvent
from ..model.job_spec import PLAN_VARIABLE, plan_text, stored_job, stored_job_or_default
from ..model.states import AfterStop, AttemptState, Contact, Desired, EndedBy, JobState, Run, Status
from ..rules.attempts import (
    AFTER_REQUEST,
    ENDED_RUNS,
    HURRIED,
    HURRIED_S,
    REQUEST_CAUSE,
    SAVED,
    AttemptOutcome,
    AttemptProgress,
    AttemptStep,
    AttemptView,
    Do,
    ExitClass,
    StopReason,
    attempt_outcome,
    attempt_progress,
    classify_end,
    in_polling_order,
    is_over,
    next_attempt_step,
    poll_turn_of,
)
from ..rules.jobs import state_after_release, state_to_hold
from ..store.attempts import LAUNCH, AttemptRow, get_attempt, starting_checkpoint
from ..store.jobs import JobColumns
from ..store.transitions import hold_unreadable
from .job_errors import ERROR_EVENT, MAX_ERRORS_IN_A_ROW
from .node_checks import NodeChecks
from .seating import held_placement, retire_faulty_members, store_ring_end, survives_without
from .state_cache import StateCache, needs_of, used_tries_of
from .steps import check_step_times, read_last_report

log = logging.getLogger(__name__)

ADVANCE_S = 5.0  # after which the lease is renewed before more attempts are advanced
CLOSE_AGAIN_S = 10.0  # after the backend could not remove what an attempt left
MayStepAgain = bool  # whether an attempt may take another step at once


def advance_attempts(cache: StateCache, now_s: float, jobs: Collection[str] | None = None) -> None:
    """Advance attempts as far as they go, by what their backend reports.

    1. Poll the backend for the status of all of them, and clean up after earlier attempts of the same jobs.
    2. Check the step times of those that run: a hung or slow job may have to stop.
    3. Take one step with each, by the rules of rules/attempts.py; users of one priority take turns. Steps are launch,
       run, stop, cancel, release of the GPUs, and close.
    4. Write what has changed, and continue with step 3 for those that may take another step at once.

    Args:
        cache: The state of the scheduler.
        now_s: The present.
        jobs: Whose attempts; by default all.
    """
    wanted = cache.table.attempts if jobs is None else jobs
    names = {job: cache.table.attempts[job].name for job in wanted if not cache.errors.is_resting(job, now_s)}
    statuses = _poll_statuses(cache, names)
    for row in list(cache.table.earlier) if jobs is None else ():
        _try_step(cache, row, Status(Run.UNREACHABLE), now_s, has_fault=False, is_cut_off=False)
    cache.write(now_s)
    until = time.monotonic() + ADVANCE_S
    faulty, cut_off = ({cache.mirror.holder(gpu) for gpu in gpus} for gpus in (cache.health.faulty, cache.health.down))
    stops = {} if jobs is not None else check_step_times(cache, names, statuses, cut_off, now_s)
    owned = {job: cache.table.jobs[job] for job in names if job in cache.table.jobs}
    # Those without an open job are only to be closed, and go last.
    active = [*in_polling_order(owned.values(), cache.polled), *(job for job in names if job not in owned)]
    reached = set[str]()
    while active:
        again = []
        for at, job in enumerate(active):
            if at and time.monotonic() > until:
                break  # the next cycle begins with the rest, after the renewal of the lease
            reached.add(job)
            row = cache.table.attempts[job]
            status = _known_status(cache, row, statuses.get(names[job], Status(Run.UNREACHABLE)))
            has_fault = job in faulty and not retire_faulty_members(cache, row)
            if _try_step(
                cache, row, status, now_s, has_fault=has_fault, is_cut_off=job in cut_off, verdict=stops.get(job)
            ):
                again.append(job)
        cache.write(now_s)
        active = again
    if jobs is None:
        is_whole = reached | cache.polled.keys() >= names.keys()
        now_polled = {job: poll_turn_of(row) for job, row in owned.items() if job in reached}
        cache.polled = {} if is_whole else cache.polled | now_polled


def _poll_statuses(cache: StateCache, names: Mapping[str, str]) -> dict[str, Status]:
    """Return the backend's status of attempts, by name; each alone if one of them makes the backend fail.

    An error only means that an attempt cannot be reached, and is no fault of its job.
    """
    backend = cache.parts.backend
    try:
        return backend.statuses(tuple(names.values()))
    except BackendError as error:
        log.warning("attempts cannot be polled: %s", error)
        return {}
    except Exception as error:
        log.warning("attempts cannot be polled together: %s", error_line(error))
    statuses = {}
    for name in names.values():
        try:
            statuses[name] = call_backend(backend.status, name)
        except BackendError as error:
            statuses[name] = Status(Run.UNREACHABLE, words=str(error))
    return statuses


def _known_status(cache: StateCache, row: AttemptRow, polled: Status) -> Status:
    """Return the status of an attempt: what leases prove, else what its backend reports."""
    if row.backend != cache.parts.backend_name:  # one backend does not know another's attempts
        words = f"it is known to {row.backend}, not to {cache.parts.backend_name}"
        polled = Status(Run.UNREACHABLE, words=words)
    return status_by_lease(cache, row) or polled


def _try_step(
    cache: StateCache, row: AttemptRow, status: Status, now_s: float, *, has_fault: bool, is_cut_off: bool,
    verdict: StopReason | None = None,
) -> MayStepAgain:  # fmt: skip
    """Take one step with an attempt; if the backend fails, it is tried again in the next cycle."""
    with cache.isolated(row.job_id, now_s, action="polling", step=row.state):
        try:
            if cache.errors.is_failing(row.job_id) and _is_ending(cache, row, status):
                return _end_failing_attempt(cache, row, status, now_s)
            view = _attempt_view(cache, row, status)
            view = view._replace(has_fault=has_fault, is_cut_off=is_cut_off, verdict=verdict)
            before = cache.change_mark()
            may_step_again = _take_step(cache, row, view, now_s)
            _note_good_step(cache, row, status, now_s, has_changed=cache.change_mark() != before)
            return may_step_again
        except BackendError as error:
            log.warning("attempt %s: %s", row.name, error)
    return False


def _note_good_step(cache: StateCache, row: AttemptRow, status: Status, now_s: float, *, has_changed: bool) -> None:
    """Note a step that no error ended, as evidence of whose fault the errors of jobs are."""
    if has_changed:
        cache.errors.note_step(row.job_id, "polling", row.state, now_s)
    # One that is being stopped has not got past its error before it is released: until then it is cancelled again
    # whenever the state was read anew.
    if status.run is not Run.UNREACHABLE and row.state is not AttemptState.DRAINING:
        cache.errors.note_success(row.job_id)


def _take_step(cache: StateCache, row: AttemptRow, view: AttemptView, now_s: float) -> MayStepAgain:
    """Take one step with an attempt."""
    step = next_attempt_step(view, now_s)
    if step.contact is not row.contact:
        cause = view.status.reason or "no answer" if step.contact is Contact.UNKNOWN else "it answers"
        cache.set_contact(row, step.contact, cause, now_s)
        return True
    if step.do is Do.NOTHING:
        return False
    if step.do is Do.LAUNCH:
        return _launch(cache, row, now_s)
    if step.do is Do.CHECK:
        # Where a ring holds no GPU any more, its processes and its scratch folder are removed alone.
        held = held_placement(cache, row) or tuple(replace(share, gpus=()) for share in row.placement)
        checks, job = cache.parts.checks, cache.table.jobs[row.job_id]
        checks.begin(row._replace(placement=held), job, cache.parts.store)
        return False
    if step.do is Do.CANCEL:
        return _cancel(cache, row) and view.status.run is Run.ABSENT
    if step.do is Do.CLOSE:
        return _close_attempt(cache, row, now_s)
    if step.do is Do.RELEASE:
        _release_attempt(cache, row, view.status, now_s)
    else:
        _run_or_drain(cache, row, step, now_s)
        if view.verdict is not None and step.after is view.verdict.after:  # and for no other reason
            log.warning("attempt %s: %s", row.name, step.cause)
            cache.batch.add_event(view.verdict.event, view.verdict.out_of_service)
    return True


def _cancel(cache: StateCache, row: AttemptRow) -> bool:
    """Let the backend stop an attempt, and return whether that is the first time."""
    first = row.name not in cache.cancelled
    call_backend(cache.parts.backend.cancel, row.name, cache.table.jobs[row.job_id].cause)
    cache.cancelled.add(row.name)
    cache.cancelled_s.setdefault(row.name, time.monotonic())
    return first


def _is_proven_gone(cache: StateCache, row: AttemptRow, status: Status) -> bool:
    """Return whether leases or the backend prove that no process of an attempt lives or can start."""
    is_fenced = status.run is Run.LOST and status == status_by_lease(cache, row)
    return is_fenced or call_backend(cache.parts.backend.is_proven_gone, row.name)


def _attempt_view(cache: StateCache, row: AttemptRow, status: Status) -> AttemptView:
    job = cache.table.jobs.get(row.job_id)
    drains = row.state is AttemptState.DRAINING
    checked = cache.parts.checks.status(row, job, status.run)
    return AttemptView(
        desired=Desired.RUN if job is None else job.desired,
        state=row.state,
        opened_s=max(row.opened_s, checked.passed_s),
        status=status,
        is_gone=drains and _is_proven_gone(cache, row, status),
        is_cancelled=row.name in cache.cancelled,
        has_fault=False,
        checks=checked.checks,
        found=checked.found,
        launch_error=cache.launches.last_error(row.name),
    )


def status_by_lease(cache: StateCache, row: AttemptRow) -> Status | None:
    """Return what leases prove of an attempt all of whose ranks ran, None if they prove nothing.

    Nothing of the attempt lives on a node whose lease has run out. The backend has to stop the rest, unless that is a
    ring which goes on. The attempt is over once the agents of all other nodes report nothing of it either.
    """
    if not cache.health.fenced or row.started_s is None or not row.placement:  # it may be torn
        return None
    held = held_placement(cache, row)
    fenced = sorted({share.node for share in held} & cache.health.fenced)
    if row.state is AttemptState.RUNNING and survives_without(cache, row, fenced):
        return None
    if not fenced or row.state not in (AttemptState.RUNNING, AttemptState.DRAINING):
        return None
    reports, cancelled_s = cache.parts.monitor.reports.last(), cache.cancelled_s.get(row.name)
    was_cancelled = cancelled_s is not None and row.name in cache.cancelled
    gone = was_cancelled and is_attempt_gone(row.name, held, cache.health.fenced, reports, cancelled_s or 0.0)
    if row.state is AttemptState.DRAINING and not gone:
        return Status(Run.RUNNING, started_s=row.started_s)  # so that it is cancelled
    words = f"{', '.join(fenced)} was fenced: its lease ran out, so its agent has killed what ran there"
    return Status(Run.LOST, by=EndedBy.NODE_FAULT, words=words, started_s=row.started_s)


def _launch(cache: StateCache, row: AttemptRow, now_s: float) -> MayStepAgain:
    """Let the backend start an attempt; one that it will never start is stopped, and others are tried again."""
    if not cache.launches.is_due(row.name, now_s):
        return False
    try:
        attempt = attempt_to_launch(
            cache.table.jobs[row.job_id], row, _checkpoint_environment(cache, row), cache.parts.checks
        )
        if attempt.seats and not cache.parts.backend.capabilities.runs_rings:
            raise RefusedError(f"the backend {cache.parts.backend_name} has no rings: write `failover: restart`")
        call_backend(cache.parts.backend.launch, attempt, row.placement)
    except (CannotHonourError, RefusedError) as error:
        # Other GPUs, or the same a little later, may do; a program that is not there will not come.
        after = AfterStop.RETRY if isinstance(error, CannotHonourError) else AfterStop.FAIL
        drain(cache, row, str(error), now_s, after)
        return True
    except BackendError as error:
        if cache.launches.record_failure(row.name, str(error), now_s):
            words = f"not launched yet: {error}"
            cache.batch.add_event(NewEvent(LAUNCH, SCHEDULER_WRITER, now_s, row.job_id, row.number, cause=words))
        raise
    cache.launches.forget(row.name)
    if row.state is AttemptState.RESERVED:
        cache.change_attempt(row, AttemptState.LAUNCHED, "launched", now_s)
    return False


def attempt_to_launch(
    job: JobRow, row: AttemptRow, checkpoint_environment: Mapping[str, str], checks: NodeChecks
) -> Attempt:
    """Return what a backend is to start.

    Args:
        job: The job.
        row: Its attempt.
        checkpoint_environment: Environment variables besides those of the job file.
        checks: Of the scheduler; they may travel with the command.
    """
    spec = stored_job(job.spec)
    plan = {} if spec.plan is None else {PLAN_VARIABLE: plan_text(spec.plan)}
    return Attempt(
        row.name,
        job.id,
        row.number,
        checks.command_with_checks(spec),
        spec.folder,
        {**spec.environment, **checkpoint_environment, **checks.make_scratch_environment(spec, row.name), **plan},
        spec.grace_s,
        float("inf") if spec.limit_s is None else spec.limit_s,
        spec.image,
        is_external=spec.external is not None,
        seats=spec.seats,
        backups=spec.backups,
        visible_gpus=spec.visible_gpus,
    )


def _checkpoint_environment(cache: StateCache, row: AttemptRow) -> dict[str, str]:
    """Return the environment variables that name the checkpoint from which an attempt can continue."""
    if row.number == 1:
        return {}
    with cache.parts.store.read() as tx:
        last = starting_checkpoint(tx, row.job_id, row.number)
    return {} if last is None else {"LONGSHORE_CHECKPOINT": last.path}


def _run_or_drain(cache: StateCache, row: AttemptRow, step: AttemptStep, now_s: float) -> None:
    """Let an attempt and its job run, or drain and stop."""
    job = cache.table.jobs[row.job_id]
    if step.do is Do.RUN:
        cache.change_attempt(row, AttemptState.RUNNING, step.cause, now_s, started_s=now_s)
        cache.change_job(job, JobState.RUNNING, step.cause, now_s, after_stop=step.after)
    else:
        drain(cache, row, step.cause, now_s, step.after)


def drain(
    cache: StateCache, row: AttemptRow, cause: str, now_s: float, after: AfterStop | None, **columns: Unpack[JobColumns]
) -> None:  # fmt: skip
    """Drain an attempt and stop its job; `after` is what becomes of the job, None if that depends on its end."""
    cache.change_attempt(row, AttemptState.DRAINING, cause, now_s)
    columns["after_stop"] = after
    cache.change_job(cache.table.jobs[row.job_id], JobState.STOPPING, cause, now_s, **columns)


def _release_attempt(cache: StateCache, row: AttemptRow, status: Status, now_s: float) -> None:
    """Free an attempt's GPUs, and decide the next state of its job."""
    job = cache.table.jobs[row.job_id]
    kept_s = status.progress.get(SAVED)
    report = read_last_report(cache, row, now_s)
    started_s = _started_s(row, status, now_s)
    progress = attempt_progress(report, status.progress, job.reached_step, _run_time_s(row, status, now_s))
    cache.advance_mirror(now_s)
    cache.gpus_freed = True
    cache.launches.forget(row.name)
    store_ring_end(cache, row, now_s)
    outcome = _decide_outcome(cache, job, row, status, progress, now_s)
    outcome = replace(outcome, wait_s=max(outcome.wait_s, cache.parts.checks.retry_wait_s(row)))
    now, desired, stays = state_after_release(job, outcome)
    used = outcome.used
    columns = JobColumns(
        cause_class=str(outcome.exit_class), no_progress=outcome.no_progress, after_stop=None,
        not_before_s=now_s + outcome.wait_s, stops_infra=used.infra, stops_resource=used.resource,
        stops_user=used.user, stops_again=used.again, stops_ambiguous=used.ambiguous, reached_step=progress.step,
    )  # fmt: skip
    if now in (JobState.QUEUED, JobState.HELD):
        columns |= cache.requeue(job.id, kept_s)
        if desired is not None:
            columns["desired"] = desired
        # A cluster file that was changed while it ran may have no room for it: admission reports that.
        if not stays or job.gpus > cache.parts.layout.gpus_for(needs_of(job)):
            cache.withdraw(job.id)
    else:
        cache.finish(job.id)
    cache.change_attempt(
        row, AttemptState.RELEASED, outcome.cause, now_s, outcome=str(outcome.exit_class), started_s=started_s,
        ended_s=now_s, ends=status.ends,
    )  # fmt: skip
    cache.change_job(job, now, outcome.cause, now_s, **columns)
    cache.parts.checks.forget(row)
    if cache.mirror.has(job.id):
        cache.move_to_queue_place(job.id)


def _decide_outcome(
    cache: StateCache, job: JobRow, row: AttemptRow, status: Status, progress: AttemptProgress, now_s: float
) -> AttemptOutcome:
    retry = stored_job_or_default(job.spec).retry
    share = float(uniform(job.submit_seq, row.number, 0))
    if row.started_s is not None:  # A lost attempt may no longer report that it ran.
        status = replace(status, started_s=row.started_s)
    used = (
        used_tries_of(job)
        if _restarts_too_often(cache, row, now_s)
        else progress.tries_still_counted(used_tries_of(job))
    )
    found = attempt_outcome(
        status, job.after_stop, retry.tries(), used, job.no_progress,
        progressed=progress.made_progress, wait_share=share, most_stuck=retry.no_progress,
    )  # fmt: skip
    # The reason for which it was stopped counts for more than how the ranks ended.
    retries = job.after_stop in (AfterStop.RETRY, AfterStop.HUNG)
    retried = retries and found.after in (AfterStop.RETRY, AfterStop.FAIL)
    stopped = found.exit_class is ExitClass.REQUESTED or retried or found.after is job.after_stop is AfterStop.FAIL
    return replace(found, cause=job.cause) if stopped else found


def _restarts_too_often(cache: StateCache, row: AttemptRow, now_s: float) -> bool:
    """Return whether a job has begun so often of late that it is more likely to be broken than to come further."""
    if row.number < HURRIED:
        return False
    with cache.parts.store.read() as tx:
        earlier = get_attempt(tx, row.job_id, row.number - HURRIED + 1)
    return earlier is not None and 0.0 <= now_s - earlier.opened_s < HURRIED_S


def _started_s(row: AttemptRow, status: Status, now_s: float) -> float | None:
    """Return when an attempt was seen to run; if it ended before that, it ran just now for as long as it did.

    So its run time is right, from which that of other jobs is learned, also where the scheduler was away for hours.
    """
    if row.started_s is not None or not status.started_s:
        return row.started_s
    return now_s - _run_time_s(row, status, now_s)


def _run_time_s(row: AttemptRow, status: Status, now_s: float) -> float:
    """Return how long an attempt ran; by the clock of its nodes if it ended before the scheduler polled it."""
    if row.started_s is not None:
        return now_s - row.started_s
    ended_s = max((end.ended_s for end in status.ends), default=0.0)
    return min(max(ended_s - status.started_s, 0.0), now_s - row.opened_s) if status.started_s else 0.0


def _close_attempt(cache: StateCache, row: AttemptRow, now_s: float) -> MayStepAgain:
    """Let the backend forget an attempt; what goes wrong never changes the job's outcome."""
    if now_s < cache.close_after_s.get(row.name, now_s):
        return False
    try:
        call_backend(cache.parts.backend.forget, row.name)
    except BackendError as error:
        cache.close_after_s[row.name] = now_s + CLOSE_AGAIN_S
        if row.cleanup_error:  # reported once, whatever the next error is
            raise
        cache.note_cleanup_error(row, str(error), now_s)
        return False
    cache.cancelled.discard(row.name)
    cache.cancelled_s.pop(row.name, None)
    cache.close_after_s.pop(row.name, None)
    cache.change_attempt(row, AttemptState.CLOSED, row.cause, now_s)
    return False


def hold_failing_jobs(cache: StateCache, now_s: float) -> None:
    """Hold the jobs that failed three times in a row, and those that cannot be read; those that run go on."""
    for job, words in cache.errors.jobs_to_hold(now_s).items():
        if job in cache.table.jobs:
            with cache.isolated(job, now_s):
                cause = f"it could not be handled {MAX_ERRORS_IN_A_ROW} times in a row: {words}"
                _hold_job(cache, cache.table.jobs[job], cause, now_s)
    cache.write(now_s)
    for job, why in cache.table.unreadable.items():
        with cache.isolated(job, now_s):
            cause = f"its row in the store cannot be read: {why}"
            event = NewEvent(ERROR_EVENT, SCHEDULER_WRITER, now_s, job, cause=cause, fence=cache.fence)
            if cache.parts.store.write(partial(hold_unreadable, event=event)):
                log.error("job %s is held: %s", job, cause)
    cache.table.unreadable.clear()


def _hold_job(cache: StateCache, job: JobRow, cause: str, now_s: float) -> None:
    row = cache.table.attempts.get(job.id)
    # A request of its owner remains; else it is held until its owner releases it.
    columns = JobColumns(desired=Desired.HOLD) if job.desired is Desired.RUN else JobColumns()
    state = state_to_hold(job, None if row is None else row.state)
    if state is JobState.HELD:
        cache.advance_mirror(now_s)
        cache.withdraw(job.id)
        cache.change_job(job, state, cause, now_s, **columns)
    elif state is JobState.STOPPING and row is not None:
        drain(cache, row, cause, now_s, AfterStop.HOLD, **columns)
    else:
        return
    number = None if row is None else row.number
    cache.batch.add_event(NewEvent(ERROR_EVENT, SCHEDULER_WRITER, now_s, job.id, number, cause=cause))


def _is_ending(cache: StateCache, row: AttemptRow, status: Status) -> bool:
    """Return whether an attempt of an open job does not run, or is not to: one that runs goes on whatever fails."""
    job = cache.table.jobs.get(row.job_id)
    if job is None:
        return False
    return row.state is not AttemptState.RUNNING or status.run in ENDED_RUNS or job.desired is not Desired.RUN


def _end_failing_attempt(cache: StateCache, row: AttemptRow, status: Status, now_s: float) -> MayStepAgain:
    """End an attempt of a job that keeps failing, by the shortest way.

    One that ran is drained first, and then handled as usual. If that fails too, its GPUs are freed on proof.
    """
    if row.state is AttemptState.RUNNING:
        desired = cache.table.jobs[row.job_id].desired
        cause = REQUEST_CAUSE[desired] if desired in AFTER_REQUEST else classify_end(status)[1]
        drain(cache, row, cause, now_s, AFTER_REQUEST.get(desired))
        return True
    if row.state is not AttemptState.DRAINING or status.run is Run.UNREACHABLE:
        return False
    over = is_over(status.run, is_cancelled=row.name in cache.cancelled)
    if over and _is_proven_gone(cache, row, status):
        release_and_hold_job(cache, row, now_s)
        return True
    _cancel(cache, row)
    return False


def release_and_hold_job(cache: StateCache, row: AttemptRow, now_s: float) -> None:
    """Free the GPUs of an attempt that is proven gone, and hold its job, with as little as can go wrong."""
    job = cache.table.jobs[row.job_id]
    cache.is_incomplete = True  # the mirror still has it, until the store is read again
    cache.table.outside.add(job.id)
    columns = JobColumns(after_stop=None, cause_class=str(ExitClass.AMBIGUOUS), entered_s=now_s)
    after = JobState.CANCELLED if job.desired is Desired.CANCEL else JobState.HELD
    if job.desired is Desired.RUN:
        columns["desired"] = Desired.HOLD
    cause = f"its end could not be handled {MAX_ERRORS_IN_A_ROW} times in a row: {cache.errors.last_error(job.id)}"
    cache.change_attempt(
        row, AttemptState.RELEASED, cause, now_s, outcome=str(ExitClass.AMBIGUOUS), ended_s=now_s, ends=()
    )
    cache.change_job(job, after, cause, now_s, **columns)
    cache.batch.add_event(NewEvent(ERROR_EVENT, SCHEDULER_WRITER, now_s, job.id, row.number, cause=cause))
