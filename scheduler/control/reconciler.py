"""The page of the live scheduler: `Reconciler.tick` takes the lease, and `Reconciler._run_cycle` schedules.

Observed state and requested state come closer with each cycle, until they are the same. Admission to the queue follows
the rules of rules/jobs.py, and its order is that of `queue_key` over the rows of the store: after any change it is the
same as if the store were read again.

Source: SPEC K6 to K8, R8, R10; docs/scheduler.md.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import numpy as np
from sqlalchemy import Connection

from ...cluster.files.processes import is_proven_dead
from ..mirror.vacant_seats import fit_to_shape
from ..model.job import JobRow
from ..model.states import JobState
from ..placement.placer import Decision
from ..policy_host.messages import StoredRecord, decision_record_of
from ..rules.attempts import ExitClass
from ..rules.jobs import JobDo, JobStep, Quota, next_job_step
from ..store.attempts import NewAttempt, NewDecision, held_gpus
from ..store.database import FencedError, StaleWriteError, TakenError
from ..store.events import (
    NO_LEASE_ROW,
    SCHEDULER_LEASE,
    LeaseRow,
    acquire_lease,
    database_now_s,
    lease_row,
    release_lease,
    renew_lease,
)
from ..store.jobs import JobColumns
from .adoption import DISCARD_S, LIST_AGAIN_S, ExternalJobs, UnknownAttempts
from .attempt_driver import advance_attempts, hold_failing_jobs
from .job_errors import JobErrors, SpoiledError
from .seating import Seating
from .state_cache import (
    Parts,
    StateCache,
    job_request_of,
    needs_of,
    queue_key,
    queue_rank_of,
    waiting_progress,
)

log = logging.getLogger(__name__)

LEASE_S, RENEW_S = 15.0, 5.0
MAX_CYCLES = 10  # of one tick, besides one for each job that failed in the cycle before and rests now
MAX_CYCLES_S = 5.0  # after which the next tick continues; the lease lasts longer
MEASURING = "a ring is to have a GPU, and the links to it are being measured"  # for a second at most
RELEASE_SPACING_S = 1e-6  # between jobs that are released in one cycle, so that their order is that of the queue
PLACE_S = 0.5  # after which the jobs that were placed are launched before more are placed


@dataclass(frozen=True, slots=True)
class ReconcilerTiming:
    """Clocks and periods of a scheduler, besides the clock of its jobs."""

    passed_s: Callable[[], float] = time.monotonic
    store_s: Callable[[Connection], float] = database_now_s  # Unix time, by the store's machine
    place_s: float = PLACE_S
    discard_s: float = DISCARD_S
    list_again_s: float = LIST_AGAIN_S


DEFAULT_TIMING = ReconcilerTiming()


class Reconciler:
    """One scheduler of a store. At any time one scheduler of a store leads.

    Args:
        parts: What it works with.
        timing: Its clocks and periods.
    """

    def __init__(self, parts: Parts, timing: ReconcilerTiming = DEFAULT_TIMING) -> None:
        self.parts, self._timing = parts, timing
        self.cache: StateCache | None = None  # None while it does not lead, or has to read the store again
        self._fence: int | None = None  # token of its lease, None while it does not lead
        self._renew_at_s = 0.0
        # The lease of another scheduler, and the time since which it has not been renewed.
        self._watched, self._watched_s = NO_LEASE_ROW, 0.0
        self._external_jobs = ExternalJobs(parts, discard_s=timing.discard_s)
        self.errors = JobErrors()
        self._seating = Seating(parts)
        self.unknown_attempts = UnknownAttempts(parts, list_again_s=timing.list_again_s)
        self.is_behind = False  # jobs may be due that the last tick had no time for
        self._gpus_freed = False  # since the last decision, at its very moment
        self.why_held_back = ""  # why none of the jobs that are due may start, "" if they may; any thread may read it

    def tick(self) -> bool:
        """Schedule, as long as this scheduler leads; return whether it does.

        1. Lead: renew the lease, or take it if no scheduler holds it.
        2. Read the store and list unknown attempts at the backend, if this scheduler has just begun to lead, or if its
           state is out of date.
        3. Run one cycle; run another one if an error of one job spoiled the state in memory.

        Raises:
            StoreError: If the store does not answer; the next tick reads it again.
            InputError: If jobs hold GPUs that the cluster file does not have; then it does not lead.
        """
        self.errors.begin_tick(self.parts.now_s())
        cycles, until = 0, self._timing.passed_s() + MAX_CYCLES_S
        try:
            while (
                cycles < MAX_CYCLES + self.errors.failed_jobs
                and self._timing.passed_s() < until
                and self._hold_or_take_lease()
            ):
                cycles += 1
                if self.parts.placer.is_journal_full or self.unknown_attempts.is_listing_due:
                    self._drop_cache()
                if self._try_cycle():
                    break
        except FencedError as error:
            log.warning("%s; this one no longer leads", error)
            self._seating.close()
            self.cache, self._fence, self.is_behind, self.why_held_back = None, None, False, ""
            self.errors = JobErrors()  # another scheduler handles the jobs now
        except (StaleWriteError, TakenError) as error:
            log.warning("%s; the store is read again", error)
            self._drop_cache()
        except BaseException:
            self._drop_cache()
            raise
        return self._fence is not None

    def _try_cycle(self) -> bool:
        """Run one cycle; return False if an error of one job spoiled the state in memory."""
        try:
            cache = self._ensure_cache()
            self._run_cycle(cache, self.parts.now_s())
        except SpoiledError:
            self._drop_cache()
            return False
        if cache.is_incomplete:
            self._drop_cache()
        return True

    def _run_cycle(self, cache: StateCache, now_s: float) -> None:
        """Run one cycle of the scheduler.

        1. Import the jobs that users submitted to the backend itself.
        2. Read from the store what others wrote: new jobs, cancels, holds, releases, priorities.
        3. Reorder the queue by new priorities.
        4. Observe the nodes, and resolve unknown attempts: GPUs that are faulty, closed or in doubt take no jobs.
        5. Hold jobs that fail again and again, or cannot be read.
        6. Advance attempts by what the backend reports: launch, note that they run, drain, release, clean up.
        7. Fill empty seats of rings that run, before any job that waits.
        8. Admit jobs to the queue, within the quota of each user.
        9. Place the jobs that are due: decide, persist the starts, launch.
        10. Let a newer version of the policy take over.

        Steps 1, 3 and 5 to 9 write to the store, each in transactions under the fence of the lease.
        """
        self._external_jobs.import_jobs(cache, now_s)
        cache.read_requests()
        reorder_queue(cache, now_s)
        self._observe_nodes(cache, now_s)
        hold_failing_jobs(cache, now_s)
        advance_attempts(cache, now_s)
        blocked = self.unknown_attempts.why_no_starts(cache.fence) or self.parts.why_no_starts()
        self._seating.fill_seats(cache, blocked, now_s)
        if self._seating.is_measuring:
            blocked = blocked or MEASURING
        admit_jobs(cache, now_s)
        if self._are_jobs_due(cache, now_s):
            self.why_held_back = blocked
            if blocked:
                self.is_behind = False
            else:
                self._place_due_jobs(cache, now_s)
        self.parts.placer.poll_policy(cache.mirror)

    def _observe_nodes(self, cache: StateCache, now_s: float) -> None:
        """Read reports of nodes and results of node checks; close GPUs to jobs on which none may start."""
        parts = self.parts
        parts.checks.apply_ended_rounds(parts.store, parts.monitor.fleet, cache.fence, now_s)
        health = parts.monitor.poll(parts.store, now_s)
        parts.checks.retry_unfit_jobs(parts.store, cache.table.jobs, health, cache.fence, now_s)
        resting = parts.checks.resting_gpus(parts.layout.nodes, now_s)
        unfit = [parts.layout.number(*place) for place in (*resting, *parts.gpus_in_check())]
        self.unknown_attempts.resolve(cache.fence, now_s)
        cache.set_health(health.with_closed((*self.unknown_attempts.blocked_gpus(), *unfit)), now_s)

    def _are_jobs_due(self, cache: StateCache, now_s: float) -> bool:
        """Return whether anything happened that could let a job start."""
        if cache.mirror.has_job_aged(now_s) or self._gpus_freed:
            cache.advance_mirror(now_s)
        return cache.has_mirror_advanced(now_s) or self.is_behind or bool(self.why_held_back)

    def _place_due_jobs(self, cache: StateCache, now_s: float) -> None:
        """Place the jobs that are due.

        1. The placer decides about the first job in the queue's order, and its GPUs are taken in the mirror.
        2. The decision is applied to the batch: a new attempt that reserves the GPUs, and the decision itself.
        3. Steps 1 and 2 are repeated until no job is due, or time is up.
        4. The batch is persisted in one transaction.
        5. The new attempts are launched.
        """
        started, until, due = [], self._timing.passed_s() + self._timing.place_s, cache.mirror.find_due_job()
        while due is not None:
            decision = self._decide_isolated(cache, due, now_s)
            self._apply_isolated(cache, decision, now_s)
            started += [decision.job] if decision.started else []
            due = cache.mirror.find_due_job()
            if due == decision.job and not decision.started:
                due = None  # no job may overtake it, and it cannot start before something happens
            if self._timing.passed_s() >= until:
                break
        refused = cache.write(now_s)
        self.is_behind = due is not None or refused
        cache.gpus_freed = False
        advance_attempts(cache, now_s, [job for job in started if job in cache.table.attempts])
        # A launch that the backend refuses frees its GPUs at once, when jobs were passed over that they suit.
        self._gpus_freed = cache.gpus_freed
        self.is_behind |= self._gpus_freed

    def _decide_isolated(self, cache: StateCache, due: str, now_s: float) -> Decision:
        """Let the placer decide about the job that is due; an error there is counted for that job alone."""
        with cache.isolated(due, now_s, spoils=True, action="placing", step="decision"):
            decision = self.parts.placer.decide(cache.mirror, cache.shape_of)
            cache.errors.note_step(due, "placing", "decision", now_s)
        return decision

    def _apply_isolated(self, cache: StateCache, decision: Decision, now_s: float) -> None:
        """Apply a decision to the batch; an error there is counted for its job alone."""
        job, step = decision.job, "start" if decision.started else "wait"
        with cache.isolated(job, now_s, spoils=True, action="placing", step=step):
            self._apply_decision(cache, decision, now_s)
            cache.errors.note_step(job, "placing", step, now_s)
            cache.errors.note_success(job)

    def _apply_decision(self, cache: StateCache, decision: Decision, now_s: float) -> None:
        """Apply a decision to the batch: open the attempt of a job that starts, and record the decision."""
        number = self._open_attempt(cache, decision, now_s) if decision.started else None
        if decision.past:
            cache.batch.changes.decisions.append(self._new_decision(decision, number, now_s))
        if decision.passed_over and self._fits_nowhere(cache, decision.job):
            cache.set_aside(decision.job)

    def _fits_nowhere(self, cache: StateCache, job: str) -> bool:
        """Return whether no GPUs in service could hold a job, though there are as many as it requests."""
        shape = cache.shape_of(job)
        return shape is not None and not fit_to_shape(cache.mirror, job, (), shape, in_service=True)

    def _open_attempt(self, cache: StateCache, decision: Decision, now_s: float) -> int:
        progress = cache.mirror.progress(decision.job)
        placement = self.parts.layout.placement(decision.gpus)
        attempt = NewAttempt(self.parts.backend_name, placement, progress.slowdown, progress.overhead_s)
        return cache.open_attempt(cache.table.jobs[decision.job], attempt, f"placed by {decision.by}", now_s)

    def close(self) -> None:
        """Let another scheduler lead at once; jobs run on."""
        fence, self._fence = self._fence, None  # first: from here on no lease of a node is granted
        self._seating.close()
        try:
            if fence is not None:
                self.parts.store.write(lambda tx: release_lease(tx, SCHEDULER_LEASE, fence))
        finally:
            self.parts.placer.end()

    def warm_up(self) -> None:
        """Load and compile what decisions need, before there are any."""
        self.parts.placer.warm_up(self.parts.site)
        self._seating.warm_up()

    def close_ring_connections(self) -> None:
        """Let rings do without this scheduler, until its next tick."""
        self._seating.close()

    @property
    def valid_lease_token(self) -> int | None:
        """The token of its lease if it surely leads at this moment, whatever others do; any thread may read it."""
        fence, renewed_s = self._fence, self._renew_at_s - RENEW_S
        return fence if self._timing.passed_s() - renewed_s < LEASE_S else None

    @property
    def another_leads(self) -> bool:
        """Whether another scheduler held the lease at the last tick; any thread may read it."""
        return self._fence is None and self._watched.expires_s > 0.0

    def _drop_cache(self) -> None:
        """Drop the state in memory, which may be ahead of the store."""
        self.cache, self.is_behind = None, False

    def _ensure_cache(self) -> StateCache:
        """Return the state in memory; read it from the store if it was dropped."""
        assert self._fence is not None
        if self.cache is None:
            self.parts.monitor.load(self.parts.store, self._fence, self.parts.now_s())
            self.unknown_attempts.find_at_backend(self._fence)
            self.cache = StateCache(self.parts, self._fence, self.errors)
            self.is_behind = True  # what was decided about jobs that wait is not known
        return self.cache

    def _hold_or_take_lease(self) -> bool:
        """Hold the lease, or take it if it is free; return whether this scheduler leads."""
        parts, now_s, fence = self.parts, self._timing.passed_s(), self._fence
        if fence is not None and now_s < self._renew_at_s:
            return True
        if fence is not None:
            if not parts.store.write(
                lambda tx: renew_lease(tx, SCHEDULER_LEASE, fence, self._timing.store_s(tx), LEASE_S)
            ):
                raise FencedError("the lease was taken over")
        else:
            with parts.store.read() as tx:
                last = lease_row(tx, SCHEDULER_LEASE)
            if last != self._watched:
                self._watched, self._watched_s = last, now_s
            # A live holder renews. This is measured by the monotonic clock here, not by the time in the lease.
            is_abandoned = now_s - self._watched_s >= LEASE_S or is_proven_dead(last.owner)
            if not is_abandoned and last.expires_s > 0.0:
                return False
            self._fence = parts.store.write(lambda tx: self._take_lease(tx, last))
            if self._fence is not None:
                self._watched = NO_LEASE_ROW  # until another scheduler is seen to hold it
                log.info("leads with token %d", self._fence)
        self._renew_at_s = now_s + RENEW_S
        return self._fence is not None

    def _take_lease(self, tx: Connection, left: LeaseRow) -> int | None:
        """Return the token of the lease, None if another scheduler holds it.

        The GPUs that jobs hold are checked after it is taken: until then the last holder may write.

        Raises:
            InputError: If jobs hold GPUs that the cluster file does not have; the lease is not taken.
        """
        fence = acquire_lease(tx, SCHEDULER_LEASE, self.parts.owner, self._timing.store_s(tx), LEASE_S, left=left)
        if fence is not None:
            self.parts.layout.check_held(held_gpus(tx))
        return fence

    def _new_decision(self, decision: Decision, attempt_number: int | None, now_s: float) -> NewDecision:
        """Return a decision as the store records it, for explanations and for training."""
        placer, layout = self.parts.placer, self.parts.layout
        proposal, record = decision.proposal, decision.record
        explanation = {
            "decided_by": decision.by, "fallback": placer.fallback.name, "fallback_job": decision.fallback_proposal.job,
            "kind": decision.kind, "policy_error": decision.reason,
            "proposal": None if proposal is None else proposal._asdict(), "rests": decision.rests,
            "proposal_placement": None if proposal is None or not proposal.gpus
            else [asdict(share) for share in layout.placement(proposal.gpus)],
            "proposal_expected": None if decision.proposal_expected is None else asdict(decision.proposal_expected),
            "agrees": None if proposal is None else proposal.agrees_with(decision.fallback_proposal),
            "expected": None if decision.expected is None else asdict(decision.expected),
            "fallback_expected": None if decision.fallback_expected is None else asdict(decision.fallback_expected),
            "actions": None if record is None else record.actions, **_probability_fields(record),
            **_behaviour_fields(decision, placer.policy, placer.sample_temperature),
        }  # fmt: skip
        fallback_gpus = decision.fallback_proposal.gpus
        return NewDecision(
            job_id=decision.job,
            number=attempt_number,
            at_s=now_s,
            policy=placer.decider,
            policy_version=decision.version,
            mode=placer.mode,
            placement=layout.placement(decision.gpus) if decision.gpus else None,
            fallback=layout.placement(fallback_gpus) if fallback_gpus else None,
            explanation=explanation,
            observation=None if record is None else record.observation,
            mask=None if record is None else record.mask,
            log_probability=None if record is None else record.log_probability,
            past=decision.past,
            took_s=decision.took_s,
        )


def _behaviour_fields(decision: Decision, policy: str | None, temperature: float | None) -> dict[str, object]:
    """Return the probability with which the policy chose what was done, and the temperature at which it sampled.

    A policy that does not sample always takes its best choice. There is no such probability for what the heuristic
    chose, nor for GPUs that took the place of the policy's as these do not suit the job's shape.
    """
    proposal = decision.proposal
    if proposal is None or decision.by != policy or set(decision.gpus) != set(proposal.gpus):
        return {"behaviour_probability": None, "sample_temperature": temperature}
    probability = 1.0 if temperature is None else _probability_fields(decision.record)["probability"]
    return {"behaviour_probability": probability, "sample_temperature": temperature}


def _probability_fields(record: StoredRecord | None) -> dict[str, object]:
    """Return the probability that a network gave its choice, and the number of its first actions."""
    if record is None:
        return {"probability": None, "options": None}
    whole = decision_record_of(record)
    logs = whole.log_probabilities[np.arange(whole.actions.size), whole.actions]
    return {"probability": float(np.exp(logs.sum())), "options": int(whole.masks[0].sum())}


def reorder_queue(cache: StateCache, now_s: float) -> None:
    """Move jobs to the places of their new priorities; jobs that are admitted later rely on this order."""
    table = cache.table
    moved = table.reprioritised & table.jobs.keys() - table.outside
    ranked = sorted((table.jobs[job] for job in moved), key=queue_key)
    if ranked:
        cache.advance_mirror(now_s)
    for row in ranked:  # to the end first, so that none is in the way of another
        with cache.isolated(row.id, now_s, spoils=True):
            cache.mirror.give_place(row.id, queue_rank_of(row), None)
    last = None
    for row in ranked:
        if row.state is JobState.QUEUED:
            with cache.isolated(row.id, now_s, spoils=True):
                cache.move_to_queue_place(row.id, last)
                last = row.id
    cache.table.reprioritised.clear()


def admit_jobs(cache: StateCache, now_s: float) -> None:
    """Withdraw jobs that are not to run any more from the queue, and admit those that may start."""
    _withdraw_unwanted(cache, now_s)
    _enqueue_admitted(cache, _admissible_after_changes(cache, now_s), now_s)
    cache.write(now_s)


def _next_step_of(cache: StateCache, row: JobRow, now_s: float) -> JobStep:
    needs = needs_of(row)
    return next_job_step(
        row, now_s, is_in_queue=row.id not in cache.table.outside, cluster_gpus=cache.parts.layout.gpus_for(needs),
        is_kept_out=row.id in cache.table.unfit or cache.errors.is_resting(row.id, now_s), needs=needs.words,
    )  # fmt: skip


def _withdraw_unwanted(cache: StateCache, now_s: float) -> None:
    for row in [cache.table.jobs[job] for job in cache.table.to_withdraw if job in cache.table.jobs]:
        leaves = False
        with cache.isolated(row.id, now_s):
            leaves = _next_step_of(cache, row, now_s).do is JobDo.LEAVE
        if leaves:
            cache.advance_mirror(now_s)
            with cache.isolated(row.id, now_s):
                cache.withdraw(row.id)
    cache.table.to_withdraw.clear()


def _admissible_after_changes(cache: StateCache, now_s: float) -> list[JobRow]:
    """Change the state of jobs outside the queue if it has to; return the jobs to admit, in order."""
    table = cache.table
    quota = Quota(cache.parts.gpus_per_user, (row for row in table.jobs.values() if row.id not in table.outside))
    admitted = []
    outside = sorted((table.jobs[job] for job in table.outside), key=queue_key)
    for place, row in enumerate(outside):
        with cache.isolated(row.id, now_s):
            step = _next_step_of(cache, row, now_s)
            if step.do is JobDo.CHANGE:
                _change_job(cache, row, step, now_s, now_s - RELEASE_SPACING_S * (len(outside) - place))
            elif step.do is JobDo.ENTER and quota.take_if_within(row):
                admitted.append(row)
    return admitted


def _change_job(cache: StateCache, row: JobRow, step: JobStep, now_s: float, entered_s: float) -> None:
    assert step.now is not None
    columns = JobColumns()
    if step.is_released:
        columns = JobColumns(no_progress=0, entered_s=entered_s, not_before_s=0.0)
    elif step.now is JobState.FAILED:
        columns = JobColumns(cause_class=str(ExitClass.USER))
    cache.change_job(row, step.now, step.cause, now_s, **columns)


def _enqueue_admitted(cache: StateCache, admitted: list[JobRow], now_s: float) -> None:
    """Put admitted jobs into the queue, each at its place."""
    if admitted:
        cache.advance_mirror(now_s)
    behind = [row for row in admitted if not row.was_stopped]
    back = [row for row in reversed(admitted) if row.was_stopped]  # each goes before all others, or nearly so
    last = None
    for row in behind:
        with cache.isolated(row.id, now_s, spoils=True):
            was_held = row.entered_s != row.submitted_s  # before it ever ran; its wait counts from its release
            if row.attempt or row.id in cache.table.kept_wait or was_held:
                cache.mirror.rejoin(job_request_of(row, cache.parts.layout), waiting_progress(row))
            else:
                cache.mirror.submit(job_request_of(row, cache.parts.layout))
            cache.move_to_queue_place(row.id, last)
            last = row.id
    for row in back:
        with cache.isolated(row.id, now_s, spoils=True):
            cache.mirror.come_back(job_request_of(row, cache.parts.layout), waiting_progress(row))
            cache.move_to_queue_place(row.id)
    for jobs in (cache.table.outside, cache.table.kept_wait):
        jobs.difference_update(row.id for row in admitted)
