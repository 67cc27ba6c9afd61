"""Recorded faults of a real cluster, replayed on another: JSON in the form of InfiniteHBD-Trace."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field

from ..files.errors import InputError
from ..files.yaml_file import read_json_array
from ..model.problem import FaultProcess, fault_sources
from ..model.topology import Cluster

DAY_S = 86_400.0
LAST_DAY = 1e6  # 2,700 years; seconds since 1970 in a column of days lie beyond
NODES_IN_TRACE = 400  # nodes that InfiniteHBD-Trace watched; 169 of them never failed and are not in the file


class FaultEvent(BaseModel, frozen=True):
    """One object of the file; keys that are not used here are passed over."""

    node_id: str
    event_time: float = Field(ge=0, le=LAST_DAY, allow_inf_nan=False)
    event_type: Literal["fault_start", "fault_end"]


@dataclass(frozen=True, slots=True)
class FaultTrace:
    """Outages of nodes, by node and then by time; those of one node do not touch each other."""

    node_ids: tuple[str, ...]  # nodes that failed at least once, in the order of their first fault
    node: NDArray[np.int32]  # (outages,) index of the node
    start_s: NDArray[np.float64]  # (outages,) seconds from the start of the trace
    end_s: NDArray[np.float64]  # (outages,) not before the start; equal for a fault that was over at once
    span_s: float  # time of the last event
    nodes: int = NODES_IN_TRACE  # that were watched, those that never failed included


def read_fault_trace(path: Path) -> FaultTrace:
    """Read recorded faults; see docs/formats.md.

    Outages of one node that overlap or touch become one. A fault without an end lasts until the last event of the file.

    Raises:
        InputError: If the file cannot be used, holds no event, or a fault ends that did not start.
    """
    events = sorted(read_json_array(path, FaultEvent), key=_event_order)
    if not events:
        raise InputError("there is no event", "give a list of fault_start and fault_end events", path=path)
    last_s = events[-1][1].event_time * DAY_S
    of_node: dict[str, list[tuple[int, FaultEvent]]] = {}
    for line, event in events:
        of_node.setdefault(event.node_id, []).append((line, event))
    outages = [
        (node, start_s, end_s)
        for node, its_events in enumerate(of_node.values())
        for start_s, end_s in _outage_intervals(path, its_events, last_s)
    ]
    return FaultTrace(
        node_ids=tuple(of_node),
        node=np.array([node for node, _, _ in outages], dtype=np.int32),
        start_s=np.array([start_s for _, start_s, _ in outages]),
        end_s=np.array([end_s for _, _, end_s in outages]),
        span_s=last_s,
        nodes=max(NODES_IN_TRACE, len(of_node)),
    )


def draw_recorded_process(trace: FaultTrace, cluster: Cluster, rng: np.random.Generator) -> FaultProcess:
    """Give each node of a cluster the faults of a node of the trace, drawn at random.

    No node of the trace is drawn again before all have been drawn; where a cluster is larger than the trace, some of
    its nodes hence fail together. Nodes stay up after the end of the trace.

    Args:
        trace: What happened.
        cluster: Where it is to happen; a node loses all its GPUs, however many they are.
        rng: Draws the nodes.

    Returns:
        The process, for sources of rate 0.
    """
    nodes, gpus = cluster.speed.size, cluster.gpu_node.size
    drawn = np.concatenate([rng.permutation(trace.nodes) for _ in range(-(-nodes // trace.nodes))])[:nodes]
    rows = [np.flatnonzero(trace.node == node) for node in drawn]
    first = np.zeros(fault_sources(cluster) + 1, dtype=np.int32)
    first[gpus + 1 : gpus + nodes + 1] = [row.size for row in rows]
    row = np.concatenate(rows)
    return FaultProcess(
        shape=1.0,
        repair_mean_s=1.0,
        repair_sigma=0.0,
        transient_probability=0.0,
        outage_first=np.cumsum(first, dtype=np.int32),
        outage_start_s=trace.start_s[row],
        outage_end_s=trace.end_s[row],
    )


def node_faults_per_s(trace: FaultTrace) -> float:
    """Return the mean rate of faults of a node, over all that were watched."""
    return trace.start_s.size / max(trace.span_s, 1.0) / trace.nodes


def _event_order(numbered: tuple[int, FaultEvent]) -> tuple[float, bool]:
    """Order events by time, starts before ends, so that outages which touch are one."""
    event = numbered[1]
    return event.event_time, event.event_type == "fault_end"


def _outage_intervals(path: Path, events: Sequence[tuple[int, FaultEvent]], last_s: float) -> list[tuple[float, float]]:
    """Return when any fault of a node lasts, from its events in order."""
    outages, faults, start_s = [], 0, 0.0
    for line, event in events:
        if event.event_type == "fault_start":
            start_s = start_s if faults else event.event_time * DAY_S
            faults += 1
            continue
        if not faults:
            problem = f"fault_end of node {event.node_id!r} at day {event.event_time:g} without a fault_start"
            raise InputError(problem, "add the start, or drop it", path=path, line=line, field="event_type")
        faults -= 1
        if not faults:
            outages.append((start_s, event.event_time * DAY_S))
    return [*outages, (start_s, last_s)] if faults else outages
