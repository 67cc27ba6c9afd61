"""GET /v1/jobs/{id}/sub-tasks: what each rank of a job with a plan does, where, and for whom it waits.

Source: SPEC P1, P2.
"""

from fastapi import APIRouter

from ...model.job import JobRow
from ...model.stored_spec import stored_or_usual
from ...service.planned import PlacedTask, Planned, planned
from ...service.service import Service
from ...store.rows.attempts import AttemptRow, attempts_of
from ..http.auth import Serving
from ..views.lookup import NO_JOB, Found
from ..views.models import Page
from .rings import seats_of

router = APIRouter()


class EdgePage(Page):
    """What a rank sends in an iteration."""

    kind: str  # tensor, ring (sum of gradients), next (activations) or back (their gradients)
    to: int  # rank
    sent_bytes: float


class SubTaskPage(Page):
    """What one rank does; figures are of an iteration."""

    rank: int  # by the plan; in a ring, the seat
    runs_as: int | None  # rank by which its log is known, in a ring another one; none before the first attempt
    stage: int
    replica: int
    member: int  # of its tensor-parallel group
    layers: tuple[str, ...]  # the first and the last; one if it has no more
    node: str  # "" before the first attempt
    gpu: int | None
    flops: float
    memory_bytes: float
    predicted_s: float  # without what it waits for other stages
    computed_s: float | None  # measured, without the sum of gradients; none before any was told
    away_bytes: int | None  # of its state that is put away at present; none of one that tells of none
    edges: tuple[EdgePage, ...]
    waits_for: tuple[int, ...]  # ranks


class SubTasksPage(Page):
    """A job with a plan."""

    data: int
    pipeline: int
    tensor: int
    micro_batch: int
    micro_batches: int  # of each replica, in an iteration
    saving: str
    model: str
    hardware: str
    iterations: int  # of all the training; 0 if nobody said
    predicted_step_s: float
    step: int | None  # that it is at; none of one that does not run or tell
    step_s: float | None  # measured; none before any was told
    predicted_total_s: float
    bound_s: float  # upper bound of it
    deadline_s: float | None  # that was asked for
    ends_s: float | None  # Unix time; none of one that does not run
    tasks: tuple[SubTaskPage, ...]  # by rank


@router.get("/v1/jobs/{job}/sub-tasks", responses=NO_JOB)
def sub_tasks(row: Found, service: Serving) -> SubTasksPage | None:
    """Show the sub-tasks of a job; null for one without a plan. Of its steps the leading scheduler knows."""
    with service.store.read() as tx:
        attempts = attempts_of(tx, row.id)
    found = planned_job(row, attempts, service)
    return None if found is None else sub_tasks_page(found)


def planned_job(row: JobRow, attempts: list[AttemptRow], service: Service) -> Planned | None:
    """Return how a job with a plan stands, None for one without."""
    spec = stored_or_usual(row.spec)
    if spec.plan is None:
        return None
    figures = service.control.step_figures().get(row.id)
    seats = seats_of(row.id, service) if spec.seats else {}
    return planned(spec.plan, attempts, figures, service.now_s(), seats)


def sub_tasks_page(it: Planned) -> SubTasksPage:
    """Return what is said of a job with a plan."""
    plan, total_s = it.plan, it.plan.step_s * it.plan.iterations
    return SubTasksPage(
        data=plan.data, pipeline=plan.pipeline, tensor=plan.tensor, micro_batch=plan.micro_batch,
        micro_batches=plan.micro_batches, saving=plan.saving, model=plan.model, hardware=plan.hardware,
        iterations=plan.iterations, predicted_step_s=plan.step_s, step=it.step, step_s=it.step_s,
        predicted_total_s=total_s, bound_s=total_s * plan.bound_factor, deadline_s=plan.deadline_s or None,
        ends_s=it.ends_s, tasks=tuple(map(_task_page, it.tasks)),
    )  # fmt: skip


def _task_page(it: PlacedTask) -> SubTaskPage:
    task, layers = it.task, it.task.work.layers
    return SubTaskPage(
        rank=task.rank, runs_as=it.runs_as, stage=task.stage, replica=task.replica, member=task.member,
        layers=(layers[0],) if len(layers) == 1 else (layers[0], layers[-1]), node=it.node, gpu=it.gpu,
        flops=task.work.flops, memory_bytes=task.work.memory_bytes, predicted_s=task.work.busy_s,
        computed_s=it.computed_s, away_bytes=it.away_bytes,
        edges=tuple(EdgePage(**edge._asdict()) for edge in task.edges), waits_for=it.waits_for,
    )  # fmt: skip
