"""How the queue and planned jobs stand at a moment, as the store knows it.

How the queue stands at a moment, as the store knows it: which place each job has, and which GPUs there are.

It takes 0.1 s to read where 10,000 jobs wait, so it is read once for all who ask, until something has happened.

The sub-tasks of a job with a plan: which rank does what, and what it sends to whom.

Ranks count tensor-parallel members first, then replicas, then stages: members that exchange most are next to each
other, and so on one node, as a placement goes through its GPUs node by node.

Source: SPEC P1, P2.
"""

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from typing import NamedTuple, TypeVar

from sqlalchemy import Connection

from ...cluster.model.orders import ORDER_REGIMES
from ...cluster.model.training_plan import PlanFile, StagePlan
from ..control.job_errors import JobErrors
from ..control.reconciler import RunningScheduler
from ..health.step_monitor import StepFigures
from ..model.gpu_index import Layout
from ..rules.jobs import Led, Turns, WaitingJob, in_order, in_turn, places
from ..settings import SchedulerSettings
from ..store.attempts import AttemptRow, held_gpus
from ..store.events import last_seq
from ..store.jobs import owners_of, waiting_jobs
from ..store.nodes import gpus_in_service, user_turns

FRESH_QUEUE_S = 1.0  # back-offs end, and jobs age, without an event


class GpuCounts(NamedTuple):
    """GPUs of some nodes."""

    by_node: Mapping[str, int]
    in_service_by_node: Mapping[str, int]
    free_by_node: Mapping[str, int]  # in service and held by no job

    @property
    def gpus(self) -> int:
        """All of them."""
        return sum(self.by_node.values())

    @property
    def in_service(self) -> int:
        """Those on which jobs may start, or could if they were free."""
        return sum(self.in_service_by_node.values())

    @property
    def free(self) -> int:
        """Those in service that no job holds."""
        return sum(self.free_by_node.values())

    def on(self, nodes: Container[str]) -> "GpuCounts":
        """Return those of some of the nodes."""
        return GpuCounts(*({node: gpus for node, gpus in part.items() if node in nodes} for part in self))

    def has(self, nodes: int, gpus_per_node: int) -> bool:
        """Return whether a number of nodes have a number of free GPUs each."""
        return sum(free >= gpus_per_node for free in self.free_by_node.values()) >= nodes


class Queue(NamedTuple):
    """All that explains why jobs wait."""

    layout: Layout
    room: GpuCounts
    places: dict[str, int]  # of the jobs in the queue, from 1
    turns: Mapping[tuple[str, int], int]  # users before each owner, by priority
    held: Counter[str]  # GPUs that each owner's jobs hold
    most: int | None  # GPUs that one owner may have
    now_s: float
    held_back: str  # why no job starts at the moment, "" if jobs do
    errors: JobErrors
    checked: frozenset[str]  # jobs whose nodes are being checked before they start
    why_not_launched: Callable[[str], str]  # of a job whose GPUs are reserved; "" if nothing prevents it


def room_in(tx: Connection, layout: Layout) -> GpuCounts:
    """Return how many GPUs there are, in service and free: a drained, silent or faulty one is not."""
    in_service = gpus_in_service(tx, layout.nodes)
    held = {(row.node, row.gpu) for row in held_gpus(tx)}
    free = in_service - held
    return GpuCounts(layout.nodes, *(Counter(node for node, _ in part) for part in (in_service, free)))


class QueueNow:
    """The queue of a scheduler, as it was last read. Any thread may use it.

    Args:
        settings: Of the scheduler.
        layout: Of its cluster.
        control: The running scheduler.
        fresh_s: Time for which it is not read again if there is no event.
    """

    def __init__(
        self, settings: SchedulerSettings, layout: Layout, control: RunningScheduler, *, fresh_s: float = FRESH_QUEUE_S
    ) -> None:
        self._settings, self._layout, self._control, self._fresh_s = settings, layout, control, fresh_s
        self._lock = threading.Lock()
        self._last: tuple[int, float, Queue] | None = None  # number of the last event, when it was read, what was read

    def read(self, tx: Connection, now_s: float) -> Queue:
        """Return how the queue stands, by the last event that a transaction sees; a second old at most.

        Args:
            tx: Transaction.
            now_s: Unix time.
        """
        seq = last_seq(tx)
        with self._lock:
            if self._last is not None and self._last[0] == seq and time.monotonic() - self._last[1] < self._fresh_s:
                return self._last[2]
            began = time.monotonic()
            queue = self._read(tx, now_s)
            self._last = seq, began, queue
        return queue

    def _read(self, tx: Connection, now_s: float) -> Queue:
        settings, room = self._settings, room_in(tx, self._layout)
        order = ORDER_REGIMES[settings.order]
        waiting, had = waiting_jobs(tx, now_s), self._had(tx)
        line = in_order(waiting, order, settings.ageing_s, now_s, room.in_service, had)
        held = Counter(row.job_id for row in held_gpus(tx)) if settings.limits.gpus is not None else Counter[str]()
        by_owner: Counter[str] = Counter()
        for job, owner in owners_of(tx, sorted(held)).items():
            by_owner[owner] += held[job]
        turns = {} if had is None else _turns_before(waiting, had)
        return Queue(
            self._layout, room, places(line), turns, by_owner, settings.limits.gpus, now_s, self._control.held_back,
            self._control.errors, self._control.checked, self._control.why_not_launched,
        )  # fmt: skip

    def _had(self, tx: Connection) -> Turns | None:
        """Return the turns that users have had to lead, None where they take none."""
        if not self._settings.turns:
            return None
        return {key: Led(turn.led_s, turn.led) for key, turn in user_turns(tx).items()}

    def ahead_of_new(self, tx: Connection, owner: str, priority: int, now_s: float) -> int:
        """Return how many waiting jobs would stand before one of an owner and a priority that is submitted now."""
        new = WaitingJob("", owner, priority, 1, 1 << 62, now_s, 0.0, 0.0, 1.0, 0.0)
        line = in_order([*waiting_jobs(tx, now_s), new], ORDER_REGIMES["easy"], math.inf, now_s, 0, self._had(tx))
        return line.index(new)


def _turns_before(waiting: Iterable[WaitingJob], had: Turns) -> dict[tuple[str, int], int]:
    """Return how many users have their turn before each owner of waiting jobs, at each priority."""
    by_priority: dict[int, list[WaitingJob]] = {}
    for it in waiting:
        by_priority.setdefault(it.priority, []).append(it)
    return {
        (owner, priority): before
        for priority, jobs in by_priority.items()
        for before, owner in enumerate(in_turn(jobs, had))
    }


class Edge(NamedTuple):
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


def sub_tasks(plan: PlanFile) -> list[SubTask]:
    """Return what each rank does, in the order of ranks."""
    return [
        SubTask(_rank(plan, k, r, t), k, r, t, plan.stages[k], tuple(_edges(plan, k, r, t)))
        for k in range(plan.pipeline)
        for r in range(plan.data)
        for t in range(plan.tensor)
    ]


def waited_for(tasks: list[SubTask]) -> list[tuple[int, ...]]:
    """Return for each rank those that send to it, ascending."""
    found: list[set[int]] = [set() for _ in tasks]
    for task in tasks:
        for edge in task.edges:
            found[edge.to].add(task.rank)
    return [tuple(sorted(it)) for it in found]


def _rank(plan: PlanFile, stage: int, replica: int, member: int) -> int:
    return (stage * plan.data + replica) * plan.tensor + member


def _edges(plan: PlanFile, k: int, r: int, t: int) -> Iterator[Edge]:
    """Find what a rank sends; groups that sum are rings, as libraries make them."""
    work = plan.stages[k]
    if plan.tensor > 1:
        yield Edge("tensor", _rank(plan, k, r, (t + 1) % plan.tensor), work.tensor_bytes)
    if plan.data > 1:
        yield Edge("ring", _rank(plan, k, (r + 1) % plan.data, t), work.ring_bytes)
    if k + 1 < plan.pipeline:
        yield Edge("next", _rank(plan, k + 1, r, t), work.next_bytes)
    if k > 0:
        yield Edge("back", _rank(plan, k - 1, r, t), plan.stages[k - 1].next_bytes)


Figure = TypeVar("Figure", float, int)


class SeatHolder(NamedTuple):
    """The rank that holds a seat of a ring."""

    node: str
    gpu: int
    rank: int  # by which its steps are known


class PlacedTask(NamedTuple):
    """A sub-task where it runs."""

    task: SubTask
    runs_as: int | None  # rank by which its log is known; none before the first attempt
    node: str  # "" before the first attempt
    gpu: int | None  # index on the node
    waits_for: tuple[int, ...]  # ranks
    computed_s: float | None  # measured, of an iteration; None before the first report
    away_bytes: int | None  # of its state that is offloaded; None if it reports none


class PlannedJob(NamedTuple):
    """A job with a plan."""

    plan: PlanFile
    tasks: tuple[PlacedTask, ...]
    step: int | None  # that it is at; None if it does not run or report
    step_s: float | None  # measured
    ends_s: float | None  # Unix time at which it will have done all its iterations


def planned(
    plan: PlanFile,
    attempts: list[AttemptRow],
    figures: StepFigures | None,
    now_s: float,
    seats: Mapping[int, SeatHolder],
) -> PlannedJob:
    """Return how a job with a plan stands.

    Args:
        plan: Of the job.
        attempts: Of the job; it stands as the last one does.
        figures: Of its steps; None if it does not run or report.
        now_s: The present.
        seats: Holders of the seats of the job's ring, each of which has a sub-task; empty for other jobs.
    """
    tasks = sub_tasks(plan)
    places = [(share.node, gpu) for share in attempts[-1].placement for gpu in share.gpus] if attempts else []
    computed_s, away_bytes = (figures.computed_s, figures.away_bytes) if figures else ((), ())
    sitting = seats or {rank: SeatHolder(*place, rank) for rank, place in enumerate(places)}
    found = []
    for task, waits in zip(tasks, waited_for(tasks), strict=True):
        it = sitting.get(task.rank)
        node, gpu, rank = ("", None, None) if it is None else it
        found.append(
            PlacedTask(
                task, rank, node, gpu, waits, _figure_of_rank(computed_s, rank), _figure_of_rank(away_bytes, rank)
            )
        )
    average = None if figures is None else figures.average
    step_s = None if average is None else average.iteration_s
    return PlannedJob(
        plan,
        tuple(found),
        None if figures is None else figures.step,
        step_s,
        None if figures is None else _ends_s(plan, figures.step, step_s or plan.step_s, now_s),
    )


def _figure_of_rank(figures: tuple[Figure | None, ...], rank: int | None) -> Figure | None:
    return figures[rank] if rank is not None and rank < len(figures) else None


def _ends_s(plan: PlanFile, step: int, step_s: float, now_s: float) -> float | None:
    """Return when all iterations will be done at the present speed; None if the plan has no number of iterations."""
    return now_s + max(0, plan.iterations - step) * step_s if plan.iterations and step_s else None
