"""What the leading scheduler knows: a copy of the store's open jobs, and the arrays that policies see."""

import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TypeVar, Unpack

from sqlalchemy import Connection

from ...cluster.files.errors import words_of
from ..backends.protocol import Backend
from ..health.fault_report import learned_from, read_fault_history
from ..health.monitor import Health, Monitor
from ..mirror.cluster_mirror import ClusterMirror
from ..mirror.standing import ClusterSite, MirrorOrigin
from ..mirror.vacant_seats import PlacementShape
from ..model.gpu_index import Layout
from ..model.job import SCHEDULER_WRITER, JobRow, NewEvent, ReservationRow
from ..model.states import FINAL, AttemptState, Contact, Desired, JobState
from ..placement.placer import Placer
from ..rules.attempts import Whose
from ..store.attempts import AttemptColumns, AttemptRow, NewAttempt, held_gpus
from ..store.decisions import NewDecision
from ..store.engines import StoreRefusesError
from ..store.events import last_complete_seq, told_by_others
from ..store.jobs import JobColumns, sum_of_estimates
from ..store.nodes import UserTurn, user_turns
from ..store.opening import Store, try_out
from ..store.transitions import (
    AttemptChange,
    Changes,
    JobChange,
    Opened,
    changed_attempt,
    changed_job,
    jobs_apart,
    open_jobs_apart,
    opened_attempt,
    opened_job,
    unclosed_attempts_apart,
    write_changes,
)
from .job_errors import OF_NO_JOB, JobErrors, Launches, SpoiledError
from .node_checks import NodeChecks
from .rehydrate import as_held, estimate_of, form_of, known_of

log = logging.getLogger(__name__)

PartT = TypeVar("PartT")


@dataclass(frozen=True, slots=True)
class Parts:
    """What a scheduler works with."""

    store: Store
    backend: Backend
    backend_name: str  # its full name
    site: ClusterSite
    layout: Layout
    placer: Placer
    now_s: Callable[[], float]  # Unix time
    owner: str  # of the lease, for people
    monitor: Monitor
    gpus_per_user: int | None = None  # held and in the queue; None for any number
    against_starts: Callable[[], str] = lambda: ""  # why no job may start at the moment, "" if jobs may
    # Runs the checks that may clear a node, or a GPU of it, of quarantine: passed, and evidence. None without checks.
    check_place: Callable[[str, int | None], tuple[bool, str]] | None = None
    checks: NodeChecks = field(default_factory=NodeChecks)  # before jobs start, and after they end
    wake: Callable[[], None] = lambda: None  # lets the scheduler look at once; any thread may call it


class StateCache:
    """A copy of the store under one token. Whoever finds that it is old reads a new one.

    What changes is changed in the copy at once, and in the store with `write`: all that has changed since the last
    one, in one transaction. A job, or an attempt, changes once between two of them at most.

    Args:
        parts: What the scheduler works with.
        fence: Token of its lease.
        errors: What went wrong with single jobs so far.
    """

    def __init__(self, parts: Parts, fence: int, errors: JobErrors) -> None:
        self.parts, self.fence, self.errors, self.health = parts, fence, errors, parts.monitor.health
        self._changes = Changes()
        now_s = parts.now_s()
        with parts.store.read() as tx:
            self._seq = last_complete_seq(tx)
            (rows, unreadable), (attempts, torn) = open_jobs_apart(tx), unclosed_attempts_apart(tx)
            (count, sum_s), held = sum_of_estimates(tx), held_gpus(tx)
            past, turns = read_fault_history(tx, now_s), user_turns(tx)
        self.unreadable = dict[str, str]()  # why, by the ids of jobs that are to be held for it
        self._pass_over(unreadable)
        for (job, number), why in torn.items():
            log.error("attempt %d of job %s cannot be read, its GPUs stay held: %s", number, job, why)
        self.jobs: dict[str, JobRow] = {row.id: row for row in rows}  # in no final state, in order of submission
        self.attempts: dict[str, AttemptRow] = {row.job_id: row for row in attempts}  # the last of each job, not closed
        self.left = [row for row in attempts if self.attempts[row.job_id] != row]  # earlier ones, only to be closed
        errors.keep({*self.jobs, *self.attempts})
        ready = [row for row in rows if row.id in self.attempts or not errors.rests(row.id, now_s)]
        known = known_of(
            ready, as_held(rows, self.attempts, held), parts.layout, (), now_s, parts.gpus_per_user,
            lambda job: errors.about(job, now_s, lambda: None), turns,
        )  # fmt: skip
        self.is_torn = False  # what stands in the arrays is less than what could
        self.has_freed = False  # GPUs came free since somebody last set this back
        out = [*self.health.faulty, *self.health.closed, *self._held_by_others(held, known)]
        waiting = {row.id for row in rows if row.state in (JobState.QUEUED, JobState.HELD)}
        self.outside = waiting - set(known.queue)  # jobs that wait, but not in the queue of the cluster
        new = [estimate_of(row) for row in rows if row.id in self.outside and not row.attempt]  # not let in yet
        estimates = (max(count - len(new), 0), max(sum_s - sum(new), 0.0))
        self.mirror = ClusterMirror(
            parts.site,
            known._replace(estimates=estimates, down=out, beliefs=learned_from(parts.site, parts.layout, past)),
        )
        self.unwanted: set[str] = set()  # jobs in the queue of the cluster that are not to run any more
        self.cancelled: set[str] = set()  # names of attempts that the backend was told to stop
        self.cancelled_s: dict[str, float] = {}  # when it first was, by a clock that nobody sets
        self.launches = Launches()  # that failed
        self.had_turn: dict[str, Whose] = {}  # jobs whose attempts were looked at since there last was time for all
        self.close_after_s: dict[str, float] = {}  # when what an attempt left is removed again, by its name
        self.ranked: set[str] = set()  # jobs in the cluster that were given another priority
        self.unfit: set[str] = set()  # jobs outside that no GPUs in service could hold
        self.set_aside_before: set[str] = set()  # those, and they keep what they have waited until they are in again
        self._moment_s = now_s - 1.0
        parts.placer.begin(self.mirror)

    def _held_by_others(self, held: Iterable[ReservationRow], known: MirrorOrigin) -> list[int]:
        """Return the GPUs that are reserved for what does not stand in the cluster's arrays: nobody gets them."""
        seen, layout = {gpu for _, standing in known.jobs for gpu in standing.gpus}, self.parts.layout
        return sorted({layout.number(it.node, it.gpu) for it in held} - seen)

    def _pass_over(self, unreadable: Mapping[str, str]) -> None:
        for job, why in unreadable.items():
            log.error("job %s cannot be read, and is passed over: %s", job, why)
        self.unreadable |= unreadable

    def about(
        self, job: str, now_s: float, *, spoils: bool = False, what: str = "handling", step: str = ""
    ) -> AbstractContextManager[None]:
        """Hold what is done about one job: an error there that nobody foresaw holds up no other (job_errors.py).

        Args:
            job: The job.
            now_s: The present.
            spoils: Whether such an error leaves something half done that is seen neither in the changes to be written
                nor in what the cluster's arrays were told.
            what: Is done, in a word.
            step: Of that, if it is one that each job takes.
        """
        return self.errors.about(job, now_s, self.mark, spoils=spoils, what=what, step=step)

    def mark(self) -> tuple[int, int]:
        """Return another value once anything has changed."""
        return len(self._changes), self.mirror.changes

    def happens(self, now_s: float) -> None:
        """Let time pass in the cluster's arrays until now, once for all that happens now."""
        if now_s != self._moment_s:
            self._moment_s = now_s
            self.mirror.begin(now_s)

    def happened(self, now_s: float) -> bool:
        """Say whether something happened now."""
        return now_s == self._moment_s

    def keep_out(self, health: Health, now_s: float) -> None:
        """Let jobs start on no GPU that is faulty or closed, and again on those that are so no more."""
        if health == self.health:
            return
        self.happens(now_s)
        self.unfit.clear()
        for was, now in ((self.health.faulty, health.faulty), (self.health.closed, health.closed)):
            for gpu in sorted(set(now) - set(was)):
                self.mirror.take_out(gpu)
            for gpu in sorted(set(was) - set(now)):
                self.mirror.bring_back(gpu)
        if failed := sorted(set(health.failed) - set(self.health.failed)):
            self.mirror.fail(failed)
        self.health = health

    def change_job(self, row: JobRow, now: JobState, cause: str, now_s: float, **columns: Unpack[JobColumns]) -> None:
        """Let a job come into another state."""
        change = JobChange(row.id, row.state, now, cause, columns)
        self._changes.jobs.append(change)
        self._keep(changed_job(row, change, now_s))

    def change_attempt(
        self, row: AttemptRow, now: AttemptState, cause: str, now_s: float, **columns: Unpack[AttemptColumns]
    ) -> None:
        """Let an attempt come into another state."""
        self._change(AttemptChange(row, now, row.contact, cause, columns), now_s)

    def set_contact(self, row: AttemptRow, contact: Contact, cause: str, now_s: float) -> None:
        """Note whether an attempt can be reached."""
        self._change(AttemptChange(row, row.state, contact, cause, {}), now_s)

    def note_cleanup(self, row: AttemptRow, error: str, now_s: float) -> None:
        """Note what keeps an ended attempt from being closed."""
        self._change(AttemptChange(row, row.state, row.contact, "", {"cleanup_error": error}), now_s)

    def tell(self, event: NewEvent, out_of_service: Mapping[str, str]) -> None:
        """Store an event, and take nodes out of service, together with all else that changes now."""
        self._changes.events.append(event)
        self._changes.out_of_service |= out_of_service

    def _change(self, change: AttemptChange, now_s: float) -> None:
        self._changes.attempts.append(change)
        after = changed_attempt(change, now_s)
        if change.row in self.left:
            self.left.remove(change.row)
            if after.state is not AttemptState.CLOSED:
                self.left.append(after)
        elif after.state is AttemptState.CLOSED:
            del self.attempts[after.job_id]
        else:
            self.attempts[after.job_id] = after

    def open(self, job: JobRow, opening: NewAttempt, cause: str, now_s: float) -> int:
        """Start a job, and return the number of its attempt."""
        turn = self.mirror.turn(job.id)
        had = None if turn is None else UserTurn(job.owner, -turn.rank, *turn[2:])
        opened = Opened(job, opening, cause, had)
        if job.id in self.attempts:
            self.left.append(self.attempts[job.id])
        self._changes.opened.append(opened)
        attempt = self.attempts[job.id] = opened_attempt(opened, now_s)
        self._keep(opened_job(opened))
        return attempt.number

    def form_of(self, job: str) -> PlacementShape | None:
        """Return how the GPUs of an open job must lie on nodes, None if it takes any GPUs."""
        return form_of(self.jobs[job])

    def decided(self, decision: NewDecision) -> None:
        """Store a decision."""
        self._changes.decisions.append(decision)

    def write(self, now_s: float) -> bool:
        """Write all that has changed to the store; return whether a start was refused, and its GPUs are free again.

        Raises:
            FencedError: If another scheduler has taken over.
            StaleWriteError: If this copy is old.
            TakenError: If a GPU is reserved that is free here.
            StoreRefusesError: If the store refuses the changes of any job.
            SpoiledError: If changes of some jobs could not be written; those of all others are.
        """
        if not self._changes:
            return False
        changes, self._changes = self._changes, Changes()

        def put(tx: Connection, part: Changes) -> set[str]:
            return write_changes(tx, self.fence, part, at_s=now_s, writer=SCHEDULER_WRITER)

        try:
            refused = self.parts.store.write(lambda tx: put(tx, changes))
        except OF_NO_JOB:
            raise
        except Exception as error:
            self.write_apart(changes.by_job(), put, error, now_s)
            raise SpoiledError from error
        self.errors.forget(changes.come_further())
        for opened in changes.opened:
            if opened.job.id in refused:
                self._take_back(opened.job)
        return bool(refused)

    def write_apart(
        self, parts: Mapping[str | None, PartT], put: Callable[[Connection, PartT], object], whole: Exception,
        now_s: float,
    ) -> None:  # fmt: skip
        """Write what could not be written together job by job, so that only what is to blame is refused.

        Args:
            parts: By job; under None what concerns none.
            put: Writes one of them.
            whole: Why they could not be written together.
            now_s: The present.

        Raises:
            Exception: `whole`, if the store does not take what concerns no job.
            StoreRefusesError: If it would take no other job's changes either: no job is to blame.
            StoreError: As in `write`.
        """
        refused = dict[str | None, Exception]()
        try:
            try_out(self.parts.store, self.fence, now_s, SCHEDULER_WRITER)
        except OF_NO_JOB:
            raise
        except Exception as error:
            raise StoreRefusesError(f"the store refuses all changes: {words_of(error)}") from error
        for job, part in parts.items():
            try:
                self.parts.store.write(lambda tx, part=part: put(tx, part))  # type: ignore[misc]
            except OF_NO_JOB:
                raise
            except Exception as error:
                refused[job] = error
        for job, refusal in refused.items():
            if job is not None:
                self.errors.blame(job, refusal, now_s)
        if None in refused:
            raise whole

    def _take_back(self, job: JobRow) -> None:
        """Undo the start of a job that its owner did not want any more when it was to be written."""
        del self.attempts[job.id]
        self._keep(job)
        self.mirror.stop(job.id, 0.0)
        self.mirror.withdraw(job.id)
        self.mirror.begin(self.mirror.now_s)  # others may have its GPUs, whatever was decided about them
        self.outside.add(job.id)

    def _keep(self, row: JobRow) -> None:
        """Keep a job as it stands, or drop it if it has ended."""
        if row.state in FINAL:
            self.jobs.pop(row.id, None)
            self.outside.discard(row.id)
        else:
            self.jobs[row.id] = row

    def stop(self, job: str, kept_s: float | None) -> JobColumns:
        """Put a job that ran into the queue of the cluster; return where it stands then.

        Args:
            job: The job.
            kept_s: As `ClusterMirror.stop` takes it.
        """
        if not self.mirror.has(job):
            self.is_torn = True  # its GPUs come back when the store is read anew
            return JobColumns()
        self.mirror.stop(job, kept_s)
        back = self.mirror.standing(job)
        return JobColumns(
            saved_s=back.saved_s, guess_s=back.guess_s, wait_s=back.wait_s, entered_s=back.entered_s
        )  # fmt: skip

    def finish(self, job: str) -> None:
        """End a job that ran."""
        if self.mirror.has(job):
            self.mirror.finish(job)
        else:
            self.is_torn = True

    def leave(self, job: str) -> None:
        """Take a waiting job out of the queue of the cluster."""
        if self.mirror.has(job):
            self.mirror.withdraw(job)
        self.outside.add(job)

    def set_aside(self, job: str) -> None:
        """Take a waiting job out of the queue that no GPUs in service could hold, until these have changed."""
        self.leave(job)
        for jobs in (self.unfit, self.set_aside_before):
            jobs.add(job)

    def follow(self) -> None:
        """Take in what others wrote: new jobs, and what is wanted of old ones."""
        with self.parts.store.read() as tx:
            told, self._seq = told_by_others(tx, self._seq)
            rows, unreadable = jobs_apart(tx, told)
        self._pass_over(unreadable)
        for row in rows:
            if row.state in FINAL:
                continue
            if row.id not in self.jobs:
                self.outside.add(row.id)
            elif row.id not in self.outside and row.priority != self.jobs[row.id].priority:
                self.ranked.add(row.id)
            self.jobs[row.id] = row
            if row.state is JobState.QUEUED and row.desired is not Desired.RUN and row.id not in self.outside:
                self.unwanted.add(row.id)
