"""A cluster as it stands by the rows of the store: what a scheduler begins with, and goes back to after an error.

Policies calculate with these numbers, and one that is not finite would stay with them for ever. So whatever the rows
hold, the results are finite.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from operator import itemgetter
from types import MappingProxyType

from ...cluster.model.needs import ANYTHING, NodeNeeds
from ...cluster.model.placement import Share
from ...cluster.model.training_plan import PlanFile
from ..mirror.cluster_mirror import JobRecord, JobRequest, MirrorOrigin, QueueTurn, Spread
from ..mirror.vacant_seats import PlacementShape
from ..model.gpu_index import Layout
from ..model.job import JobRow, ReservationRow, Tries
from ..model.job_spec import (
    MIN_JOB_ESTIMATE_S,
    StoredJob,
    has_needs,
    is_shaped,
    is_switching,
    stored_job,
    stored_or_usual,
)
from ..model.states import OPEN_ATTEMPTS
from ..rules.jobs import Quota, may_enter
from ..store.attempts import AttemptRow
from ..store.nodes import UserTurn

MAX_TIME_S = 1e12  # of any time, far beyond all that are meant
MAX_SAVED_S, MAX_GUESS_S = 1e90, 1e100  # of work: a time over a slowdown, and the estimate that was doubled beyond it
MAX_SLOWDOWN = 1e60  # as in cluster/placing.py
MAX_RANK = 1 << 31


def _within(value: object, least: float, most: float, otherwise: float) -> float:
    """Return a number, or another one in place of what is beyond bounds or no number."""
    return float(value) if isinstance(value, int | float) and least <= value <= most else otherwise


def request_of(row: JobRow, layout: Layout) -> JobRequest:
    """Return what a job asks for of a cluster."""
    spec = stored_or_usual(row.spec)
    submitted_s, types = _within(row.submitted_s, 0.0, MAX_TIME_S, 0.0), layout.types_for(spec.wants)
    asked = JobRequest(
        row.id, row.gpus, estimate_of(row), submitted_s, rank_of(row), spec.compute_s, spec.parameter_bytes, types,
        user=row.owner,
    )  # fmt: skip
    return asked if spec.plan is None or spec.plan.ranks != spec.gpus else _by_plan(asked, spec.plan)


def _by_plan(asked: JobRequest, plan: PlanFile) -> JobRequest:
    """Return what a job with a plan asks for: placements are scored by what an iteration does by it."""
    did = plan.iteration
    if did is None:
        return asked
    spread = Spread(plan.pipeline, plan.tensor, did.fixed_s, did.edge_bytes, did.tensor_bytes)
    return replace(asked, compute_s=did.compute_s, parameter_bytes=did.gradient_bytes, spread=spread)


def rank_of(row: JobRow) -> int:
    """Return what a job stands in the queue by: those of a lower rank stand before those of a higher."""
    return -int(_within(row.priority, -MAX_RANK, MAX_RANK, 0))


def estimate_of(row: JobRow) -> float:
    """Return how long a job is expected to run on the reference placement, in seconds."""
    return _within(row.estimate_s, MIN_JOB_ESTIMATE_S, MAX_TIME_S, StoredJob.model_fields["estimate_s"].default)


def shape_of(row: JobRow) -> PlacementShape | None:
    """Return how a job's GPUs must lie on nodes, None if it takes any GPUs."""
    if not is_shaped(row.spec):
        return None
    spec = stored_job(row.spec)
    return None if spec.shape is None else PlacementShape(spec.shape.nodes, spec.external is not None)


def needs_of(row: JobRow) -> NodeNeeds:
    """Return what a job needs of the nodes that it runs on."""
    return stored_or_usual(row.spec).wants if has_needs(row.spec) else ANYTHING


def tries_of(row: JobRow) -> Tries:
    """Return how often a job was tried again."""
    return Tries(row.stops_infra, row.stops_resource, row.stops_user, row.stops_asked, row.stops_ambiguous)


def waiting_progress(row: JobRow) -> JobRecord:
    """Return where a job stands that waits."""
    guess_s, entered_s, saved_s = _times(row)
    return JobRecord(
        guess_s, entered_s, saved_s, wait_s=_within(row.wait_s, -MAX_TIME_S, MAX_TIME_S, 0.0), stops=row.attempt,
        first_start_s=_within(row.submitted_s, 0.0, MAX_TIME_S, 0.0) if row.attempt else -1.0,
        came_back=goes_first(row),
    )  # fmt: skip


def running_progress(row: JobRow, attempt: AttemptRow, layout: Layout) -> JobRecord:
    """Return where a job stands that holds GPUs."""
    opened_s = _within(attempt.opened_s, 0.0, MAX_TIME_S, 0.0)
    guess_s, entered_s, saved_s = _times(row)
    return JobRecord(
        guess_s, entered_s, saved_s, wait_s=_within(row.wait_s + opened_s - row.entered_s, -MAX_TIME_S, MAX_TIME_S,
        0.0),
        stops=attempt.number - 1, first_start_s=opened_s, start_s=opened_s,
        overhead_s=_within(attempt.overhead_s, 0.0, MAX_SLOWDOWN, 0.0),
        slowdown=_within(attempt.slowdown, 1.0 / MAX_SLOWDOWN, MAX_SLOWDOWN, 1.0),
        gpus=layout.numbers(attempt.placement),
    )  # fmt: skip


def _times(row: JobRow) -> tuple[float, float, float]:
    """Return a job's estimate as it was doubled, when it last came into the queue, and the work that is saved."""
    return (
        _within(row.guess_s, MIN_JOB_ESTIMATE_S, MAX_GUESS_S, estimate_of(row)),
        _within(row.entered_s, 0.0, MAX_TIME_S, 0.0),
        _within(row.saved_s, 0.0, MAX_SAVED_S, 0.0),
    )


def queue_key(row: JobRow) -> tuple[int, int, float, int]:
    """Return what puts waiting jobs into the order of the queue: stopped ones first, the last to come back first.

    The others stand by when they came into the queue.
    """
    entered_s, not_before_s = (_within(it, 0.0, MAX_TIME_S, 0.0) for it in (row.entered_s, row.not_before_s))
    if goes_first(row):
        return rank_of(row), 0, -max(entered_s, not_before_s), -row.submit_seq
    return rank_of(row), 1, entered_s, row.submit_seq


def goes_first(row: JobRow) -> bool:
    """Return whether a waiting job goes before others of its priority, as it was stopped and is tried again.

    A job that its owner held or retried does not: else a user could get to the head of the queue that way.
    """
    return row.not_before_s > 0.0


def as_held(
    jobs: Sequence[JobRow], attempts: Mapping[str, AttemptRow], held: Iterable[ReservationRow]
) -> dict[str, AttemptRow]:
    """Return attempts with the GPUs that they hold now: a ring gives some up and gets others while it runs.

    Args:
        jobs: Whose attempts.
        attempts: By job, with the GPUs that they began with.
        held: All GPUs that are reserved.
    """
    rings = {row.id for row in jobs if is_switching(row.spec)} & attempts.keys()
    gpus: dict[str, dict[str, list[int]]] = {job: {} for job in rings}
    for it in held:  # by node and index
        if it.job_id in rings and it.number == attempts[it.job_id].number:
            gpus[it.job_id].setdefault(it.node, []).append(it.gpu)
    shares = {job: tuple(Share(node, tuple(its)) for node, its in nodes.items()) for job, nodes in gpus.items()}
    return {job: row._replace(placement=shares[job]) if shares.get(job) else row for job, row in attempts.items()}


def origin_of(
    jobs: Sequence[JobRow],
    attempts: Mapping[str, AttemptRow],
    layout: Layout,
    down: Sequence[int],
    now_s: float,
    gpus_per_user: int | None = None,
    isolated: Callable[[str], AbstractContextManager[None]] = lambda _job: nullcontext(),
    turns: Mapping[tuple[str, int], UserTurn] = MappingProxyType({}),
) -> MirrorOrigin:
    """Return how a cluster stands.

    Args:
        jobs: All that are in no final state, in the order of submission.
        attempts: Those that hold GPUs, by job.
        layout: Of the cluster.
        down: GPUs out of service.
        now_s: The present.
        gpus_per_user: Most that one user may have; None for any number.
        isolated: Isolates what is done about one job; a job with an error is omitted.
        turns: That users had, by owner and priority.
    """
    holding = {job: row for job, row in attempts.items() if row.state in OPEN_ATTEMPTS}
    quota = Quota(gpus_per_user, (row for row in jobs if row.id in holding))
    standing, waiting = dict[str, tuple[JobRequest, JobRecord]](), list[tuple[tuple[int, int, float, int], JobRow]]()
    for row in jobs:
        with isolated(row.id):
            if row.id in holding:
                standing[row.id] = request_of(row, layout), running_progress(row, holding[row.id], layout)
            elif may_enter(row, now_s) and 1 <= row.gpus <= layout.gpus_for(needs_of(row)):
                standing[row.id] = request_of(row, layout), waiting_progress(row)
                waiting.append((queue_key(row), row))
    queued = {row.id: None for _, row in sorted(waiting, key=itemgetter(0)) if quota.take(row)}
    inside = [it for job, it in standing.items() if job in holding or job in queued]
    had = [QueueTurn(user, -priority, *turn[2:]) for (user, priority), turn in turns.items()]
    return MirrorOrigin(now_s, inside, list(queued), down, turns=had)
