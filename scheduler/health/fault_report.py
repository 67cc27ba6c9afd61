"""Faults in the stored events: rates, repairs and lemon nodes, as policies estimate them.

Source: SPEC F1; docs/nodes.md, Fault history; docs/simulator.md, Fault rates.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

from sqlalchemy import Connection

from ...cluster.state.beliefs import HALF_LIFE_S
from ..mirror.cluster_mirror import Beliefs, ClusterMirror, ClusterSite, MirrorOrigin
from ..model.gpu_index import Layout
from ..store.events import EventRow, first_event_s, last_events_without_job
from ..store.nodes import CHANGE, FAULTY, HEALTHY, IN_SERVICE, OUT_OF_SERVICE
from ..store.schema import Liveness

FAULTS_KEPT_S = 8.0 * HALF_LIFE_S  # what is older counts for less than 0.4 %
MAX_FAULT_EVENTS = 5000  # a flapping node must not delay a new leader


class FaultHistory(NamedTuple):
    """What happened to nodes and their GPUs."""

    since_s: float  # start of the known past
    events: Sequence[EventRow]  # in their order
    now_s: float


def read_fault_history(tx: Connection, now_s: float) -> FaultHistory:
    """Return what happened to nodes and their GPUs, as far back as it still counts."""
    events = last_events_without_job(tx, CHANGE, now_s - FAULTS_KEPT_S, MAX_FAULT_EVENTS)
    first_s = first_event_s(tx)
    since_s = max(now_s if first_s is None else first_s, now_s - FAULTS_KEPT_S)
    if len(events) == MAX_FAULT_EVENTS:
        since_s = events[0].at_s
    return FaultHistory(min(since_s, now_s), events, now_s)


def learn_beliefs(site: ClusterSite, layout: Layout, past: FaultHistory) -> Beliefs | None:
    """Return what a scheduler learns from these events, None where nothing is learned."""
    if not site.rules.estimated_hazards:
        return None
    mirror = ClusterMirror(site, MirrorOrigin(past.since_s))
    replay = _Replay(mirror, layout)
    for event in past.events:
        replay.apply(event, min(max(event.at_s, mirror.now_s), past.now_s))  # a clock may have been set back
    return mirror.beliefs()


class _Replay:
    """A cluster to which events are applied; one without a change has no effect."""

    def __init__(self, mirror: ClusterMirror, layout: Layout) -> None:
        self._mirror, self._layout = mirror, layout
        self._faulty = set[int]()
        self._silent, self._out = set[str](), set[str]()  # nodes

    def apply(self, event: EventRow, now_s: float) -> None:
        """Apply an event to a node or GPU; skip what is no longer in the cluster."""
        node = (event.data or {}).get("node")
        if not isinstance(node, str) or node not in self._layout.nodes:
            return
        self._mirror.begin(now_s)
        if event.now in (FAULTY, HEALTHY):
            gpu = (event.data or {}).get("gpu")
            if isinstance(gpu, int) and 0 <= gpu < self._layout.nodes[node]:
                self._set_gpu_faulty(self._layout.number(node, gpu), is_faulty=event.now == FAULTY)
        elif event.now in (OUT_OF_SERVICE, IN_SERVICE):
            self._close_or_open_gpus(
                node, self._silent, self._update_membership(self._out, node, is_in=event.now == OUT_OF_SERVICE)
            )
        elif event.now in set(Liveness):
            self._close_or_open_gpus(
                node, self._out, self._update_membership(self._silent, node, is_in=event.now != Liveness.UP)
            )
            if event.now == Liveness.DOWN and node not in self._out:
                self._mirror.fail(self._gpus_of_node(node))

    def _set_gpu_faulty(self, gpu: int, *, is_faulty: bool) -> None:
        if is_faulty and gpu not in self._faulty:
            self._faulty.add(gpu)
            self._mirror.take_out(gpu)
            self._mirror.fail((gpu,))
        elif not is_faulty and gpu in self._faulty:
            self._faulty.remove(gpu)
            self._mirror.bring_back(gpu)

    def _update_membership(self, nodes: set[str], node: str, *, is_in: bool) -> int:
        """Put a node into a set or take it out; return by how much its count there changes."""
        before = node in nodes
        (nodes.add if is_in else nodes.discard)(node)
        return int(is_in) - int(before)

    def _close_or_open_gpus(self, node: str, others: Iterable[str], change: int) -> None:
        """Close a node's GPUs or open them again, unless it stays closed for another reason."""
        if change and node not in others:
            for gpu in self._gpus_of_node(node):
                (self._mirror.take_out if change > 0 else self._mirror.bring_back)(gpu)

    def _gpus_of_node(self, node: str) -> list[int]:
        return [self._layout.number(node, gpu) for gpu in range(self._layout.nodes[node])]


DAY_S = 86400.0
GPU_DOWN = -1  # in place of a GPU: the node itself


@dataclass(frozen=True, slots=True)
class NodeFaults:
    """What is known of the faults of a node."""

    node: str
    type: str
    faults: int  # within the time that is known
    per_day: float  # faults per node-day
    repair_s: float | None  # mean time from a fault to its end, None if none has ended
    hazard_per_s: float | None  # fault rate of each of its GPUs in policies; None without one
    is_lemon: bool  # its rate is far above that of other nodes


@dataclass(frozen=True, slots=True)
class TypeFaults:
    """The same for all nodes of a type."""

    type: str
    nodes: int
    faults: int
    per_day: float
    repair_s: float | None


@dataclass(frozen=True, slots=True)
class FaultReport:
    """What is known of the faults of a cluster."""

    since_s: float  # Unix time; start of the known past
    nodes: Sequence[NodeFaults]  # lemons first, then by rate
    types: Sequence[TypeFaults]


class _Fault(NamedTuple):
    node: str
    began_s: float
    ended_s: float | None


def fault_report(past: FaultHistory, beliefs: Beliefs | None, layout: Layout, types: Mapping[str, str]) -> FaultReport:
    """Return the faults of the past, with what policies have learned from them, None where nothing is learned."""
    days = max(past.now_s - past.since_s, 0.0) / DAY_S
    by_node: dict[str, list[_Fault]] = {node: [] for node in layout.nodes}
    for fault in _faults_in_events(past.events, layout):
        by_node[fault.node].append(fault)
    nodes = [
        NodeFaults(
            node, types.get(node, ""), len(faults), _faults_per_day(len(faults), days), _mean_repair_s(faults),
            None if beliefs is None else beliefs.node_hazard_per_s[at],
            is_lemon=beliefs is not None and bool(beliefs.lemon[at]),
        )
        for at, (node, faults) in enumerate(by_node.items())
    ]  # fmt: skip
    nodes.sort(key=lambda node: (not node.is_lemon, -node.per_day, -(node.hazard_per_s or 0.0), node.node))
    return FaultReport(past.since_s, nodes, _faults_by_type(by_node, types, days))


def _faults_by_type(by_node: Mapping[str, Sequence[_Fault]], types: Mapping[str, str], days: float) -> list[TypeFaults]:
    found = []
    for kind in sorted({types.get(node, "") for node in by_node}):
        own = [faults for node, faults in by_node.items() if types.get(node, "") == kind]
        every = [fault for faults in own for fault in faults]
        found.append(
            TypeFaults(kind, len(own), len(every), _faults_per_day(len(every), days * len(own)), _mean_repair_s(every))
        )
    return found


def _faults_per_day(faults: int, days: float) -> float:
    return faults / days if days > 0.0 else 0.0


def _mean_repair_s(faults: Sequence[_Fault]) -> float | None:
    ended = [max(fault.ended_s - fault.began_s, 0.0) for fault in faults if fault.ended_s is not None]
    return fmean(ended) if ended else None


def _faults_in_events(events: Sequence[EventRow], layout: Layout) -> Iterator[_Fault]:
    """Yield the faults in events: GPUs that turned faulty, and nodes that went down while in service."""
    since_s: dict[tuple[str, int], float] = {}
    out = set[str]()
    for event in events:
        data = event.data or {}
        node, gpu = data.get("node"), data.get("gpu")
        if not isinstance(node, str) or node not in layout.nodes:
            continue
        if event.now in (OUT_OF_SERVICE, IN_SERVICE):
            (out.add if event.now == OUT_OF_SERVICE else out.discard)(node)
        elif event.now in (FAULTY, HEALTHY) and isinstance(gpu, int) and layout.has(node, gpu):
            yield from _begin_or_end_fault(since_s, (node, gpu), event.at_s, is_faulty=event.now == FAULTY)
        elif event.now in (Liveness.DOWN, Liveness.UP) and (event.now == Liveness.UP or node not in out):
            yield from _begin_or_end_fault(since_s, (node, GPU_DOWN), event.at_s, is_faulty=event.now == Liveness.DOWN)
    for (node, _), began_s in since_s.items():
        yield _Fault(node, began_s, None)


def _begin_or_end_fault(
    since_s: dict[tuple[str, int], float], place: tuple[str, int], at_s: float, *, is_faulty: bool
) -> Iterator[_Fault]:
    if is_faulty:
        since_s.setdefault(place, at_s)
    elif place in since_s:
        yield _Fault(place[0], since_s.pop(place), at_s)
