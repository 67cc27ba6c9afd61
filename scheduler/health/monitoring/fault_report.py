"""What the stored past tells of faults: rates, repairs and lemon nodes, as policies estimate them.

Source: SPEC F1; docs/nodes.md, Faults of the past.
"""

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

from ...mirror.standing import Beliefs
from ...model.gpu_index import Layout
from ...store.database.schema import Liveness
from ...store.rows.events import EventRow
from ...store.rows.nodes import FAULTY, HEALTHY, IN_SERVICE, OUT_OF_SERVICE
from ..fault_history import FaultHistory

DAY_S = 86400.0
GPU_DOWN = -1  # in place of a GPU: the node itself


class NodeFaults(NamedTuple):
    """What is known of the faults of a node."""

    node: str
    type: str
    faults: int  # within the time that is known
    per_day: float  # faults per node-day
    repair_s: float | None  # mean time from a fault to its end, None if none has ended
    hazard_per_s: float | None  # rate of faults that policies reckon with, for each of its GPUs; None where none is
    is_lemon: bool  # its rate is far above that of other nodes


class TypeFaults(NamedTuple):
    """The same of all nodes of a type."""

    type: str
    nodes: int
    faults: int
    per_day: float
    repair_s: float | None


class FaultReport(NamedTuple):
    """What is known of the faults of a cluster."""

    since_s: float  # Unix time from when on it is known
    nodes: Sequence[NodeFaults]  # lemons first, then by rate
    types: Sequence[TypeFaults]


class _Fault(NamedTuple):
    node: str
    began_s: float
    ended_s: float | None


def fault_report(past: FaultHistory, beliefs: Beliefs | None, layout: Layout, types: Mapping[str, str]) -> FaultReport:
    """Return what the past tells of faults.

    Args:
        past: What happened.
        beliefs: What policies have learned from it; None where nothing is learned.
        layout: Of the cluster.
        types: Node type of each node.
    """
    days = max(past.now_s - past.since_s, 0.0) / DAY_S
    by_node: dict[str, list[_Fault]] = {node: [] for node in layout.nodes}
    for fault in _faults(past.events, layout):
        by_node[fault.node].append(fault)
    nodes = [
        NodeFaults(
            node, types.get(node, ""), len(faults), _rate(len(faults), days), _repair_s(faults),
            None if beliefs is None else beliefs.node_hazard_per_s[at],
            is_lemon=beliefs is not None and bool(beliefs.lemon[at]),
        )
        for at, (node, faults) in enumerate(by_node.items())
    ]  # fmt: skip
    nodes.sort(key=lambda it: (not it.is_lemon, -it.per_day, -(it.hazard_per_s or 0.0), it.node))
    return FaultReport(past.since_s, nodes, _by_type(by_node, types, days))


def _by_type(by_node: Mapping[str, Sequence[_Fault]], types: Mapping[str, str], days: float) -> list[TypeFaults]:
    found = []
    for kind in sorted({types.get(node, "") for node in by_node}):
        own = [faults for node, faults in by_node.items() if types.get(node, "") == kind]
        every = [fault for faults in own for fault in faults]
        found.append(TypeFaults(kind, len(own), len(every), _rate(len(every), days * len(own)), _repair_s(every)))
    return found


def _rate(faults: int, days: float) -> float:
    return faults / days if days > 0.0 else 0.0


def _repair_s(faults: Sequence[_Fault]) -> float | None:
    ended = [max(it.ended_s - it.began_s, 0.0) for it in faults if it.ended_s is not None]
    return fmean(ended) if ended else None


def _faults(events: Sequence[EventRow], layout: Layout) -> Iterator[_Fault]:
    """Yield the faults that events tell of: GPUs that turned faulty, and nodes that went down while in service."""
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
            yield from _turn(since_s, (node, gpu), event.at_s, is_faulty=event.now == FAULTY)
        elif event.now in (Liveness.DOWN, Liveness.UP) and (event.now == Liveness.UP or node not in out):
            yield from _turn(since_s, (node, GPU_DOWN), event.at_s, is_faulty=event.now == Liveness.DOWN)
    for (node, _), began_s in since_s.items():
        yield _Fault(node, began_s, None)


def _turn(
    since_s: dict[tuple[str, int], float], place: tuple[str, int], at_s: float, *, is_faulty: bool
) -> Iterator[_Fault]:
    if is_faulty:
        since_s.setdefault(place, at_s)
    elif place in since_s:
        yield _Fault(place[0], since_s.pop(place), at_s)
