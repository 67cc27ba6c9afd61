"""What the leading scheduler holds in memory: the job table, the mirror of the cluster, and the batch of writes.

- `JobTable`: the open jobs and their attempts, as rows of the store.
- `ClusterMirror` (mirror/cluster_mirror.py): the same cluster as arrays, which policies read.
- `WriteBatch`: the changes that go to the store in the next transaction.

`StateCache` keeps the three consistent: each of its methods changes all that an event changes. `mirror_origin_of` makes
the mirror of the rows: a scheduler begins with it, and goes back to it after an error. Policies calculate with its
numbers, and one that is not finite would stay with them for ever. So whatever the rows hold, the results are finite.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from operator import itemgetter
from types import MappingProxyType
from typing import TypeVar, Unpack

from sqlalchemy import Connection

from ...cluster.files.errors import error_line
from ...cluster.model.placement import Share
from ...cluster.model.topology import ANYTHING, NodeNeeds
from ..backends.protocol import Backend
from ..health.fault_report import learn_beliefs, read_fault_history
from ..health.monitor import ClusterHealth, Monitor
from ..mirror.cluster_mirror import ClusterMirror, ClusterSite, JobRecord, JobRequest, MirrorOrigin, QueueTurn, Spread
from ..mirror.vacant_seats import PlacementShape
from ..model.gpu_index import Layout
from ..model.job import SCHEDULER_WRITER, JobRow, NewEvent, ReservationRow, Tries
from ..model.job_spec import (
    MIN_JOB_ESTIMATE_S,
    StoredJob,
    has_needs,
    is_ring_job,
    is_shaped,
    stored_job,
    stored_job_or_default,
)
from ..model.states import FINAL, OPEN_ATTEMPTS, AttemptState, Contact, Desired, JobState
from ..placement.placer import Placer
from ..rules.attempts import PollTurn
from ..rules.jobs import Quota, may_enter
from ..store.attempts import AttemptColumns, AttemptRow, NewAttempt, held_gpus
from ..store.database import Store, StoreRefusesError
from ..store.events import jobs_changed_by_others, last_complete_seq
from ..store.jobs import JobColumns, sum_of_estimates
from ..store.nodes import UserTurn, user_turns
from ..store.transitions import (
    AttemptChange,
    Changes,
    JobChange,
    JobStart,
    changed_attempt,
    changed_job,
    opened_attempt,
    opened_job,
    readable_jobs,
    readable_open_jobs,
    readable_unclosed_attempts,
    try_writing,
    write_changes,
)
from .job_errors import OF_NO_JOB, FailedLaunches, JobErrors, SpoiledError
from .node_checks import NodeChecks

log = logging.getLogger(__name__)

PartT = TypeVar("PartT")

MAX_TIME_S = 1e12  # of any time, far beyond all that are meant
MAX_SAVED_S, MAX_GUESS_S = 1e90, 1e100  # of work: a time over a slowdown, and the estimate that was doubled beyond it
MAX_SLOWDOWN = 1e60  # as in cluster/placing.py
MAX_RANK = 1 << 31


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What a scheduler is built of, and works with."""

    store: Store
    backend: Backend
    backend_name: str  # its full name
    site: ClusterSite
    layout: Layout
    placer: Placer
    now_s: Callable[[], float]  # Unix time
    owner: str  # of the lease, shown to people
    monitor: Monitor
    gpus_per_user: int | None = None  # that one user may hold or queue for; None for no limit
    why_no_starts: Callable[[], str] = lambda: ""  # why no job may start now, "" if jobs may
    checks: NodeChecks = field(default_factory=NodeChecks)  # of nodes, before jobs start and after they end
    wake: Callable[[], None] = lambda: None  # makes the next tick begin at once; any thread may call it
    gpus_in_check: Callable[[], Collection[tuple[str, int]]] = tuple  # node and index; checks may end their quarantine


class JobTable:
    """Open jobs and their attempts: rows as the store has them, with the changes since they were read.

    Args:
        jobs: All in no final state, in the order of submission.
        attempts: All that are not closed; of one job in the order of their numbers.
        unreadable: Why rows of other jobs cannot be read, by job.

    Attributes:
        jobs: By id.
        attempts: The last attempt of each job, by job.
        earlier: Earlier attempts, which only have to be closed.
        outside: Jobs that wait, but are not in the queue of the mirror.
        unreadable: Jobs to be held because their rows cannot be read, with the reason.
        to_withdraw: Jobs in the queue of the mirror that are not to run any more.
        reprioritised: Jobs in the mirror whose priority has changed.
        unfit: Jobs outside that no GPUs in service could hold.
        kept_wait: Jobs that were set aside as unfit; until they are queued again they keep the time that they waited.
    """

    def __init__(
        self, jobs: Sequence[JobRow], attempts: Sequence[AttemptRow], unreadable: Mapping[str, str]
    ) -> None:  # fmt: skip
        self.jobs: dict[str, JobRow] = {row.id: row for row in jobs}
        self.attempts: dict[str, AttemptRow] = {row.job_id: row for row in attempts}
        self.earlier = [row for row in attempts if self.attempts[row.job_id] != row]
        self.outside: set[str] = set()
        self.unreadable = dict[str, str]()
        self.to_withdraw: set[str] = set()
        self.reprioritised: set[str] = set()
        self.unfit: set[str] = set()
        self.kept_wait: set[str] = set()
        self._add_unreadable(unreadable)

    def _add_unreadable(self, unreadable: Mapping[str, str]) -> None:
        for job, why in unreadable.items():
            log.error("job %s cannot be read, and is skipped: %s", job, why)
        self.unreadable |= unreadable

    def update_or_drop_job(self, row: JobRow) -> None:
        """Keep a job in its new state, or drop it if that is final."""
        if row.state in FINAL:
            self.jobs.pop(row.id, None)
            self.outside.discard(row.id)
        else:
            self.jobs[row.id] = row

    def update_or_drop_attempt(self, before: AttemptRow, after: AttemptRow) -> None:
        """Keep an attempt in its new state, or drop it if it is closed."""
        if before in self.earlier:
            self.earlier.remove(before)
            if after.state is not AttemptState.CLOSED:
                self.earlier.append(after)
        elif after.state is AttemptState.CLOSED:
            del self.attempts[after.job_id]
        else:
            self.attempts[after.job_id] = after

    def add_attempt(self, row: AttemptRow) -> None:
        """Add the next attempt of a job; the one before it only has to be closed."""
        if row.job_id in self.attempts:
            self.earlier.append(self.attempts[row.job_id])
        self.attempts[row.job_id] = row

    def apply_requests(self, rows: Iterable[JobRow], unreadable: Mapping[str, str]) -> None:
        """Take new jobs, and requests for known ones, as other writers stored them."""
        self._add_unreadable(unreadable)
        for row in rows:
            if row.state in FINAL:
                continue
            if row.id not in self.jobs:
                self.outside.add(row.id)
            elif row.id not in self.outside and row.priority != self.jobs[row.id].priority:
                self.reprioritised.add(row.id)
            self.jobs[row.id] = row
            if row.state is JobState.QUEUED and row.desired is not Desired.RUN and row.id not in self.outside:
                self.to_withdraw.add(row.id)


class WriteBatch:
    """Changes that go to the store in one transaction. A job, or an attempt, changes at most once in a batch.

    Args:
        store: Where they go.
        fence: Token of the scheduler's lease.
        errors: Counts jobs whose changes the store refuses.
    """

    def __init__(self, store: Store, fence: int, errors: JobErrors) -> None:
        self.changes = Changes()
        self._store, self._fence, self._errors = store, fence, errors

    def add_event(self, event: NewEvent, out_of_service: Mapping[str, str] = MappingProxyType({})) -> None:
        """Store an event, and take nodes out of service, with the other changes."""
        self.changes.events.append(event)
        self.changes.out_of_service |= out_of_service

    def write(self, now_s: float) -> list[JobRow]:
        """Write the batch, and return the jobs whose starts were refused, as no one requests them any more.

        Raises:
            FencedError: If another scheduler has taken over.
            StaleWriteError: If the copy of the store is old.
            TakenError: If a GPU is reserved that is free here.
            StoreRefusesError: If the store refuses the changes of any job.
            SpoiledError: If changes of some jobs could not be written; those of all others are.
        """
        if not self.changes:
            return []
        changes, self.changes = self.changes, Changes()

        def put(tx: Connection, part: Changes) -> set[str]:
            return write_changes(tx, self._fence, part, at_s=now_s, writer=SCHEDULER_WRITER)

        try:
            refused = self._store.write(lambda tx: put(tx, changes))
        except OF_NO_JOB:
            raise
        except Exception as error:
            self.write_by_job(changes.by_job(), put, error, now_s)
            raise SpoiledError from error
        self._errors.forget(changes.advanced_jobs())
        return [opened.job for opened in changes.opened if opened.job.id in refused]

    def write_by_job(
        self, parts: Mapping[str | None, PartT], write_part: Callable[[Connection, PartT], object],
        joint_error: Exception, now_s: float,
    ) -> None:  # fmt: skip
        """Write job by job what could not be written together, so that only the faulty parts are refused.

        Args:
            parts: By job; under None what concerns no job.
            write_part: Writes one of them.
            joint_error: Why they could not be written together.
            now_s: The present.

        Raises:
            Exception: `joint_error`, if the store does not take what concerns no job.
            StoreRefusesError: If it would refuse another job's changes too: then no job is at fault.
            StoreError: As in `write`.
        """
        refused = dict[str | None, Exception]()
        try:
            try_writing(self._store, self._fence, now_s, SCHEDULER_WRITER)
        except OF_NO_JOB:
            raise
        except Exception as error:
            raise StoreRefusesError(f"the store refuses all changes: {error_line(error)}") from error
        for job, part in parts.items():
            try:
                self._store.write(lambda tx, part=part: write_part(tx, part))  # type: ignore[misc]
            except OF_NO_JOB:
                raise
            except Exception as error:
                refused[job] = error
        for job, refusal in refused.items():
            if job is not None:
                self._errors.charge_error(job, refusal, now_s)
        if None in refused:
            raise joint_error


class StateCache:
    """The state of the leading scheduler under one lease token; it is dropped and read again when it is out of date.

    Args:
        parts: What the scheduler works with.
        fence: Token of its lease.
        errors: Errors of single jobs so far.

    Attributes:
        table: Open jobs and their attempts.
        mirror: The cluster as arrays.
        batch: Changes that are not yet in the store.
        health: Of the cluster's GPUs and nodes, as jobs are placed by it.
        is_incomplete: The mirror lacks what the store has; the state is read again after this cycle.
        gpus_freed: GPUs were freed since this was last reset.
        launches: Attempts whose last launch failed.
        cancelled: Names of the attempts that the backend was to stop.
        cancelled_s: When it first was to, by a monotonic clock.
        close_after_s: When the cleanup of an attempt is tried again, by name.
        polled: Jobs whose attempts were polled since there last was time for all of them, with their turns.
    """

    def __init__(self, parts: Parts, fence: int, errors: JobErrors) -> None:
        self.parts, self.fence, self.errors, self.health = parts, fence, errors, parts.monitor.health
        now_s = parts.now_s()
        with parts.store.read() as tx:
            self._seq = last_complete_seq(tx)
            (rows, unreadable), (attempts, torn) = readable_open_jobs(tx), readable_unclosed_attempts(tx)
            (count, sum_s), held = sum_of_estimates(tx), held_gpus(tx)
            past, turns = read_fault_history(tx, now_s), user_turns(tx)
        for (job, number), why in torn.items():
            log.error("attempt %d of job %s cannot be read, its GPUs stay held: %s", number, job, why)
        self.table = table = JobTable(rows, attempts, unreadable)
        self.batch = WriteBatch(parts.store, fence, errors)
        errors.forget_all_but({*table.jobs, *table.attempts})
        ready = [row for row in rows if row.id in table.attempts or not errors.is_resting(row.id, now_s)]
        origin = mirror_origin_of(
            ready, with_held_gpus(rows, table.attempts, held), parts.layout, (), now_s, parts.gpus_per_user,
            lambda job: errors.isolated(job, now_s, lambda: None), turns,
        )  # fmt: skip
        out = [*self.health.faulty, *self.health.closed, *self._gpus_held_outside_mirror(held, origin)]
        waiting = {row.id for row in rows if row.state in (JobState.QUEUED, JobState.HELD)}
        table.outside = waiting - set(origin.queue)
        new = [estimate_of(row) for row in rows if row.id in table.outside and not row.attempt]  # not admitted yet
        estimates = (max(count - len(new), 0), max(sum_s - sum(new), 0.0))
        beliefs = learn_beliefs(parts.site, parts.layout, past)
        self.mirror = ClusterMirror(parts.site, origin._replace(estimates=estimates, down=out, beliefs=beliefs))
        self.is_incomplete = False
        self.gpus_freed = False
        self.launches = FailedLaunches()
        self.cancelled: set[str] = set()
        self.cancelled_s: dict[str, float] = {}
        self.close_after_s: dict[str, float] = {}
        self.polled: dict[str, PollTurn] = {}
        self._moment_s = now_s - 1.0
        parts.placer.follow_mirror(self.mirror)

    def _gpus_held_outside_mirror(self, held: Iterable[ReservationRow], origin: MirrorOrigin) -> list[int]:
        """Return the reserved GPUs of jobs that the mirror does not have: no job gets them."""
        mirrored, layout = {gpu for _, progress in origin.jobs for gpu in progress.gpus}, self.parts.layout
        return sorted({layout.number(row.node, row.gpu) for row in held} - mirrored)

    def isolated(
        self, job: str, now_s: float, *, spoils: bool = False, action: str = "handling", step: str = ""
    ) -> AbstractContextManager[None]:
        """Isolate what is done about one job: an unforeseen error there holds up no other job (job_errors.py).

        Args:
            job: The job.
            now_s: The present.
            spoils: Whether such an error leaves something half done that shows neither in the batch nor in the calls
                of the mirror.
            action: Is done, in a word.
            step: Of that, if it is one that each job takes.
        """
        return self.errors.isolated(job, now_s, self.change_mark, spoils=spoils, action=action, step=step)

    def change_mark(self) -> tuple[int, int]:
        """Return another value once anything has changed."""
        return len(self.batch.changes), self.mirror.changes

    def advance_mirror(self, now_s: float) -> None:
        """Let time pass in the mirror until now, once for all that happens now."""
        if now_s != self._moment_s:
            self._moment_s = now_s
            self.mirror.begin(now_s)

    def has_mirror_advanced(self, now_s: float) -> bool:
        """Return whether something happened in the mirror now."""
        return now_s == self._moment_s

    def set_health(self, health: ClusterHealth, now_s: float) -> None:
        """Close GPUs that are faulty or out of service to jobs, and open those that are well again."""
        if health == self.health:
            return
        self.advance_mirror(now_s)
        self.table.unfit.clear()
        for was, now in ((self.health.faulty, health.faulty), (self.health.closed, health.closed)):
            for gpu in sorted(set(now) - set(was)):
                self.mirror.take_out(gpu)
            for gpu in sorted(set(was) - set(now)):
                self.mirror.bring_back(gpu)
        if failed := sorted(set(health.failed) - set(self.health.failed)):
            self.mirror.fail(failed)
        self.health = health

    def change_job(self, row: JobRow, now: JobState, cause: str, now_s: float, **columns: Unpack[JobColumns]) -> None:
        """Change the state of a job."""
        change = JobChange(row.id, row.state, now, cause, columns)
        self.batch.changes.jobs.append(change)
        self.table.update_or_drop_job(changed_job(row, change, now_s))

    def change_attempt(
        self, row: AttemptRow, now: AttemptState, cause: str, now_s: float, **columns: Unpack[AttemptColumns]
    ) -> None:
        """Change the state of an attempt."""
        self._change_attempt(AttemptChange(row, now, row.contact, cause, columns), now_s)

    def set_contact(self, row: AttemptRow, contact: Contact, cause: str, now_s: float) -> None:
        """Note whether an attempt can be reached."""
        self._change_attempt(AttemptChange(row, row.state, contact, cause, {}), now_s)

    def note_cleanup_error(self, row: AttemptRow, error: str, now_s: float) -> None:
        """Note what keeps an ended attempt from being closed."""
        self._change_attempt(AttemptChange(row, row.state, row.contact, "", {"cleanup_error": error}), now_s)

    def _change_attempt(self, change: AttemptChange, now_s: float) -> None:
        self.batch.changes.attempts.append(change)
        self.table.update_or_drop_attempt(change.row, changed_attempt(change, now_s))

    def open_attempt(self, job: JobRow, attempt: NewAttempt, cause: str, now_s: float) -> int:
        """Start a job: reserve the GPUs of its next attempt, and return the number of that."""
        turn = self.mirror.queue_turn(job.id)
        user_turn = None if turn is None else UserTurn(job.owner, -turn.rank, *turn[2:])
        opened = JobStart(job, attempt, cause, user_turn)
        row = opened_attempt(opened, now_s)
        self.batch.changes.opened.append(opened)
        self.table.add_attempt(row)
        self.table.update_or_drop_job(opened_job(opened))
        return row.number

    def shape_of(self, job: str) -> PlacementShape | None:
        """Return how the GPUs of an open job must lie on nodes, None if it takes any GPUs."""
        return shape_of(self.table.jobs[job])

    def write(self, now_s: float) -> bool:
        """Write the batch; return whether a start was refused, and its GPUs are free again.

        Raises:
            StoreError: As `WriteBatch.write`.
            SpoiledError: If changes of some jobs could not be written; those of all others are.
        """
        refused = self.batch.write(now_s)
        for job in refused:
            self._undo_start(job)
        return bool(refused)

    def _undo_start(self, job: JobRow) -> None:
        """Undo the start of a job that its owner had cancelled or held before it was written."""
        del self.table.attempts[job.id]
        self.table.update_or_drop_job(job)
        self.mirror.stop(job.id, 0.0)
        self.mirror.withdraw(job.id)
        self.mirror.begin(self.mirror.now_s)  # other jobs may have its GPUs, whatever was decided about them
        self.table.outside.add(job.id)

    def requeue(self, job: str, kept_s: float | None) -> JobColumns:
        """Move a job from its GPUs into the queue of the mirror; return its times for the store.

        Args:
            job: The job.
            kept_s: As `ClusterMirror.stop` takes it.
        """
        if not self.mirror.has(job):
            self.is_incomplete = True  # its GPUs come back when the store is read again
            return JobColumns()
        self.mirror.stop(job, kept_s)
        back = self.mirror.progress(job)
        return JobColumns(
            saved_s=back.saved_s, guess_s=back.guess_s, wait_s=back.wait_s, entered_s=back.entered_s
        )  # fmt: skip

    def finish(self, job: str) -> None:
        """Take a job that ran off its GPUs, and out of the mirror."""
        if self.mirror.has(job):
            self.mirror.finish(job)
        else:
            self.is_incomplete = True

    def withdraw(self, job: str) -> None:
        """Take a waiting job out of the queue of the mirror."""
        if self.mirror.has(job):
            self.mirror.withdraw(job)
        self.table.outside.add(job)

    def set_aside(self, job: str) -> None:
        """Take a waiting job out of the queue that no GPUs in service could hold, until these have changed."""
        self.withdraw(job)
        for jobs in (self.table.unfit, self.table.kept_wait):
            jobs.add(job)

    def move_to_queue_place(self, job: str, last: str | None = None) -> None:
        """Move a waiting job to its place in the queue; other jobs are at theirs, or behind it at the end of the queue.

        Args:
            job: The job, which is in the queue of the mirror.
            last: A job at its place, before that of this one. The search for the place of this one begins there, so
                that many jobs that move far pass over the queue once together.
        """
        rows, mirror = self.table.jobs, self.mirror
        key, rank = queue_key(rows[job]), queue_rank_of(rows[job])
        before, after = beside = mirror.queue_neighbours(job)
        if last is not None and before is not None and queue_key(rows[before]) > key:
            before, after = last, mirror.queue_neighbours(last)[1]
        while before is not None and queue_key(rows[before]) > key:
            before, after = mirror.queue_neighbours(before)[0], before
        while after is not None and queue_key(rows[after]) < key:
            after = mirror.queue_neighbours(after)[1]
        if (rank, after) != (mirror.request(job).rank, beside[1]):
            mirror.give_place(job, rank, after)

    def read_requests(self) -> None:
        """Read what other writers stored: new jobs, and requests to cancel, hold, release or reprioritise old ones."""
        with self.parts.store.read() as tx:
            changed, self._seq = jobs_changed_by_others(tx, self._seq)
            rows, unreadable = readable_jobs(tx, changed)
        self.table.apply_requests(rows, unreadable)


def _number_within(value: object, least: float, most: float, otherwise: float) -> float:
    """Return a number, or another one in place of what is beyond bounds or no number."""
    return float(value) if isinstance(value, int | float) and least <= value <= most else otherwise


def job_request_of(row: JobRow, layout: Layout) -> JobRequest:
    """Return what a job requests of a cluster."""
    spec = stored_job_or_default(row.spec)
    submitted_s, types = _number_within(row.submitted_s, 0.0, MAX_TIME_S, 0.0), layout.types_for(spec.node_needs)
    request = JobRequest(
        row.id, row.gpus, estimate_of(row), submitted_s, queue_rank_of(row), spec.compute_s, spec.parameter_bytes,
        types, user=row.owner,
    )  # fmt: skip
    plan = spec.plan
    if plan is None or plan.iteration is None or plan.ranks != spec.gpus:
        return request
    step = plan.iteration  # placements are scored by what an iteration does by the plan
    spread = Spread(plan.pipeline, plan.tensor, step.fixed_s, step.edge_bytes, step.tensor_bytes)
    return replace(request, compute_s=step.compute_s, parameter_bytes=step.gradient_bytes, spread=spread)


def queue_rank_of(row: JobRow) -> int:
    """Return the rank of a job in the queue: those of a lower rank go before those of a higher."""
    return -int(_number_within(row.priority, -MAX_RANK, MAX_RANK, 0))


def estimate_of(row: JobRow) -> float:
    """Return how long a job is expected to run on the reference placement, in seconds."""
    return _number_within(row.estimate_s, MIN_JOB_ESTIMATE_S, MAX_TIME_S, StoredJob.model_fields["estimate_s"].default)


def shape_of(row: JobRow) -> PlacementShape | None:
    """Return how a job's GPUs must lie on nodes, None if it takes any GPUs."""
    if not is_shaped(row.spec):
        return None
    spec = stored_job(row.spec)
    return None if spec.shape is None else PlacementShape(spec.shape.nodes, spec.external is not None)


def needs_of(row: JobRow) -> NodeNeeds:
    """Return what a job needs of the nodes that it runs on."""
    return stored_job_or_default(row.spec).node_needs if has_needs(row.spec) else ANYTHING


def used_tries_of(row: JobRow) -> Tries:
    """Return how often a job was tried again."""
    return Tries(row.stops_infra, row.stops_resource, row.stops_user, row.stops_again, row.stops_ambiguous)


def waiting_progress(row: JobRow) -> JobRecord:
    """Return the progress of a job that waits."""
    guess_s, entered_s, saved_s = _guess_entered_saved_s(row)
    return JobRecord(
        guess_s, entered_s, saved_s, wait_s=_number_within(row.wait_s, -MAX_TIME_S, MAX_TIME_S, 0.0), stops=row.attempt,
        first_start_s=_number_within(row.submitted_s, 0.0, MAX_TIME_S, 0.0) if row.attempt else -1.0,
        came_back=row.was_stopped,
    )  # fmt: skip


def running_progress(row: JobRow, attempt: AttemptRow, layout: Layout) -> JobRecord:
    """Return the progress of a job that holds GPUs."""
    opened_s = _number_within(attempt.opened_s, 0.0, MAX_TIME_S, 0.0)
    guess_s, entered_s, saved_s = _guess_entered_saved_s(row)
    return JobRecord(
        guess_s, entered_s, saved_s,
        wait_s=_number_within(row.wait_s + opened_s - row.entered_s, -MAX_TIME_S, MAX_TIME_S, 0.0),
        stops=attempt.number - 1, first_start_s=opened_s, start_s=opened_s,
        overhead_s=_number_within(attempt.overhead_s, 0.0, MAX_SLOWDOWN, 0.0),
        slowdown=_number_within(attempt.slowdown, 1.0 / MAX_SLOWDOWN, MAX_SLOWDOWN, 1.0),
        gpus=layout.numbers(attempt.placement),
    )  # fmt: skip


def _guess_entered_saved_s(row: JobRow) -> tuple[float, float, float]:
    """Return a job's estimate as it was doubled, when it last came into the queue, and the work that is saved."""
    return (
        _number_within(row.guess_s, MIN_JOB_ESTIMATE_S, MAX_GUESS_S, estimate_of(row)),
        _number_within(row.entered_s, 0.0, MAX_TIME_S, 0.0),
        _number_within(row.saved_s, 0.0, MAX_SAVED_S, 0.0),
    )


def queue_key(row: JobRow) -> tuple[int, int, float, int]:
    """Return what puts waiting jobs into the order of the queue: stopped ones first, the last to come back first.

    The others are ordered by when they came into the queue.
    """
    entered_s, not_before_s = (_number_within(at_s, 0.0, MAX_TIME_S, 0.0) for at_s in (row.entered_s, row.not_before_s))
    if row.was_stopped:
        return queue_rank_of(row), 0, -max(entered_s, not_before_s), -row.submit_seq
    return queue_rank_of(row), 1, entered_s, row.submit_seq


def with_held_gpus(
    jobs: Sequence[JobRow], attempts: Mapping[str, AttemptRow], held: Iterable[ReservationRow]
) -> dict[str, AttemptRow]:
    """Return attempts with the GPUs that they hold now: a ring gives some up and gets others while it runs.

    A ring that holds none any more, as all its members left, is not among them.

    Args:
        jobs: Whose attempts.
        attempts: By job, with the GPUs that they began with.
        held: All GPUs that are reserved.
    """
    rings = {row.id for row in jobs if is_ring_job(row.spec)} & attempts.keys()
    gpus: dict[str, dict[str, list[int]]] = {job: {} for job in rings}
    for gpu in held:  # by node and index
        if gpu.job_id in rings and gpu.number == attempts[gpu.job_id].number:
            gpus[gpu.job_id].setdefault(gpu.node, []).append(gpu.gpu)
    shares = {job: tuple(Share(node, tuple(held)) for node, held in nodes.items()) for job, nodes in gpus.items()}
    return {
        job: row._replace(placement=shares[job]) if job in rings else row
        for job, row in attempts.items()
        if job not in rings or shares[job]
    }


def mirror_origin_of(
    jobs: Sequence[JobRow],
    attempts: Mapping[str, AttemptRow],
    layout: Layout,
    down: Sequence[int],
    now_s: float,
    gpus_per_user: int | None = None,
    isolated: Callable[[str], AbstractContextManager[None]] = lambda _job: nullcontext(),
    turns: Mapping[tuple[str, int], UserTurn] = MappingProxyType({}),
) -> MirrorOrigin:
    """Return the state of a cluster by the rows of the store.

    Args:
        jobs: All that are in no final state, in the order of submission.
        attempts: Those that hold GPUs, by job.
        layout: Of the cluster.
        down: GPUs out of service.
        now_s: The present.
        gpus_per_user: Most that one user may have; None for no limit.
        isolated: Isolates what is done about one job; a job with an error is omitted.
        turns: That users had, by owner and priority.
    """
    holding = {job: row for job, row in attempts.items() if row.state in OPEN_ATTEMPTS}
    quota = Quota(gpus_per_user, (row for row in jobs if row.id in holding))
    records, waiting = dict[str, tuple[JobRequest, JobRecord]](), list[tuple[tuple[int, int, float, int], JobRow]]()
    for row in jobs:
        with isolated(row.id):
            if row.id in holding:
                records[row.id] = job_request_of(row, layout), running_progress(row, holding[row.id], layout)
            elif may_enter(row, now_s) and 1 <= row.gpus <= layout.gpus_for(needs_of(row)):
                records[row.id] = job_request_of(row, layout), waiting_progress(row)
                waiting.append((queue_key(row), row))
    queued = {row.id: None for _, row in sorted(waiting, key=itemgetter(0)) if quota.take_if_within(row)}
    inside = [record for job, record in records.items() if job in holding or job in queued]
    had = [QueueTurn(user, -priority, *turn[2:]) for (user, priority), turn in turns.items()]
    return MirrorOrigin(now_s, inside, list(queued), down, turns=had)
