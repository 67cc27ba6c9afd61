"""Admission: which jobs are in the queue of the mirror, and in which order; import of jobs from the backend.

The rules are those of rules/jobs.py. The order is that of `queue_key` over the rows of the store: after any change it
is the same as if the store were read again.

Source: SPEC R8, K7, K8.
"""

import logging
import re
import time
from collections.abc import Collection, Iterable, Mapping, Sequence

from sqlalchemy import Connection

from ...cluster.files.errors import BackendError, error_line
from ..backends.protocol import Backend, ExternalJob
from ..mirror.cluster_mirror import ClusterMirror
from ..model.job import JobRow
from ..model.job_spec import MIN_JOB_ESTIMATE_S, YEAR_S, External, RetrySpec, Shape, StoredJob
from ..model.states import FINAL, Desired, JobState
from ..rules.jobs import JobDo, JobStep, QueueFacts, Quota, next_job_step
from ..rules.retry import ExitClass
from ..store.events import check_fence
from ..store.jobs import GIVEN, MANY, UNKNOWN, JobColumns, NewJob, estimated, get_jobs, insert_job, set_desired
from .rehydrate import goes_first, needs_of, queue_key, rank_of, request_of, waiting_progress
from .state_cache import Parts, StateCache

RELEASE_SPACING_S = 1e-6  # between jobs that are released in one cycle, so that their order is that of the queue


def move_to_place(mirror: ClusterMirror, rows: Mapping[str, JobRow], job: str, last: str | None = None) -> None:
    """Move a waiting job to its place in the queue; other jobs are at theirs, or behind it at the end of the queue.

    Args:
        mirror: The cluster, in whose queue it is.
        rows: Of all jobs in the queue, by id.
        job: The job.
        last: A job at its place, before that of this one. The search for the place of this one begins there, so that
            many jobs that move far pass over the queue once together.
    """
    key, rank = queue_key(rows[job]), rank_of(rows[job])
    before, after = beside = mirror.beside(job)
    if last is not None and before is not None and queue_key(rows[before]) > key:
        before, after = last, mirror.beside(last)[1]
    while before is not None and queue_key(rows[before]) > key:
        before, after = mirror.beside(before)[0], before
    while after is not None and queue_key(rows[after]) < key:
        after = mirror.beside(after)[1]
    if (rank, after) != (mirror.request(job).rank, beside[1]):
        mirror.give_place(job, rank, after)


def reorder_queue(cache: StateCache, now_s: float) -> None:
    """Move jobs to the places of their new priorities; jobs that are admitted later rely on this order."""
    table = cache.table
    moved = table.reprioritised & table.jobs.keys() - table.outside
    ranked = sorted((table.jobs[job] for job in moved), key=queue_key)
    if ranked:
        cache.advance_mirror(now_s)
    for row in ranked:  # to the end first, so that none is in the way of another
        with cache.isolated(row.id, now_s, spoils=True):
            cache.mirror.give_place(row.id, rank_of(row), None)
    last = None
    for row in ranked:
        if row.state is JobState.QUEUED:
            with cache.isolated(row.id, now_s, spoils=True):
                move_to_place(cache.mirror, cache.table.jobs, row.id, last)
                last = row.id
    cache.table.reprioritised.clear()


def admit(cache: StateCache, now_s: float) -> None:
    """Withdraw jobs that are not to run any more from the queue, and admit those that may start."""
    _withdraw(cache, now_s)
    _enqueue(cache, _admissible(cache, now_s), now_s)
    cache.write(now_s)


def _step_of(cache: StateCache, row: JobRow, now_s: float) -> JobStep:
    is_kept_out = row.id in cache.table.unfit or cache.errors.is_resting(row.id, now_s)
    needs = needs_of(row)
    room = cache.parts.layout.gpus_for(needs)
    facts = QueueFacts(row.id not in cache.table.outside, room, is_kept_out, needs.words)
    return next_job_step(row, facts, now_s)


def _withdraw(cache: StateCache, now_s: float) -> None:
    for row in [cache.table.jobs[job] for job in cache.table.to_withdraw if job in cache.table.jobs]:
        leaves = False
        with cache.isolated(row.id, now_s):
            leaves = _step_of(cache, row, now_s).do is JobDo.LEAVE
        if leaves:
            cache.advance_mirror(now_s)
            with cache.isolated(row.id, now_s):
                cache.withdraw(row.id)
    cache.table.to_withdraw.clear()


def _admissible(cache: StateCache, now_s: float) -> list[JobRow]:
    """Change the state of jobs outside the queue if it has to; return the jobs to admit, in order."""
    table = cache.table
    quota = Quota(cache.parts.gpus_per_user, (row for row in table.jobs.values() if row.id not in table.outside))
    admitted = []
    outside = sorted((table.jobs[job] for job in table.outside), key=queue_key)
    for place, row in enumerate(outside):
        with cache.isolated(row.id, now_s):
            step = _step_of(cache, row, now_s)
            if step.do is JobDo.CHANGE:
                _change(cache, row, step, now_s, now_s - RELEASE_SPACING_S * (len(outside) - place))
            elif step.do is JobDo.ENTER and quota.take(row):
                admitted.append(row)
    return admitted


def _change(cache: StateCache, row: JobRow, step: JobStep, now_s: float, entered_s: float) -> None:
    assert step.now is not None
    columns = JobColumns()
    if step.is_released:
        columns = JobColumns(no_progress=0, entered_s=entered_s, not_before_s=0.0)
    elif step.now is JobState.FAILED:
        columns = JobColumns(cause_class=str(ExitClass.USER))
    cache.change_job(row, step.now, step.cause, now_s, **columns)


def _enqueue(cache: StateCache, admitted: list[JobRow], now_s: float) -> None:
    """Put admitted jobs into the queue, each at its place."""
    if admitted:
        cache.advance_mirror(now_s)
    behind = [row for row in admitted if not goes_first(row)]
    back = [row for row in reversed(admitted) if goes_first(row)]  # each goes before all others, or nearly so
    last = None
    for row in behind:
        with cache.isolated(row.id, now_s, spoils=True):
            was_held = row.entered_s != row.submitted_s  # before it ever ran; its wait counts from its release
            if row.attempt or row.id in cache.table.kept_wait or was_held:
                cache.mirror.rejoin(request_of(row, cache.parts.layout), waiting_progress(row))
            else:
                cache.mirror.submit(request_of(row, cache.parts.layout))
            move_to_place(cache.mirror, cache.table.jobs, row.id, last)
            last = row.id
    for row in back:
        with cache.isolated(row.id, now_s, spoils=True):
            cache.mirror.come_back(request_of(row, cache.parts.layout), waiting_progress(row))
            move_to_place(cache.mirror, cache.table.jobs, row.id)
    for jobs in (cache.table.outside, cache.table.kept_wait):
        jobs.difference_update(row.id for row in admitted)


log = logging.getLogger(__name__)

BACKEND_WRITER = "backend"
DISCARD_S = 2.0  # of a cycle, for ends at the backend: each takes two commands
MAX_NAME_CHARACTERS = 40  # of a job's name
# It is run again only after faults of nodes, as its owner expects of the backend. The backend may delay it for reasons
# of its own, which are no fault of the job, however often it gets other GPUs.
EXTERNAL_RETRY = RetrySpec(infra=1000, resource=0, asked=0, ambiguous=0)


class ExternalJobs:
    """Imports jobs that users submitted to the backend itself.

    Args:
        parts: What the scheduler works with.
        discard_s: Time of a cycle for ends at the backend.
    """

    def __init__(self, parts: Parts, *, discard_s: float = DISCARD_S) -> None:
        self._parts, self._discard_s = parts, discard_s
        self._backend = parts.backend if parts.backend.capabilities.has_external_jobs else None
        self._seen: Sequence[ExternalJob] | None = None
        self._ended: set[str] = set()  # jobs in a final state that the backend still knows

    def import_jobs(self, cache: StateCache, now_s: float) -> None:
        """Import new jobs and cancels from the backend, and end there what has ended here.

        Raises:
            FencedError: If another scheduler has taken over.
        """
        if self._backend is None:
            return
        try:
            held = self._backend.external_jobs()
            if held is not self._seen:
                self._import(cache, held, now_s)
                self._seen = held
            self._discard(
                self._backend, held, {job.id for job in cache.table.jobs.values() if job.desired is Desired.CANCEL}
            )
        except BackendError as error:
            log.warning("jobs of the backend cannot be imported: %s", error)

    def _import(self, cache: StateCache, held: Sequence[ExternalJob], now_s: float) -> None:
        unknown_attempts = [row.job for row in held if row.job not in cache.table.jobs and row.job not in self._ended]
        with self._parts.store.read() as tx:
            rows = [
                row
                for at in range(0, len(unknown_attempts), MANY)
                for row in get_jobs(tx, unknown_attempts[at : at + MANY])
            ]
        stored = {row.id for row in rows}
        self._ended = (self._ended | {row.id for row in rows if row.state in FINAL}) & {row.job for row in held}
        unknown = (row for row in held if row.job in unknown_attempts and row.job not in stored and not row.is_over)
        new = [job for it in unknown if (job := _job_of(it)) is not None]
        jobs = cache.table.jobs
        cancelled = [
            row.job for row in held
            if row.is_cancelled and row.job in jobs and jobs[row.job].desired is not Desired.CANCEL
        ]  # fmt: skip
        if new or cancelled:
            self._parts.store.write(lambda tx: _write(tx, cache.fence, new, cancelled, now_s))

    def _discard(self, backend: Backend, held: Iterable[ExternalJob], unwanted: Collection[str]) -> None:
        """End at the backend what has ended here, or is to: an attempt of it may not be stopped by less.

        Raises:
            BackendError: If it is not known whether it ends.
        """
        until_s = time.monotonic() + self._discard_s
        for it in held:
            if (it.job in self._ended or it.job in unwanted) and not it.is_over:
                backend.discard_external_job(it.job)
                if time.monotonic() >= until_s:
                    return  # the next cycle continues


def _job_of(held: ExternalJob) -> NewJob | None:
    """Return the job of the store that a held one becomes, None if it cannot become one."""
    try:
        return new_job_of(held)
    except Exception as error:  # it is one of many, and the others have to come in
        log.error("job %s of the backend cannot be imported: %s", held.job, error_line(error), exc_info=error)
        return None


def _write(tx: Connection, fence: int, new: Iterable[NewJob], cancelled: Iterable[str], now_s: float) -> None:
    check_fence(tx, fence)
    for it in new:
        insert_job(tx, estimated(tx, it), writer=BACKEND_WRITER)
    for job in cancelled:
        set_desired(tx, job, Desired.CANCEL, at_s=now_s, writer=BACKEND_WRITER)


def new_job_of(held: ExternalJob) -> NewJob:
    """Return the job of the store that a held one becomes."""
    given = {
        "name": name_of(held.name), "gpus": held.gpus, "command": ("sbatch", held.name), "retry": EXTERNAL_RETRY,
        "external": External(number=held.number),
        "shape": Shape(nodes=held.nodes, gpus_per_node=held.gpus // held.nodes),
    }  # fmt: skip
    if held.estimate_s is not None:
        given["estimate_s"] = max(MIN_JOB_ESTIMATE_S, min(held.estimate_s, YEAR_S))
    spec = StoredJob.model_validate(given)
    content = spec.model_dump(mode="json")
    return NewJob(
        held.job, spec.name, held.owner, content, spec.priority, spec.gpus, spec.estimate_s, held.submitted_s,
        UNKNOWN if held.estimate_s is None else GIVEN,
    )  # fmt: skip


def name_of(text: str) -> str:
    """Return the nearest name that a job may have here."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower())[:MAX_NAME_CHARACTERS].strip("-") or "job"
