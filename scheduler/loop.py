"""The reconcile loop: what is wanted and what is seen become, step by step, the same.

Source: SPEC K6, K7, R8, R10; docs/scheduler.md.
"""

import logging
from functools import partial

from sqlalchemy import Connection

from ..cluster.errors import BackendError
from .book import WRITER, Book, Parts
from .deciding import Decision
from .recall import asked_of, is_eligible
from .settling import settle
from .states import Desired, JobState
from .store.attempts import Opening, open_attempt
from .store.decisions import NewDecision, add_decision
from .store.errors import FencedError, StaleWriteError, TakenError
from .store.jobs import JobRow, change_job
from .store.leases import SCHEDULER, acquire, clock, give_up, renew

log = logging.getLogger(__name__)

LEASE_S, RENEW_S = 15.0, 5.0


class Scheduler:
    """One scheduler of a store, of which one at a time leads."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.book: Book | None = None
        self._renew_at_s = 0.0

    def tick(self) -> bool:
        """Do all that is to be done now; return whether this scheduler leads."""
        try:
            book = self._lead()
            if book is not None:
                self._step(book, self.parts.now_s())
        except FencedError as error:
            log.warning("%s; this one no longer leads", error)
            self.book = None
        except (StaleWriteError, TakenError) as error:
            log.warning("%s; the store is read anew", error)
            if self.book is not None:
                self.book = Book(self.parts, self.book.fence, self.book.down)
        return self.book is not None

    def close(self) -> None:
        """Let another scheduler lead at once; jobs run on."""
        if self.book is not None:
            fence = self.book.fence
            self.parts.store.write(lambda tx: give_up(tx, SCHEDULER, fence))
        self.parts.deciding.end()

    def _lead(self) -> Book | None:
        """Hold the lease, or take it if it is free."""
        parts, now_s = self.parts, self.parts.now_s()
        if self.book is not None and now_s < self._renew_at_s:
            return self.book
        self._renew_at_s = now_s + RENEW_S
        if self.book is not None:
            fence = self.book.fence
            if parts.store.write(lambda tx: renew(tx, SCHEDULER, fence, clock(tx), LEASE_S)):
                return self.book
            raise FencedError("the lease was taken over")
        taken = parts.store.write(lambda tx: acquire(tx, SCHEDULER, parts.owner, clock(tx), LEASE_S))
        if taken is not None:
            log.info("leads with token %d", taken)
            self.book = Book(parts, taken, [])
        return self.book

    def _step(self, book: Book, now_s: float) -> None:
        """Take in what has happened, settle attempts, let jobs in, and start what can start."""
        book.follow()
        self._look_at_nodes(book, now_s)
        settle(book, now_s)
        self._admit(book, now_s)
        if book.live.ages_by(now_s):
            book.happens(now_s)
        if book.happened(now_s):
            self._place(book, now_s)

    def _look_at_nodes(self, book: Book, now_s: float) -> None:
        """Take GPUs out of service that their nodes tell to be faulty, and bring others back."""
        layout = self.parts.layout
        try:
            nodes = self.parts.backend.observe()
        except BackendError as error:
            log.warning("nodes cannot be seen: %s", error)
            return
        down = sorted(
            layout.number(node.name, gpu.index) for node in nodes for gpu in node.gpus if not gpu.healthy
        )  # fmt: skip
        if down == book.down:
            return
        book.happens(now_s)
        for gpu in sorted(set(down) - set(book.down)):
            book.live.take_out(gpu)
        for gpu in sorted(set(book.down) - set(down)):
            book.live.bring_back(gpu)
        book.down = down

    def _admit(self, book: Book, now_s: float) -> None:
        """Let jobs into the queue whose time has come, and out of it those that are not to run."""
        for job in sorted(book.outside, key=lambda job: book.jobs[job].submit_seq):
            row = book.jobs[job]
            if row.desired is Desired.CANCEL:
                self._to(book, row, JobState.CANCELLED, "cancelled by its owner", now_s)
            elif row.state is JobState.HELD:
                if row.desired is Desired.RUN:
                    self._to(book, row, JobState.QUEUED, "run wanted", now_s)
            elif row.desired is Desired.HOLD:
                self._to(book, row, JobState.HELD, "hold wanted", now_s)
            elif is_eligible(row, now_s):
                book.happens(now_s)
                book.live.submit(asked_of(row))
                book.outside.discard(job)
        for row in [row for row in book.jobs.values() if row.state is JobState.QUEUED and row.desired != Desired.RUN]:
            if row.id not in book.outside:
                book.happens(now_s)
                book.live.withdraw(row.id)
                book.outside.add(row.id)
                wanted = JobState.CANCELLED if row.desired is Desired.CANCEL else JobState.HELD
                self._to(book, row, wanted, f"{row.desired} wanted", now_s)

    def _to(self, book: Book, row: JobRow, now: JobState, cause: str, now_s: float) -> None:
        """Change the state of a job that has no attempt."""
        book.write(
            lambda tx, fence: change_job(
                tx, fence, row.id, row.state, now, version=row.version, at_s=now_s, cause=cause, writer=WRITER
            )
        )
        book.read_again(row.id)

    def _place(self, book: Book, now_s: float) -> None:
        """Decide about every job that is due now, reserve the GPUs in one transaction, and launch."""
        decisions = []
        while book.live.due() is not None:
            decisions.append(self.parts.deciding.settle(book.live))
        if decisions:
            book.write(partial(self._store, book, decisions, now_s))
            for decision in decisions:
                book.read_again(decision.job)
            settle(book, now_s)

    def _store(self, book: Book, decisions: list[Decision], now_s: float, tx: Connection, fence: int) -> None:
        """Store decisions, and open the attempts that come of them."""
        for decision in decisions:
            number = self._open(tx, fence, book, decision, now_s) if decision.started else None
            add_decision(tx, fence, self._noted(decision, number, now_s))

    def _open(self, tx: Connection, fence: int, book: Book, decision: Decision, now_s: float) -> int:
        standing = book.live.standing(decision.job)
        placement = self.parts.layout.placement(decision.gpus)
        opening = Opening(self.parts.backend_name, placement, standing.slowdown, standing.overhead_s)
        cause = f"placed by {decision.by}"
        return open_attempt(tx, fence, book.jobs[decision.job], opening, at_s=now_s, cause=cause, writer=WRITER)

    def _noted(self, decision: Decision, number: int | None, now_s: float) -> NewDecision:
        deciding, layout = self.parts.deciding, self.parts.layout
        said, seen = decision.said, decision.seen
        explanation = {
            "obeyed": decision.by, "fallback": deciding.fallback.name, "kind": decision.kind, "missed": decision.reason,
            "said": None if said is None else said._asdict(), "rests": decision.rests,
            "agrees": None if said is None else said.agrees(decision.instead),
            "actions": None if seen is None else seen.actions,
        }  # fmt: skip
        return NewDecision(
            decision.job, number, now_s, deciding.policy or deciding.fallback.name, decision.version, deciding.mode,
            layout.placement(decision.gpus) if decision.gpus else None,
            layout.placement(decision.instead.gpus) if decision.instead.gpus else None, explanation,
            None if seen is None else seen.observation, None if seen is None else seen.mask,
            None if seen is None else seen.log_probability, decision.past, decision.took_s,
        )  # fmt: skip
