"""How the queue stands at a moment, as the store knows it: which place each job has, and which GPUs there are.

It takes 0.1 s to read where 10,000 jobs wait, so it is read once for all who ask, until something has happened.
"""

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping
from typing import NamedTuple

from sqlalchemy import Connection

from ...cluster.dispatch.orders.table import order_of
from ...cluster.model.scenarios import ORDERS
from ..control.facade import Control
from ..control.job_errors import JobErrors
from ..model.gpu_index import Layout
from ..rules.queue_order import Led, Turns, Waiting, in_order, in_turn, places
from ..settings import Settings
from ..store.monitoring.user_turns import user_turns
from ..store.queue_position import owners_of, waiting_jobs
from ..store.rows.events import last_seq
from ..store.rows.nodes import gpus_in_service
from ..store.rows.reservations import held_gpus

FRESH_S = 1.0  # back-offs end, and jobs age, without an event


class Room(NamedTuple):
    """GPUs of some nodes."""

    by_node: Mapping[str, int]
    in_service_by_node: Mapping[str, int]
    free_by_node: Mapping[str, int]  # in service, and held by nobody

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
        """Those in service that nobody holds."""
        return sum(self.free_by_node.values())

    def on(self, nodes: Container[str]) -> "Room":
        """Return those of some of the nodes."""
        return Room(*({node: gpus for node, gpus in part.items() if node in nodes} for part in self))

    def has(self, nodes: int, gpus_per_node: int) -> bool:
        """Say whether so many nodes have so many free GPUs each."""
        return sum(free >= gpus_per_node for free in self.free_by_node.values()) >= nodes


class Queue(NamedTuple):
    """All that tells why jobs wait."""

    layout: Layout
    room: Room
    places: dict[str, int]  # of the jobs in the queue, from 1
    turns: Mapping[tuple[str, int], int]  # users whose turn comes before an owner's at a priority; none without turns
    held: Counter[str]  # GPUs that each owner's jobs hold
    most: int | None  # GPUs that one owner may have
    now_s: float
    held_back: str  # why nothing starts at the moment, "" if jobs do
    errors: JobErrors
    checked: frozenset[str]  # jobs whose nodes are being checked before they start
    why_not_launched: Callable[[str], str]  # of a job whose GPUs are reserved; "" if nothing keeps it


def room_in(tx: Connection, layout: Layout) -> Room:
    """Return how many GPUs there are, in service and free: a drained, silent or faulty one is not."""
    in_service = gpus_in_service(tx, layout.nodes)
    held = {(row.node, row.gpu) for row in held_gpus(tx)}
    free = in_service - held
    return Room(layout.nodes, *(Counter(node for node, _ in part) for part in (in_service, free)))


class QueueNow:
    """The queue of a scheduler, as it was last read. Any thread may use it.

    Args:
        settings: Of the scheduler.
        layout: Of its cluster.
        control: What is asked of the scheduler.
        fresh_s: For which it is not read again while nothing happens.
    """

    def __init__(self, settings: Settings, layout: Layout, control: Control, *, fresh_s: float = FRESH_S) -> None:
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
        order = order_of(ORDERS[settings.order])
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
        new = Waiting("", owner, priority, 1, 1 << 62, now_s, 0.0, 0.0, 1.0, 0.0)
        line = in_order([*waiting_jobs(tx, now_s), new], order_of(ORDERS["easy"]), math.inf, now_s, 0, self._had(tx))
        return line.index(new)


def _turns_before(waiting: Iterable[Waiting], had: Turns) -> dict[tuple[str, int], int]:
    """Return how many users have their turn before each owner of waiting jobs, at each priority."""
    by_priority: dict[int, list[Waiting]] = {}
    for it in waiting:
        by_priority.setdefault(it.priority, []).append(it)
    return {
        (owner, priority): before
        for priority, jobs in by_priority.items()
        for before, owner in enumerate(in_turn(jobs, had))
    }
