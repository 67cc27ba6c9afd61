"""The reconcile loop: what is wanted and what is seen become, step by step, the same.

Source: SPEC K6, K7, R8, R10; docs/scheduler.md.
"""

import logging
import time
from dataclasses import asdict

import numpy as np
from sqlalchemy import Connection

from ..files.owner import is_proven_dead
from ..mirror.shape import fitted
from ..model.job import JobRow
from ..model.states import Desired, JobState
from ..placement.placer import Decision
from ..policy_host.answer import Stored, seen_of
from ..rules.attempt_step import WISHED
from ..rules.quota import Quota
from ..rules.retry_policy import ExitClass
from ..store.database.errors import FencedError, StaleWriteError, TakenError
from ..store.rows.attempts import Opening
from ..store.rows.decisions import NewDecision
from ..store.rows.leases import NEVER, SCHEDULER, LeaseRow, acquire, clock, give_up, lease_row, renew
from ..store.rows.reservations import held_gpus
from .attempt_driver import settle
from .external_jobs import Intake
from .job_errors import JobErrors, SpoiledError
from .lining_up import line_up
from .quarantine import hold_failing
from .rehydrate import asked_of, goes_first, is_eligible, queue_key, rank_of, waiting_standing
from .state_cache import Book, Parts
from .unknown_attempts import Strangers

log = logging.getLogger(__name__)

LEASE_S, RENEW_S = 15.0, 5.0
ROUNDS = 10  # of one tick beside one for each job that was in the way of the one before, and is left alone then
ROUNDS_S = 5.0  # after which the next tick goes on; the lease lasts longer
PLACE_S = 0.5  # after which what was decided is launched before more is decided


class Scheduler:
    """One scheduler of a store, of which one at a time leads."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.book: Book | None = None  # None while it does not lead, or has to read the store anew
        self._fence: int | None = None  # token of its lease, None while it does not lead
        self._renew_at_s = 0.0
        self._watched, self._watched_s = NEVER, 0.0  # another one's lease, and since when it has not been renewed
        self._intake = Intake(parts)
        self.errors = JobErrors()
        self.strangers = Strangers(parts)
        self.is_behind = False  # jobs may be due that the last tick had no time for
        self.held_back = ""  # why none of the jobs that are due may start, "" if they may; any thread may read it

    def tick(self) -> bool:
        """Do all that is to be done now; return whether this scheduler leads.

        Raises:
            StoreError: If the store does not answer; the next tick reads it anew.
            InputError: If jobs hold GPUs that the cluster file does not have; then it does not lead.
        """
        self.errors.begin(self.parts.now_s())
        rounds, until = 0, time.monotonic() + ROUNDS_S
        try:
            while rounds < ROUNDS + self.errors.failed and time.monotonic() < until and self._leads():
                rounds += 1
                if self.parts.deciding.is_to_begin_anew or self.strangers.are_due:
                    self._forget()
                if self._has_gone_through():
                    break
        except FencedError as error:
            log.warning("%s; this one no longer leads", error)
            self.book, self._fence, self.is_behind, self.held_back = None, None, False, ""
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
            book = self._read()
            self._step(book, self.parts.now_s())
        except SpoiledError:
            self._forget()
            return False
        if book.is_torn:
            self._forget()
        return True

    def close(self) -> None:
        """Let another scheduler lead at once; jobs run on."""
        fence = self._fence
        try:
            if fence is not None:
                self.parts.store.write(lambda tx: give_up(tx, SCHEDULER, fence))
        finally:
            self.parts.deciding.end()

    def _forget(self) -> None:
        """Drop the copy of the store, which may have gone ahead of it."""
        self.book, self.is_behind = None, False

    def _read(self) -> Book:
        """Return the copy of the store."""
        assert self._fence is not None
        if self.book is None:
            self.parts.monitor.take_up(self.parts.store, self._fence, self.parts.now_s())
            self.strangers.find(self._fence)
            self.book = Book(self.parts, self._fence, self.errors)
            self.is_behind = True  # nobody knows what was decided about jobs that wait
        return self.book

    def _leads(self) -> bool:
        """Hold the lease, or take it if it is free."""
        parts, now_s, fence = self.parts, time.monotonic(), self._fence
        if fence is not None and now_s < self._renew_at_s:
            return True
        if fence is not None:
            if not parts.store.write(lambda tx: renew(tx, SCHEDULER, fence, clock(tx), LEASE_S)):
                raise FencedError("the lease was taken over")
        else:
            with parts.store.read() as tx:
                last = lease_row(tx, SCHEDULER)
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
        fence = acquire(tx, SCHEDULER, self.parts.owner, clock(tx), LEASE_S, left=left)
        if fence is not None:
            self.parts.layout.check_held(held_gpus(tx))
        return fence

    def _step(self, book: Book, now_s: float) -> None:
        """Take in what has happened, settle attempts, let jobs in, and start what can start."""
        self._intake.look(book, now_s)
        book.follow()
        self._give_places(book, now_s)
        health = self.parts.monitor.look(self.parts.store, now_s)
        book.keep_out(health.without(self.strangers.look(book.fence, now_s)), now_s)
        hold_failing(book, now_s)
        settle(book, now_s)
        self._admit(book, now_s)
        if book.live.ages_by(now_s):
            book.happens(now_s)
        if book.happened(now_s) or self.is_behind or self.held_back:
            self.held_back = self.strangers.against_starts(book.fence) or self.parts.against_starts()
            if self.held_back:
                self.is_behind = False
            else:
                self._place(book, now_s)
        self.parts.deciding.look(book.live)

    def _give_places(self, book: Book, now_s: float) -> None:
        """Give jobs the place of their priority, before any other job comes to one: that takes all others at theirs."""
        ranked = sorted((book.jobs[job] for job in book.ranked & book.jobs.keys() - book.outside), key=queue_key)
        if ranked:
            book.happens(now_s)
        for row in ranked:  # out of the way of each other
            with book.about(row.id, now_s, spoils=True):
                book.live.give_place(row.id, rank_of(row), None)
        last = None
        for row in ranked:
            if row.state is JobState.QUEUED:
                with book.about(row.id, now_s, spoils=True):
                    line_up(book.live, book.jobs, row.id, last)
                    last = row.id
        book.ranked.clear()

    def _admit(self, book: Book, now_s: float) -> None:
        """Let jobs out of the queue that are not to run, and into it those whose time has come."""
        self._let_out(book, now_s)
        self._take_in(book, now_s)
        book.write(now_s)

    def _let_out(self, book: Book, now_s: float) -> None:
        """Let jobs out of the queue that are not to run."""
        for job in book.unwanted:
            row = book.jobs.get(job)
            if row is not None and row.state is JobState.QUEUED and row.desired is not Desired.RUN:
                book.happens(now_s)
                with book.about(job, now_s):
                    book.leave(job)
        book.unwanted.clear()

    def _take_in(self, book: Book, now_s: float) -> None:
        """Let jobs into the queue whose time has come."""
        let_in = self._let_in(book, now_s)
        if let_in:
            book.happens(now_s)
        behind = [row for row in let_in if not goes_first(row)]
        back = [row for row in reversed(let_in) if goes_first(row)]  # each goes before all others, or nearly so
        last = None
        for row in behind:
            with book.about(row.id, now_s, spoils=True):
                if row.attempt or row.id in book.set_aside_before:
                    book.live.rejoin(asked_of(row), waiting_standing(row))
                else:
                    book.live.submit(asked_of(row))
                line_up(book.live, book.jobs, row.id, last)
                last = row.id
        for row in back:
            with book.about(row.id, now_s, spoils=True):
                book.live.come_back(asked_of(row), waiting_standing(row))
                line_up(book.live, book.jobs, row.id)
        for jobs in (book.outside, book.set_aside_before):
            jobs.difference_update(row.id for row in let_in)

    def _let_in(self, book: Book, now_s: float) -> list[JobRow]:
        """Return the jobs outside of the queue that come into it, the first first."""
        quota = Quota(self.parts.gpus_per_user, (row for row in book.jobs.values() if row.id not in book.outside))
        let_in = []
        for row in sorted((book.jobs[job] for job in book.outside), key=queue_key):
            with book.about(row.id, now_s):
                changes = self._changes_outside(book, row, now_s)
                is_kept_out = row.id in book.unfit or book.errors.rests(row.id, now_s)
                if not changes and is_eligible(row, now_s) and not is_kept_out and quota.lets_in(row):
                    let_in.append(row)
        return let_in

    def _changes_outside(self, book: Book, row: JobRow, now_s: float) -> bool:
        """Let a job outside of the cluster's queue come into the state that is wanted of it, if that is another one."""
        if row.desired is Desired.CANCEL:
            book.change_job(row, JobState.CANCELLED, WISHED[Desired.CANCEL], now_s)
        elif row.state is JobState.HELD:
            if row.desired is Desired.RUN:
                book.change_job(
                    row, JobState.QUEUED, WISHED[Desired.RUN], now_s, no_progress=0, entered_s=now_s, not_before_s=0.0
                )  # fmt: skip
        elif row.desired is Desired.HOLD:
            book.change_job(row, JobState.HELD, WISHED[Desired.HOLD], now_s)
        elif not 1 <= row.gpus <= self.parts.layout.gpus:
            cause = f"it asks for {row.gpus} GPUs, and the cluster has {self.parts.layout.gpus}"
            book.change_job(row, JobState.FAILED, cause, now_s, cause_class=str(ExitClass.USER))
        else:
            return False
        return True

    def _place(self, book: Book, now_s: float) -> None:
        """Decide about the jobs that are due now, reserve the GPUs in one transaction, and launch."""
        started, until, due = [], time.monotonic() + PLACE_S, book.live.due()
        while due is not None:
            with book.about(due, now_s, spoils=True, what="placing", step="decision"):
                decision = self.parts.deciding.settle(book.live, book.nodes_of)
                book.errors.took(due, "placing", "decision", now_s)
            step = "start" if decision.started else "wait"
            with book.about(decision.job, now_s, spoils=True, what="placing", step=step):
                self._carry_on(book, decision, now_s)
                book.errors.took(decision.job, "placing", step, now_s)
                book.errors.went_well(decision.job)
            started += [decision.job] if decision.started else []
            due = book.live.due()
            if due == decision.job and not decision.started:
                due = None  # nobody may overtake it, and it cannot start before something happens
            if time.monotonic() >= until:
                break
        refused = book.write(now_s)
        self.is_behind = due is not None or refused
        settle(book, now_s, [job for job in started if job in book.attempts])

    def _carry_on(self, book: Book, decision: Decision, now_s: float) -> None:
        """Do what follows from a decision."""
        number = self._open(book, decision, now_s) if decision.started else None
        if decision.past:
            book.decided(self._noted(decision, number, now_s))
        elif self._is_unfit(book, decision.job):
            book.set_aside(decision.job)

    def _is_unfit(self, book: Book, job: str) -> bool:
        """Say whether no GPUs in service could hold a job, though they are as many as it asks for."""
        nodes = book.nodes_of(job)
        return nodes > 0 and not fitted(book.live, job, (), nodes, in_service=True)

    def _open(self, book: Book, decision: Decision, now_s: float) -> int:
        standing = book.live.standing(decision.job)
        placement = self.parts.layout.placement(decision.gpus)
        opening = Opening(self.parts.backend_name, placement, standing.slowdown, standing.overhead_s)
        return book.open(book.jobs[decision.job], opening, f"placed by {decision.by}", now_s)

    def _noted(self, decision: Decision, number: int | None, now_s: float) -> NewDecision:
        deciding, layout = self.parts.deciding, self.parts.layout
        said, seen = decision.said, decision.seen
        explanation = {
            "obeyed": decision.by, "fallback": deciding.fallback.name, "fallback_job": decision.instead.job,
            "kind": decision.kind, "missed": decision.reason,
            "said": None if said is None else said._asdict(), "rests": decision.rests,
            "said_placement": [asdict(it) for it in layout.placement(said.gpus)] if said and said.gpus else None,
            "said_expected": None if decision.said_expected is None else asdict(decision.said_expected),
            "agrees": None if said is None else said.agrees(decision.instead),
            "expected": None if decision.expected is None else asdict(decision.expected),
            "fallback_expected": None if decision.instead_expected is None else asdict(decision.instead_expected),
            "actions": None if seen is None else seen.actions, **_chance(seen),
        }  # fmt: skip
        return NewDecision(
            decision.job, number, now_s, deciding.policy or deciding.fallback.name, decision.version, deciding.mode,
            layout.placement(decision.gpus) if decision.gpus else None,
            layout.placement(decision.instead.gpus) if decision.instead.gpus else None, explanation,
            None if seen is None else seen.observation, None if seen is None else seen.mask,
            None if seen is None else seen.log_probability, decision.past, decision.took_s,
        )  # fmt: skip


def _chance(seen: Stored | None) -> dict[str, object]:
    """Return how probable a network held what it did, and among how many first actions."""
    if seen is None:
        return {"probability": None, "options": None}
    whole = seen_of(seen)
    logs = whole.log_probabilities[np.arange(whole.actions.size), whole.actions]
    return {"probability": float(np.exp(logs.sum())), "options": int(whole.masks[0].sum())}
