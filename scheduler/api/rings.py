"""What runs inside a job: its ring, its planned sub-tasks, and its step times.

Source: SPEC P1, P2, F2, F3.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, Literal, NamedTuple, TypeVar

from fastapi import APIRouter
from pydantic import BaseModel

from ...cluster.model.training_plan import PlanFile, StagePlan
from ...ring.wire import Recovery, RingReport, from_json
from ..backends.protocol import MemberPlace, call_backend
from ..health.step_monitor import StepFigures
from ..model.job import JobRow
from ..model.job_spec import stored_job_or_default
from ..service.service import Service
from ..store.attempts import AttemptRow, attempts_of, held_gpus
from ..store.nodes import compute_records_of
from ..store.rings import RING_ENDED, ReplacementRow, last_ring_states, replacements_of
from .auth import ServiceDep
from .jobs import JOB_PROBLEMS, FoundJob, rank_places

router = APIRouter()

RING_OVER = ("done", "lost")
Figure = TypeVar("Figure", float, int)


class CandidatePage(BaseModel):
    """A GPU that could have taken a seat; times of an iteration in seconds, none if unknown.

    One that cannot exchange with the neighbours of the seat has none of these figures; `links` has the reason.
    """

    node: str
    gpu: int
    source_s: float | None  # by its own links and computing
    ring_s: float | None  # of the whole ring with it
    compute_s: float | None  # of its computing alone
    from_previous_bytes_per_s: float | None = None  # bandwidth from the member before the seat
    to_next_bytes_per_s: float | None = None  # and to the one behind it
    from_previous_measured_s: float | None = None  # seconds before the choice; none if it is by the cluster file
    to_next_measured_s: float | None = None
    links: str = ""  # whether these bandwidths were measured, and when; in words


class ReplacementPage(BaseModel):
    """A GPU that was given to the ring for an empty seat or as a backup, and why it was that one."""

    rank: int  # of the process there, as its log has it
    node: str
    gpu: int
    at_s: float  # Unix time
    formula: str = ""  # that decided: ring or source; "" for a GPU that was found in use
    average_s: float = 0.0  # of an iteration before
    took_s: float = 0.0  # that the choice took
    considered: int = 0  # candidates
    candidates: tuple[CandidatePage, ...] = ()  # the chosen one first, then the best of the others
    backup_for: int | None = None  # slow member in whose place it computes; none for an empty seat


class PlacePage(BaseModel):
    """A GPU of the ring."""

    node: str
    gpu: int


class MemberPage(BaseModel):
    """A member of the ring, or the last one that was on a GPU of it."""

    member: int
    seat: int | None  # none for a spare, and for one that has left
    node: str
    gpu: int
    rank: int  # in `longshore logs`
    pid: int | None  # on the node, by the node's numbers; none if it does not run


class RingPage(BaseModel):
    """A ring at present, or its last state."""

    phase: str  # stopping, forming, running, done or lost; ended if it was ended from outside
    generation: int
    seats: int
    order: tuple[int, ...]  # member on each seat, -1 for none
    spares: tuple[int, ...]
    relieved: tuple[int, ...]  # slow members in whose place others compute
    step: int
    gone: dict[str, str]
    recoveries: tuple[Recovery, ...]
    hints: tuple[str, ...]  # what may be wrong with the script
    members: tuple[MemberPage, ...]  # by rank; of GPUs that were left those alone that have a seat
    gpus: tuple[PlacePage, ...]  # that it holds, or held last
    replacements: tuple[ReplacementPage, ...]


@router.get("/v1/jobs/{job}/ring", responses=JOB_PROBLEMS)
def ring(row: FoundJob, service: ServiceDep) -> RingPage | None:
    """Show the ring of the last attempt: members by seat, members that left and why, recoveries and replacements.

    After its end, its last state; null if unknown. Source: SPEC F6, F7.
    """
    return ring_page(row.id, service)


def ring_page(job: str, service: Service) -> RingPage | None:
    """Return the ring of a job."""
    with service.store.read() as tx:
        attempts = attempts_of(tx, job)
        if not attempts:
            return None
        last = attempts[-1]
        given = replacements_of(tx, job, last.number)
        held = [(row.node, row.gpu) for row in held_gpus(tx) if row.job_id == job and row.number == last.number]
        kept = last_ring_states(tx, job).get(last.number)
    if kept is not None:
        return _stored_ring_page(kept, given)
    if not service.backend.capabilities.runs_rings:
        return None
    report = call_backend(service.backend.ring_report, last.name)
    if report is None:
        return None
    places = call_backend(service.backend.ring_places, last.name) or ()
    return _reported_ring_page(report, places, held, given)


class SeatHolder(NamedTuple):
    """The rank that holds a seat of a ring."""

    node: str
    gpu: int
    rank: int  # by which its steps are known


def seats_of(job: str, service: Service) -> dict[int, SeatHolder]:
    """Return the members of a job's ring by seat; empty if unknown."""
    page = ring_page(job, service)
    members = () if page is None else page.members
    return {
        member.seat: SeatHolder(member.node, member.gpu, member.rank) for member in members if member.seat is not None
    }


def _stored_ring_page(kept: Mapping[str, Any], given: Sequence[ReplacementRow]) -> RingPage | None:
    """Return the ring of an ended attempt; None if another version stored it in another form."""
    try:
        report: RingReport = from_json(kept["report"], RingReport)
        places = [MemberPlace(*place)._replace(pid=0) for place in kept["places"]]
        gpus = [(node, gpu) for node, gpu in kept["gpus"]]
    except (KeyError, TypeError, ValueError):
        return None
    return _reported_ring_page(
        report if report.phase in RING_OVER else replace(report, phase=RING_ENDED), places, gpus, given
    )


def _reported_ring_page(
    report: RingReport, places: Sequence[MemberPlace], held: Sequence[tuple[str, int]], given: Sequence[ReplacementRow]
) -> RingPage:
    of_report = {field.name: getattr(report, field.name) for field in fields(report)}
    gpus = tuple(PlacePage(node=node, gpu=gpu) for node, gpu in held)
    seats = {member: seat for seat, member in enumerate(report.order) if member >= 0}
    members = tuple(
        MemberPage(
            member=place.member,
            seat=seats.get(place.member),
            node=place.node,
            gpu=place.gpu,
            rank=rank,
            pid=place.pid or None,
        )
        for rank, place in enumerate(places)
        if place.member >= 0 and (place.member in seats or not place.is_left)  # at the end some have left before others
    )
    return RingPage(**of_report, members=members, gpus=gpus, replacements=tuple(map(_replacement_page, given)))


def _replacement_page(row: ReplacementRow) -> ReplacementPage:
    why = {name: row.choice[name] for name in ReplacementPage.model_fields if name in row.choice}
    return ReplacementPage(rank=row.rank, node=row.node, gpu=row.gpu, at_s=row.at_s, **why)


class Edge(BaseModel):
    """What a rank sends in an iteration to a rank that waits for it."""

    kind: str  # tensor, ring (sum of gradients), next (activations) or back (their gradients)
    to: int  # rank
    sent_bytes: float


class SubTask(NamedTuple):
    """What one rank does."""

    rank: int
    stage: int
    replica: int
    member: int  # of its tensor-parallel group
    work: StagePlan
    edges: tuple[Edge, ...]


def tasks_of(plan: PlanFile) -> list[SubTask]:
    """Return what each rank does, in the order of ranks.

    Ranks count tensor-parallel members first, then replicas, then stages: members that exchange most are next to each
    other, and so on one node, as a placement goes through its GPUs node by node.
    """
    return [
        SubTask(_rank(plan, k, r, t), k, r, t, plan.stages[k], tuple(_edges_of_rank(plan, k, r, t)))
        for k in range(plan.pipeline)
        for r in range(plan.data)
        for t in range(plan.tensor)
    ]


def senders_of_ranks(tasks: list[SubTask]) -> list[tuple[int, ...]]:
    """Return for each rank those that send to it, ascending."""
    found: list[set[int]] = [set() for _ in tasks]
    for task in tasks:
        for edge in task.edges:
            found[edge.to].add(task.rank)
    return [tuple(sorted(senders)) for senders in found]


def _rank(plan: PlanFile, stage: int, replica: int, member: int) -> int:
    return (stage * plan.data + replica) * plan.tensor + member


def _edges_of_rank(plan: PlanFile, k: int, r: int, t: int) -> Iterator[Edge]:
    """Find what a rank sends; groups that sum are rings, as libraries make them."""
    work = plan.stages[k]
    if plan.tensor > 1:
        yield Edge(kind="tensor", to=_rank(plan, k, r, (t + 1) % plan.tensor), sent_bytes=work.tensor_bytes)
    if plan.data > 1:
        yield Edge(kind="ring", to=_rank(plan, k, (r + 1) % plan.data, t), sent_bytes=work.ring_bytes)
    if k + 1 < plan.pipeline:
        yield Edge(kind="next", to=_rank(plan, k + 1, r, t), sent_bytes=work.next_bytes)
    if k > 0:
        yield Edge(kind="back", to=_rank(plan, k - 1, r, t), sent_bytes=plan.stages[k - 1].next_bytes)


class SubTaskPage(BaseModel):
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
    computed_s: float | None  # measured, without the sum of gradients; none before the first report
    away_bytes: int | None  # of its state that is put away at present; none if it reports none
    edges: tuple[Edge, ...]
    waits_for: tuple[int, ...]  # ranks


class SubTasksPage(BaseModel):
    """A job with a plan."""

    data: int
    pipeline: int
    tensor: int
    micro_batch: int
    micro_batches: int  # of each replica, in an iteration
    saving: str
    model: str
    hardware: str
    iterations: int  # of all the training; 0 if unknown
    predicted_step_s: float
    step: int | None  # present step; none if it does not run or report steps
    step_s: float | None  # measured; none before the first report
    predicted_total_s: float
    bound_s: float  # upper bound of it
    deadline_s: float | None  # that was asked for
    ends_s: float | None  # Unix time; none of one that does not run
    tasks: tuple[SubTaskPage, ...]  # by rank


@router.get("/v1/jobs/{job}/sub-tasks", responses=JOB_PROBLEMS)
def sub_tasks(row: FoundJob, service: ServiceDep) -> SubTasksPage | None:
    """Show the sub-tasks of a job; null for one without a plan. Of its steps the leading scheduler knows."""
    with service.store.read() as tx:
        attempts = attempts_of(tx, row.id)
    return planned_job(row, attempts, service)


def planned_job(row: JobRow, attempts: list[AttemptRow], service: Service) -> SubTasksPage | None:
    """Return the sub-tasks of a job, None for one without a plan."""
    spec = stored_job_or_default(row.spec)
    if spec.plan is None:
        return None
    figures = service.control.step_figures().get(row.id)
    seats = seats_of(row.id, service) if spec.seats else {}
    return sub_tasks_page(spec.plan, attempts, figures, service.now_s(), seats)


def sub_tasks_page(
    plan: PlanFile,
    attempts: list[AttemptRow],
    figures: StepFigures | None,
    now_s: float,
    seats: Mapping[int, SeatHolder],
) -> SubTasksPage:
    """Return a job with a plan.

    Args:
        plan: Of the job.
        attempts: Of the job; it stands as the last one does.
        figures: Of its steps; None if it does not run or report.
        now_s: The present.
        seats: Holders of the seats of the job's ring, each of which has a sub-task; empty for other jobs.
    """
    tasks, places = tasks_of(plan), rank_places(attempts[-1]) if attempts else []
    holders = seats or {rank: SeatHolder(*place, rank) for rank, place in enumerate(places)}
    average = None if figures is None else figures.average
    step_s, total_s = None if average is None else average.iteration_s, plan.step_s * plan.iterations
    return SubTasksPage(
        data=plan.data, pipeline=plan.pipeline, tensor=plan.tensor, micro_batch=plan.micro_batch,
        micro_batches=plan.micro_batches, saving=plan.saving, model=plan.model, hardware=plan.hardware,
        iterations=plan.iterations, predicted_step_s=plan.step_s, step=None if figures is None else figures.step,
        step_s=step_s, predicted_total_s=total_s, bound_s=total_s * plan.bound_factor,
        deadline_s=plan.deadline_s or None,
        ends_s=None if figures is None else _ends_s(plan, figures.step, step_s or plan.step_s, now_s),
        tasks=tuple(
            _sub_task_page(task, waits, holders.get(task.rank), figures)
            for task, waits in zip(tasks, senders_of_ranks(tasks), strict=True)
        ),
    )  # fmt: skip


def _ends_s(plan: PlanFile, step: int, step_s: float, now_s: float) -> float | None:
    """Return when all iterations will be done at the present speed; None if the plan has no number of iterations."""
    return now_s + max(0, plan.iterations - step) * step_s if plan.iterations and step_s else None


def _sub_task_page(
    task: SubTask, waits_for: tuple[int, ...], holder: SeatHolder | None, figures: StepFigures | None
) -> SubTaskPage:
    work, layers = task.work, task.work.layers
    node, gpu, rank = ("", None, None) if holder is None else holder
    computed_s, away_bytes = ((), ()) if figures is None else (figures.computed_s, figures.away_bytes)
    return SubTaskPage(
        rank=task.rank, runs_as=rank, stage=task.stage, replica=task.replica, member=task.member,
        layers=(layers[0],) if len(layers) == 1 else (layers[0], layers[-1]), node=node, gpu=gpu,
        flops=work.flops, memory_bytes=work.memory_bytes, predicted_s=work.busy_s,
        computed_s=_figure_of_rank(computed_s, rank), away_bytes=_figure_of_rank(away_bytes, rank),
        edges=task.edges, waits_for=waits_for,
    )  # fmt: skip


def _figure_of_rank(figures: tuple[Figure | None, ...], rank: int | None) -> Figure | None:
    return figures[rank] if rank is not None and rank < len(figures) else None


class ComputedPage(BaseModel):
    """How long iterations of a job computed on one type of node."""

    type: str
    iterations: int
    mean_s: float
    last_s: tuple[float, ...]  # the last 32, the newest last


class SeatPage(BaseModel):
    """A rank, in the order of the ring: the last one sends to the first."""

    rank: int
    node: str
    gpu: int
    type: str


class TrainingPage(BaseModel):
    """Iterations of a job."""

    model: str  # its name, by the job file
    iteration_flops: float | None  # of one iteration on one GPU, by the job file
    parameter_bytes: float  # volume of one all-reduce
    ring: tuple[SeatPage, ...]  # of its last attempt
    step: int | None  # present step; none if it does not run or report steps
    loss: float | Literal["nan", "inf", "-inf"] | None  # of the last reported step
    average_iteration_s: float | None  # over the last steps of its slowest node
    steps: int  # that this is the mean of
    slowest: str | None  # that node
    computed: tuple[ComputedPage, ...]


@router.get("/v1/jobs/{job}/training", responses=JOB_PROBLEMS)
def training(row: FoundJob, service: ServiceDep) -> TrainingPage:
    """Show what is known of a job's iterations; of the steps of one that runs the leading scheduler knows."""
    with service.store.read() as tx:
        records, attempts = compute_records_of(tx, row.id), attempts_of(tx, row.id)
    spec, figures = stored_job_or_default(row.spec), service.control.step_figures().get(row.id)
    average = None if figures is None else figures.average
    ring = rank_places(attempts[-1]) if attempts else []
    return TrainingPage(
        model=spec.model, iteration_flops=spec.iteration_flops, parameter_bytes=spec.parameter_bytes,
        ring=tuple(
            SeatPage(rank=rank, node=node, gpu=gpu, type=service.node_types.get(node, ""))
            for rank, (node, gpu) in enumerate(ring)
        ),
        step=None if figures is None else figures.step,
        loss=None if figures is None else loss_in_json(figures.loss),
        average_iteration_s=None if average is None else average.iteration_s,
        steps=0 if average is None else average.steps,
        slowest=None if figures is None or average is None else figures.slowest,
        computed=tuple(
            ComputedPage(type=each.kind, iterations=each.iterations, mean_s=each.mean_s, last_s=each.last_s)
            for each in records
        ),
    )  # fmt: skip


def loss_in_json(loss: float | None) -> float | Literal["nan", "inf", "-inf"] | None:
    """Return a loss for JSON: one that is not finite as a word."""
    if loss is None or math.isfinite(loss):
        return loss
    return "nan" if math.isnan(loss) else "inf" if loss > 0.0 else "-inf"
