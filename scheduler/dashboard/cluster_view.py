"""What the first page shows: every GPU of the cluster, and the jobs that have not ended."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from sqlalchemy import Connection

from ..model.gpu_index import Layout
from ..model.job import JobRow
from ..model.quarantine import Entry
from ..model.states import JobState
from ..store.monitoring.quarantines import open_entries, quarantined
from ..store.queries import GpuState, Occupied, count_jobs, jobs_in, occupied_gpus
from ..store.rows.nodes import NodeRow, faulty_gpus, list_nodes, words_on

ACTIVE = (JobState.STARTING, JobState.RUNNING, JobState.STOPPING)
WAITING = (JobState.QUEUED, JobState.HELD)
MOST_ROWS = 50  # of each table
LETTERS = {
    GpuState.FREE: "", GpuState.STARTING: "S", GpuState.RUNNING: "R", GpuState.DRAINING: "D",
    GpuState.OUT: "X",
}  # fmt: skip
STYLES = {state: state.replace(" ", "-") for state in GpuState}
ROOMY, MEDIUM = 64, 512  # most GPUs that are drawn large, and not small


class Block(NamedTuple):
    """Neighbouring GPUs of a node that do the same for the same job."""

    first: int  # index on the node
    gpus: int
    state: GpuState
    job_id: str  # "" for none
    job: str
    said: str  # what it is, in words


class NodeView(NamedTuple):
    """A node."""

    name: str
    kind: str  # node type
    words: str  # why no job starts there, "" if jobs do
    free: int
    gpus: int
    blocks: tuple[Block, ...]


class ClusterView(NamedTuple):
    """The cluster as a whole."""

    nodes: Sequence[NodeView]
    gpus: Mapping[GpuState, int]
    jobs: Mapping[JobState, int]
    active: Sequence[JobRow]
    waiting: Sequence[JobRow]  # in the order in which they stand in the queue
    size: str  # how large its GPUs are drawn
    kinds: int  # of nodes
    quarantine: Sequence[Entry]  # what stands there

    @property
    def all_gpus(self) -> int:
        """GPUs of the cluster."""
        return sum(self.gpus.values())

    @property
    def said(self) -> str:
        """How it stands, in a sentence."""
        running, free = self.jobs[JobState.RUNNING], self.gpus[GpuState.FREE]
        jobs = "1 job" if running == 1 else f"{running} jobs"
        return f"{jobs} running, {self.jobs[JobState.QUEUED]} waiting, {free} of {self.all_gpus} GPUs free."


def cluster_view(tx: Connection, layout: Layout, types: Mapping[str, str]) -> ClusterView:
    """Return what the first page shows.

    Args:
        tx: A read of the store.
        layout: Of the cluster.
        types: Node type of each node.
    """
    occupied = {(it.node, it.gpu): it for it in occupied_gpus(tx)}
    faulty, broken = faulty_gpus(tx), quarantined(tx, layout.nodes)
    words = {row.name: _words(row) for row in list_nodes(tx)}
    nodes = [
        _node_view(name, types[name], words.get(name, ""), list(_states(name, gpus, occupied, faulty, broken, words)))
        for name, gpus in layout.nodes.items()
    ]
    gpus = Counter(dict.fromkeys(GpuState, 0))
    for node in nodes:
        for block in node.blocks:
            gpus[block.state] += block.gpus
    total = gpus.total()
    size = "roomy" if total <= ROOMY else "medium" if total <= MEDIUM else "dense"
    active, waiting = jobs_in(tx, ACTIVE, MOST_ROWS), jobs_in(tx, WAITING, MOST_ROWS)
    return ClusterView(nodes, gpus, count_jobs(tx), active, waiting, size, len(set(types.values())), open_entries(tx))


def _words(row: NodeRow) -> str:
    """Return why no job starts on a node, and what was found there; "" if jobs do."""
    return ": ".join(it for it in (words_on(row), row.found) if it)


_Doing = tuple[GpuState, str, str]  # state, id and name of the job


def _states(
    node: str, gpus: int, occupied: Mapping[tuple[str, int], Occupied], faulty: Collection[tuple[str, int]],
    broken: Collection[tuple[str, int]], words: Mapping[str, str],
) -> Iterator[_Doing]:  # fmt: skip
    for place in ((node, gpu) for gpu in range(gpus)):
        it = occupied.get(place)
        empty = GpuState.OUT if words.get(node) or place in broken else GpuState.FREE
        state = GpuState.OUT if place in faulty else empty if it is None else it.state
        yield (state, "", "") if it is None else (state, it.job_id, it.job)


def _node_view(name: str, kind: str, words: str, states: Sequence[_Doing]) -> NodeView:
    blocks, first = [], 0
    for (state, job_id, job), same in groupby(states):
        gpus = len(list(same))
        which = f"GPU {first}" if gpus == 1 else f"GPUs {first} to {first + gpus - 1}"
        said = f"{which}: {state}, job {job}" if job_id else f"{which}: {state}"
        blocks.append(Block(first, gpus, state, job_id, job, said))
        first += gpus
    free = sum(block.gpus for block in blocks if block.state is GpuState.FREE)
    return NodeView(name, kind, words, free, first, tuple(blocks))
