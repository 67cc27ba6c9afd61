"""What the store's events teach of fault rates: who takes a cluster up knows what was learned before.

Source: docs/simulator.md, Fault rates.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from sqlalchemy import Connection

from ...cluster.state.beliefs import HALF_LIFE_S
from ..mirror.cluster_mirror import ClusterMirror
from ..mirror.standing import Beliefs, Known, Site
from ..model.gpu_index import Layout
from ..store.database.schema import Liveness
from ..store.rows.events import EventRow, first_event_s, last_of_no_job
from ..store.rows.nodes import CHANGE, FAULTY, HEALTHY, IN_SERVICE, OUT_OF_SERVICE

KEPT_S = 8.0 * HALF_LIFE_S  # what is older counts for less than 0.4 %
MOST_EVENTS = 5000  # a node that comes and goes must not hold up who takes the cluster up


class FaultHistory(NamedTuple):
    """What happened to nodes and their GPUs."""

    since_s: float  # from when on it is known
    events: Sequence[EventRow]  # in their order
    now_s: float


def read_fault_history(tx: Connection, now_s: float) -> FaultHistory:
    """Return what happened to nodes and their GPUs, as far back as it still teaches something."""
    events = last_of_no_job(tx, CHANGE, now_s - KEPT_S, MOST_EVENTS)
    first_s = first_event_s(tx)
    since_s = max(now_s if first_s is None else first_s, now_s - KEPT_S)
    if len(events) == MOST_EVENTS:
        since_s = events[0].at_s
    return FaultHistory(min(since_s, now_s), events, now_s)


def learned_from(site: Site, layout: Layout, past: FaultHistory) -> Beliefs | None:
    """Return what a scheduler that saw all this has learned, None where nothing is learned."""
    if not site.rules.estimated_hazards:
        return None
    mirror = ClusterMirror(site, Known(past.since_s))
    told = _Told(mirror, layout)
    for event in past.events:
        told.tell(event, min(max(event.at_s, mirror.now_s), past.now_s))  # a clock may have been set back
    return mirror.beliefs()


class _Told:
    """A cluster to which events are told; one that tells what is so already changes nothing."""

    def __init__(self, mirror: ClusterMirror, layout: Layout) -> None:
        self._mirror, self._layout = mirror, layout
        self._faulty = set[int]()
        self._silent, self._out = set[str](), set[str]()  # nodes

    def tell(self, event: EventRow, now_s: float) -> None:
        """Let a node or a GPU change as an event says; what is no longer in the cluster is passed over."""
        node = (event.data or {}).get("node")
        if not isinstance(node, str) or node not in self._layout.nodes:
            return
        self._mirror.begin(now_s)
        if event.now in (FAULTY, HEALTHY):
            gpu = (event.data or {}).get("gpu")
            if isinstance(gpu, int) and 0 <= gpu < self._layout.nodes[node]:
                self._turn(self._layout.number(node, gpu), is_faulty=event.now == FAULTY)
        elif event.now in (OUT_OF_SERVICE, IN_SERVICE):
            self._close(node, self._silent, self._put(self._out, node, is_in=event.now == OUT_OF_SERVICE))
        elif event.now in set(Liveness):
            self._close(node, self._out, self._put(self._silent, node, is_in=event.now != Liveness.UP))
            if event.now == Liveness.DOWN and node not in self._out:
                self._mirror.fail(self._gpus(node))

    def _turn(self, gpu: int, *, is_faulty: bool) -> None:
        if is_faulty and gpu not in self._faulty:
            self._faulty.add(gpu)
            self._mirror.take_out(gpu)
            self._mirror.fail((gpu,))
        elif not is_faulty and gpu in self._faulty:
            self._faulty.remove(gpu)
            self._mirror.bring_back(gpu)

    def _put(self, nodes: set[str], node: str, *, is_in: bool) -> int:
        """Put a node into a set or take it out; return by how much that changes how often it stands there."""
        before = node in nodes
        (nodes.add if is_in else nodes.discard)(node)
        return int(is_in) - int(before)

    def _close(self, node: str, others: Iterable[str], change: int) -> None:
        """Close a node's GPUs or open them again, unless it is closed for another reason all the while."""
        if change and node not in others:
            for gpu in self._gpus(node):
                (self._mirror.take_out if change > 0 else self._mirror.bring_back)(gpu)

    def _gpus(self, node: str) -> list[int]:
        return [self._layout.number(node, gpu) for gpu in range(self._layout.nodes[node])]
