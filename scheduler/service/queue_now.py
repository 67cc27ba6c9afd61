"""How the queue stands at a moment, as the store knows it: the place of each job, the GPUs, and why jobs wait.

It takes 0.1 s to read where 10,000 jobs wait, so it is read once for all requests, until something has happened.

Source: SPEC P1, P2.
"""

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sqlalchemy import Connection

from ...cluster.model.orders import ORDER_REGIMES
from ...cluster.model.topology import ANYTHING, NodeNeeds
from ..control.job_errors import JobErrors
from ..control.state_cache import needs_of
from ..model.gpu_index import Layout
from ..model.job import JobRow
from ..model.job_spec import Shape, is_shaped, stored_job_or_default
from ..model.states import Desired, JobState
from ..rules.jobs import LastTurn, Turns, WaitingJob, in_queue_order, queue_places, users_in_turn
from ..settings import SchedulerSettings
from ..store.attempts import DecisionRow, held_gpus, last_decisions_of
from ..store.events import last_seq
from ..store.jobs import owners_of, waiting_jobs
from ..store.nodes import gpus_in_service, user_turns
from .running_scheduler import RunningScheduler

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


def gpu_counts(tx: Connection, layout: Layout) -> GpuCounts:
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
        """Return how the queue stands, by the last event that a transaction sees; a second old at most."""
        seq = last_seq(tx)
        with self._lock:
            if self._last is not None and self._last[0] == seq and time.monotonic() - self._last[1] < self._fresh_s:
                return self._last[2]
            began = time.monotonic()
            queue = self._read(tx, now_s)
            self._last = seq, began, queue
        return queue

    def _read(self, tx: Connection, now_s: float) -> Queue:
        settings, room = self._settings, gpu_counts(tx, self._layout)
        order = ORDER_REGIMES[settings.order]
        waiting, had = waiting_jobs(tx, now_s), self._turns_had(tx)
        line = in_queue_order(waiting, order, settings.ageing_s, now_s, room.in_service, had)
        held = Counter(row.job_id for row in held_gpus(tx)) if settings.limits.gpus is not None else Counter[str]()
        by_owner: Counter[str] = Counter()
        for job, owner in owners_of(tx, sorted(held)).items():
            by_owner[owner] += held[job]
        turns = {} if had is None else _turns_before(waiting, had)
        return Queue(
            self._layout, room, queue_places(line), turns, by_owner, settings.limits.gpus, now_s,
            self._control.why_held_back, self._control.errors, self._control.jobs_being_checked,
            self._control.why_not_launched,
        )  # fmt: skip

    def _turns_had(self, tx: Connection) -> Turns | None:
        """Return the turns that users have had to lead, None where they take none."""
        if not self._settings.turns:
            return None
        return {key: LastTurn(turn.led_s, turn.led) for key, turn in user_turns(tx).items()}

    def ahead_of_new(self, tx: Connection, owner: str, priority: int, now_s: float) -> int:
        """Return how many waiting jobs would stand before one of an owner and a priority that is submitted now."""
        new = WaitingJob("", owner, priority, 1, 1 << 62, now_s, 0.0, 0.0, 1.0, 0.0)
        line = in_queue_order(
            [*waiting_jobs(tx, now_s), new], ORDER_REGIMES["easy"], math.inf, now_s, 0, self._turns_had(tx)
        )
        return line.index(new)


def _turns_before(waiting: Iterable[WaitingJob], had: Turns) -> dict[tuple[str, int], int]:
    """Return how many users have their turn before each owner of waiting jobs, at each priority."""
    by_priority: dict[int, list[WaitingJob]] = {}
    for job in waiting:
        by_priority.setdefault(job.priority, []).append(job)
    return {
        (owner, priority): before
        for priority, jobs in by_priority.items()
        for before, owner in enumerate(users_in_turn(jobs, had))
    }


@dataclass(frozen=True, slots=True)
class Waiting:
    """Why a job does not run yet."""

    position: int | None  # in the queue, from 1; none outside of it
    turn: int | None  # users whose turn comes before its owner's at its priority; none outside, or without turns
    reason: str


PENDING_STATES = (JobState.QUEUED, JobState.HELD, JobState.STARTING)


def why_jobs_wait(tx: Connection, rows: Sequence[JobRow], queue: Queue) -> dict[str, Waiting]:
    """Return the places in the queue of waiting jobs, and why they wait, by id."""
    last = last_decisions_of(tx, [row.id for row in rows if row.state in PENDING_STATES and row.id in queue.places])
    return {row.id: _why_waits(row, queue, last.get(row.id)) for row in rows if row.state in PENDING_STATES}


def _why_waits(row: JobRow, queue: Queue, last: DecisionRow | None) -> Waiting:
    place = queue.places.get(row.id)
    outside = _why_outside(row, queue)
    if outside or place is None:
        return Waiting(position=None, turn=None, reason=outside or "it is decided about next")
    turn = queue.turns.get((row.owner, row.priority))
    return Waiting(position=place, turn=turn, reason=_why_in_queue(row, queue, place, last))


def _why_outside(row: JobRow, queue: Queue) -> str:
    """Return why a job is not in the queue, nothing if it is."""
    if row.state is JobState.STARTING and (error := queue.why_not_launched(row.id) or queue.errors.last_error(row.id)):
        return f"its GPUs are reserved, and it could not be launched yet, which is tried again: {error}"
    if row.state is JobState.STARTING:
        going_on = "its nodes are being checked" if row.id in queue.checked else "its processes are being started"
        return f"its GPUs are reserved, and {going_on}"
    if row.desired is Desired.CANCEL:
        return "it is being cancelled"
    if row.desired is Desired.HOLD:
        return "it is held until its owner releases it"
    if row.state is JobState.HELD:
        return row.cause or "it is held"
    if (left_s := row.wait_left_s(queue.now_s)) > 0.0:
        return f"it is tried again in {left_s:.0f} s, after: {row.cause}"
    return ""


def _why_in_queue(row: JobRow, queue: Queue, place: int, last: DecisionRow | None) -> str:
    needs = needs_of(row)
    room = queue.room if needs == ANYTHING else queue.room.on(queue.layout.nodes_for(needs))
    asks = f"it asks for {_gpus_text(row.gpus)} {needs.words}".rstrip()
    error = queue.errors.why_resting(row.id, queue.now_s)
    if queue.held_back or error:
        return queue.held_back or f"it could not be handled, and is tried again: {error}"
    if row.gpus > room.in_service:
        return f"{asks}, and only {room.in_service} of {room.gpus}{_of_these_text(needs)} are in service"
    if queue.most is not None and queue.held[row.owner] + row.gpus > queue.most:
        return f"{asks}, its owner's jobs hold {queue.held[row.owner]}, and one user may have {queue.most}"
    if row.gpus > room.free:
        count, be = room.free or _none_text(needs), "is" if room.free == 1 else "are"
        return f"{asks}, and {count}{_of_these_text(needs)} {be} free"
    if (shape := _shape_of(row)) is not None and not room.has(shape.nodes, shape.gpus_per_node):
        return f"it asks for {shape.words}, and the free GPUs do not lie so"
    if last is not None and last.placement is None:
        return f"{last.explanation.get('decided_by')} lets it wait for better GPUs"
    if place == 1:
        return "it is decided about next"
    before = "1 job stands before it" if place == 2 else f"{place - 1} jobs stand before it"
    return f"{before}, {_turn_text(row, queue)}".removesuffix(", ")


def _turn_text(row: JobRow, queue: Queue) -> str:
    """Return whose turn it is at a job's priority; "" without turns, and with one user alone."""
    before = queue.turns.get((row.owner, row.priority))
    if before is None or sum(priority == row.priority for _, priority in queue.turns) < 2:
        return ""
    if before == 0:
        return "and it is its owner's turn"
    return "and 1 other user has a turn first" if before == 1 else f"and {before} other users have their turns first"


def _of_these_text(needs: NodeNeeds) -> str:
    return "" if needs == ANYTHING else " of these"


def _none_text(needs: NodeNeeds) -> str:
    return "0" if needs == ANYTHING else "none"


def _shape_of(row: JobRow) -> Shape | None:
    return stored_job_or_default(row.spec).shape if is_shaped(row.spec) else None


def _gpus_text(count: int) -> str:
    return "1 GPU" if count == 1 else f"{count} GPUs"
