"""The reconcile loop: what is wanted and what is seen become, step by step, the same.

Source: SPEC K6, K7, R8, R10; docs/scheduler.md.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import numpy as np
from sqlalchemy import Connection

from ...cluster.files.processes import is_proven_dead
from ..mirror.vacant_seats import fitted
from ..placement.placer import Decision
from ..policy_host.answer import Stored, record_of
from ..store.attempts import NewAttempt, held_gpus
from ..store.decisions import NewDecision
from ..store.engines import FencedError, StaleWriteError, TakenError
from ..store.leases import NO_LEASE_ROW, SCHEDULER_LEASE, LeaseRow, acquire, clock, give_up, lease_row, renew
from .admission import DISCARD_S, ExternalJobs, admit, give_places
from .attempt_driver import hold_failing, settle
from .job_errors import JobErrors, SpoiledError
from .seating import Seating
from .state_cache import Parts, StateCache
from .unknown_attempts import CHECK_UNKNOWN_S, LIST_AGAIN_S, UnknownAttempts

log = logging.getLogger(__name__)

LEASE_S, RENEW_S = 15.0, 5.0
MAX_ROUNDS = 10  # of one tick beside one for each job that was in the way of the one before, and is left alone then
MAX_ROUNDS_S = 5.0  # after which the next tick goes on; the lease lasts longer
MEASURING = "a ring is to have a GPU, and the links to it are being measured"  # for a second at most
PLACE_S = 0.5  # after which what was decided is launched before more is decided


@dataclass(frozen=True, slots=True)
class ReconcilerTiming:
    """What a scheduler goes by, beside the time of its jobs."""

    passed_s: Callable[[], float] = time.monotonic  # by a clock that nobody sets
    store_s: Callable[[Connection], float] = clock  # Unix time, by the store's machine
    place_s: float = PLACE_S
    discard_s: float = DISCARD_S
    look_s: float = CHECK_UNKNOWN_S
    find_again_s: float = LIST_AGAIN_S


DEFAULT_TIMING = ReconcilerTiming()


class Reconciler:
    """One scheduler of a store, of which one at a time leads.

    Args:
        parts: What it works with.
        times: What it goes by.
    """

    def __init__(self, parts: Parts, times: ReconcilerTiming = DEFAULT_TIMING) -> None:
        self.parts, self._times = parts, times
        self.cache: StateCache | None = None  # None while it does not lead, or has to read the store anew
        self._fence: int | None = None  # token of its lease, None while it does not lead
        self._renew_at_s = 0.0
        # The lease of another scheduler, and the time since which it has not been renewed.
        self._watched, self._watched_s = NO_LEASE_ROW, 0.0
        self._external_jobs = ExternalJobs(parts, discard_s=times.discard_s)
        self.errors = JobErrors()
        self._seating = Seating(parts)
        self.unknown_attempts = UnknownAttempts(parts, look_s=times.look_s, find_again_s=times.find_again_s)
        self.is_behind = False  # jobs may be due that the last tick had no time for
        self._has_freed = False  # GPUs have come free since the last decision, at its very moment
        self.held_back = ""  # why none of the jobs that are due may start, "" if they may; any thread may read it

    def tick(self) -> bool:
        """Do all that is to be done now; return whether this scheduler leads.

        Raises:
            StoreError: If the store does not answer; the next tick reads it anew.
            InputError: If jobs hold GPUs that the cluster file does not have; then it does not lead.
        """
        self.errors.begin(self.parts.now_s())
        rounds, until = 0, self._times.passed_s() + MAX_ROUNDS_S
        try:
            while rounds < MAX_ROUNDS + self.errors.failed and self._times.passed_s() < until and self._leads():
                rounds += 1
                if self.parts.placer.is_to_begin_anew or self.unknown_attempts.are_due:
                    self._forget()
                if self._has_gone_through():
                    break
        except FencedError as error:
            log.warning("%s; this one no longer leads", error)
            self._seating.close()
            self.cache, self._fence, self.is_behind, self.held_back = None, None, False, ""
            self.errors = JobErrors()  # another one handles the jobs now
        except (StaleWriteError, TakenError) as error:
            log.warning("%s; the store is read anew", error)
            self._forget()
        except BaseException:
            self._forget()
            raise
        return self._fence is not None

    def _has_gone_through(self) -> bool:
        """Do all that is to be done now; False if an error about one job made the copy of the store of no use."""
        try:
            cache = self._read()
            self._step(cache, self.parts.now_s())
        except SpoiledError:
            self._forget()
            return False
        if cache.is_torn:
            self._forget()
        return True

    def close(self) -> None:
        """Let another scheduler lead at once; jobs run on."""
        fence, self._fence = self._fence, None  # first: from here on no lease of a node is granted
        self._seating.close()
        try:
            if fence is not None:
                self.parts.store.write(lambda tx: give_up(tx, SCHEDULER_LEASE, fence))
        finally:
            self.parts.placer.end()

    def warm_up(self) -> None:
        """Load and compile what decisions need, before there are any."""
        self.parts.placer.warm_up(self.parts.site)
        self._seating.warm_up()

    def close_desks(self) -> None:
        """Let rings do without this scheduler, until it looks again."""
        self._seating.close()

    @property
    def token(self) -> int | None:
        """The token of its lease if it surely leads at this moment, whatever others do; any thread may ask."""
        fence, renewed_s = self._fence, self._renew_at_s - RENEW_S
        return fence if self._times.passed_s() - renewed_s < LEASE_S else None

    def _forget(self) -> None:
        """Drop the copy of the store, which may have gone ahead of it."""
        self.cache, self.is_behind = None, False

    def _read(self) -> StateCache:
        """Return the copy of the store."""
        assert self._fence is not None
        if self.cache is None:
            self.parts.monitor.take_up(self.parts.store, self._fence, self.parts.now_s())
            self.unknown_attempts.find(self._fence)
            self.cache = StateCache(self.parts, self._fence, self.errors)
            self.is_behind = True  # nobody knows what was decided about jobs that wait
        return self.cache

    def _leads(self) -> bool:
        """Hold the lease, or take it if it is free."""
        parts, now_s, fence = self.parts, self._times.passed_s(), self._fence
        if fence is not None and now_s < self._renew_at_s:
            return True
        if fence is not None:
            if not parts.store.write(lambda tx: renew(tx, SCHEDULER_LEASE, fence, self._times.store_s(tx), LEASE_S)):
                raise FencedError("the lease was taken over")
        else:
            with parts.store.read() as tx:
                last = lease_row(tx, SCHEDULER_LEASE)
            if last != self._watched:
                self._watched, self._watched_s = last, now_s
            # Whoever lives renews: by this clock, which nobody sets, and not by the one that the lease tells.
            is_left = now_s - self._watched_s >= LEASE_S or is_proven_dead(last.owner)
            if not is_left and last.expires_s > 0.0:
                return False
            self._fence = parts.store.write(lambda tx: self._take_lease(tx, last))
            if self._fence is not None:
                log.info("leads with token %d", self._fence)
        self._renew_at_s = now_s + RENEW_S
        return self._fence is not None

    def _take_lease(self, tx: Connection, left: LeaseRow) -> int | None:
        """Return the token of the lease, None if somebody holds it.

        What jobs hold is looked at behind the taking: the last holder may write until then, and not any more.

        Raises:
            InputError: If jobs hold GPUs that the cluster file does not have; the lease is not taken.
        """
        fence = acquire(tx, SCHEDULER_LEASE, self.parts.owner, self._times.store_s(tx), LEASE_S, left=left)
        if fence is not None:
            self.parts.layout.check_held(held_gpus(tx))
        return fence

    def _step(self, cache: StateCache, now_s: float) -> None:
        """Take in what has happened, settle attempts, let jobs in, and start what can start."""
        self._external_jobs.look(cache, now_s)
        cache.follow()
        give_places(cache, now_s)
        self._look_at_nodes(cache, now_s)
        hold_failing(cache, now_s)
        settle(cache, now_s)
        against = self._against_starts(cache)
        self._seating.look(cache, against, now_s)
        if self._seating.measures:
            against = against or MEASURING
        admit(cache, now_s)
        if cache.mirror.ages_by(now_s):
            cache.happens(now_s)
        if self._has_freed:
            cache.happens(now_s)
        if cache.happened(now_s) or self.is_behind or self.held_back:
            self.held_back = against
            if self.held_back:
                self.is_behind = False
            else:
                self._place(cache, now_s)
        self.parts.placer.look(cache.mirror)

    def _look_at_nodes(self, cache: StateCache, now_s: float) -> None:
        """Take in how nodes are, and what checks found there: no job starts on what is not fit."""
        parts = self.parts
        parts.checks.take_in(parts.store, parts.monitor.fleet, cache.fence, now_s)
        health = parts.monitor.look(parts.store, now_s)
        parts.checks.hurry(parts.store, cache.jobs, health, cache.fence, now_s)
        unfit = [parts.layout.number(*it) for it in parts.checks.resting(parts.layout.nodes, now_s)]
        cache.keep_out(health.without((*self.unknown_attempts.look(cache.fence, now_s), *unfit)), now_s)

    def _against_starts(self, cache: StateCache) -> str:
        """Return why no GPU may be given away now, "" if they may."""
        return self.unknown_attempts.against_starts(cache.fence) or self.parts.against_starts()

    def _place(self, cache: StateCache, now_s: float) -> None:
        """Decide about the jobs that are due now, reserve the GPUs in one transaction, and launch."""
        started, until, due = [], self._times.passed_s() + self._times.place_s, cache.mirror.due()
        while due is not None:
            with cache.about(due, now_s, spoils=True, what="placing", step="decision"):
                decision = self.parts.placer.settle(cache.mirror, cache.form_of)
                cache.errors.took(due, "placing", "decision", now_s)
            step = "start" if decision.started else "wait"
            with cache.about(decision.job, now_s, spoils=True, what="placing", step=step):
                self._carry_on(cache, decision, now_s)
                cache.errors.took(decision.job, "placing", step, now_s)
                cache.errors.went_well(decision.job)
            started += [decision.job] if decision.started else []
            due = cache.mirror.due()
            if due == decision.job and not decision.started:
                due = None  # nobody may overtake it, and it cannot start before something happens
            if self._times.passed_s() >= until:
                break
        refused = cache.write(now_s)
        self.is_behind = due is not None or refused
        cache.has_freed = False
        settle(cache, now_s, [job for job in started if job in cache.attempts])
        # A launch that the backend refuses frees its GPUs at once, when jobs were passed over that they suit.
        self._has_freed = cache.has_freed
        self.is_behind |= self._has_freed

    def _carry_on(self, cache: StateCache, decision: Decision, now_s: float) -> None:
        """Do what follows from a decision."""
        number = self._open(cache, decision, now_s) if decision.started else None
        if decision.past:
            cache.decided(self._noted(decision, number, now_s))
        elif self._is_unfit(cache, decision.job):
            cache.set_aside(decision.job)

    def _is_unfit(self, cache: StateCache, job: str) -> bool:
        """Say whether no GPUs in service could hold a job, though they are as many as it asks for."""
        form = cache.form_of(job)
        return form is not None and not fitted(cache.mirror, job, (), form, in_service=True)

    def _open(self, cache: StateCache, decision: Decision, now_s: float) -> int:
        standing = cache.mirror.standing(decision.job)
        placement = self.parts.layout.placement(decision.gpus)
        opening = NewAttempt(self.parts.backend_name, placement, standing.slowdown, standing.overhead_s)
        return cache.open(cache.jobs[decision.job], opening, f"placed by {decision.by}", now_s)

    def _noted(self, decision: Decision, number: int | None, now_s: float) -> NewDecision:
        placer, layout = self.parts.placer, self.parts.layout
        proposal, record = decision.proposal, decision.record
        explanation = {
            "obeyed": decision.by, "fallback": placer.fallback.name, "fallback_job": decision.fallback_proposal.job,
            "kind": decision.kind, "missed": decision.reason,
            "said": None if proposal is None else proposal._asdict(), "rests": decision.rests,
            "said_placement": None if proposal is None or not proposal.gpus
            else [asdict(it) for it in layout.placement(proposal.gpus)],
            "said_expected": None if decision.proposal_expected is None else asdict(decision.proposal_expected),
            "agrees": None if proposal is None else proposal.agrees(decision.fallback_proposal),
            "expected": None if decision.expected is None else asdict(decision.expected),
            "fallback_expected": None if decision.fallback_expected is None else asdict(decision.fallback_expected),
            "actions": None if record is None else record.actions, **_chance(record),
            **_behaviour(decision, placer.policy, placer.sample_temperature),
        }  # fmt: skip
        return NewDecision(
            decision.job, number, now_s, placer.policy or placer.fallback.name, decision.version, placer.mode,
            layout.placement(decision.gpus) if decision.gpus else None,
            layout.placement(decision.fallback_proposal.gpus) if decision.fallback_proposal.gpus else None, explanation,
            None if record is None else record.observation, None if record is None else record.mask,
            None if record is None else record.log_probability, decision.past, decision.took_s,
        )  # fmt: skip


def _behaviour(decision: Decision, policy: str | None, temperature: float | None) -> dict[str, object]:
    """Return with which probability the policy did what was done, and at which temperature it drew that.

    A policy that does what it holds for best does so always. What the heuristic did is none of its probabilities.
    """
    if decision.proposal is None or decision.by != policy:
        return {"behaviour_probability": None, "sample_temperature": temperature}
    probability = 1.0 if temperature is None else _chance(decision.record)["probability"]
    return {"behaviour_probability": probability, "sample_temperature": temperature}


def _chance(record: Stored | None) -> dict[str, object]:
    """Return how probable a network held what it did, and among how many first actions."""
    if record is None:
        return {"probability": None, "options": None}
    whole = record_of(record)
    logs = whole.log_probabilities[np.arange(whole.actions.size), whole.actions]
    return {"probability": float(np.exp(logs.sum())), "options": int(whole.masks[0].sum())}
