"""Which free GPU of a real cluster takes an empty seat of a ring: what `choose` is told, and what it says.

Source: SPEC F5 to F7; the simulator's side is cluster/simulator/handling/seats.py.
"""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...cluster.model.topology import Cluster
from ...cluster.switching.links import believed_bytes_per_s, link_bytes_per_s
from ...cluster.switching.replacement import (
    FORMULAS,
    RING,
    SOURCE,
    Candidates,
    Vacancy,
    choose,
    compute_times_s,
    is_faster_with,
    ring_iteration_s,
    source_iteration_s,
    typical_flops,
)
from .cluster_mirror import ClusterMirror
from .standing import ROW

Measured = Mapping[tuple[int, int], float]  # bytes/s from one node to another
NOTHING: Measured = MappingProxyType({})


class Ring(NamedTuple):
    """The members of a ring beside one empty seat, and what is known of the job."""

    nodes: Sequence[int]  # of the living members, in the order of the ring
    gap: int  # how many of them come before the seat
    seats: int  # the living ones, and those that are to be filled
    compute_s: float  # the longest compute time of a living member, where no seat is empty; 0 if nobody knows
    average_s: float  # average iteration time (SPEC F3); 0 if nobody knows
    volume_bytes: float  # parameters as they are sent in an iteration
    demand_flops: float  # of an iteration; nan if nobody has told it
    recorded_s: Mapping[int, float]  # mean compute time of the job by node type (SPEC F2), where no seat is empty
    share: float = 1.0  # of a batch that a member computes, by what it has where no seat is empty


class Free(NamedTuple):
    """GPUs that could take a seat."""

    gpus: NDArray[np.int64]  # (candidates,) their numbers, in the order of nodes
    hazard_per_s: NDArray[np.float64]  # (candidates,)


class Considered(NamedTuple):
    """A candidate with its iteration times in seconds, inf if nobody can tell, and the bandwidths they rest on."""

    gpu: int
    source_s: float  # T(x) of SPEC F6
    ring_s: float  # T*(x), of the whole ring
    compute_s: float
    from_previous_bytes_per_s: float
    to_next_bytes_per_s: float


class Choice(NamedTuple):
    """Who takes a seat, and among whom."""

    gpu: int  # -1 for nobody
    considered: tuple[Considered, ...]


def free_for(mirror: ClusterMirror, job: str, without: Collection[int] = ()) -> Free:
    """Return the free GPUs in service that suit a job: of each node the one of lowest hazard, then of lowest number.

    The other GPUs of a node are no better, as the simulator has it too.

    Args:
        mirror: The cluster.
        job: A job of it.
        without: GPUs that it is not to have.
    """
    state = mirror.sim.state
    hazard = state.gpu_hazard_per_s[ROW]
    usable = (state.gpu_job[ROW] < 0) & (state.gpu_down[ROW] == 0) & mirror.suits(job)
    usable[list(without)] = False
    best: dict[int, int] = {}
    for gpu in np.flatnonzero(usable).tolist():
        node = int(mirror.site.cluster.gpu_node[gpu])
        if node not in best or hazard[gpu] < hazard[best[node]]:
            best[node] = gpu
    gpus = np.array([best[node] for node in sorted(best)], dtype=np.int64)
    return Free(gpus, hazard[gpus])


def choose_for(cluster: Cluster, ring: Ring, free: Free, formula: int, measured: Measured = NOTHING) -> Choice:
    """Return which free GPU takes the seat.

    Args:
        cluster: Of which the GPUs are.
        ring: That lacks a member.
        free: Who could come.
        formula: Of a candidate's iteration time, SOURCE or RING.
        measured: Bandwidths that were measured; the others are reckoned.

    Source: SPEC F6, F7.
    """
    if not free.gpus.size or not ring.nodes:
        return Choice(-1, ())
    vacancy = vacancy_of(cluster, ring, measured)
    candidates = _candidates_of(cluster, ring, free, formula, measured)
    chosen = choose(vacancy, candidates, formula)
    return Choice(int(free.gpus[chosen]) if chosen >= 0 else -1, tuple(_considered(vacancy, candidates, free)))


def best_of(
    cluster: Cluster, ring: Ring, free: Free, formula: int, most: int, measured: Measured = NOTHING
) -> Iterator[int]:  # fmt: skip
    """Yield the GPUs that would take the seat, each if there were none of those before it; at most so many."""
    for _ in range(most):
        gpu = choose_for(cluster, ring, free, formula, measured).gpu
        if gpu < 0:
            return
        yield gpu
        free = without(free, [gpu])


def neighbours(ring: Ring) -> tuple[int, int]:
    """Return the nodes of the members before and behind the seat."""
    return ring.nodes[ring.gap - 1], ring.nodes[ring.gap % len(ring.nodes)]


def without(free: Free, gpus: Collection[int]) -> Free:
    """Return the others."""
    kept = ~np.isin(free.gpus, list(gpus))
    return Free(free.gpus[kept], free.hazard_per_s[kept])


def bytes_per_s(cluster: Cluster, node: int, other: int, measured: Measured = NOTHING) -> float:
    """Return the bandwidth between two nodes, or within one: as it was measured, or else by the cluster file."""
    reckoned = float(link_bytes_per_s(cluster, node, other))
    told = measured.get((node, other))
    return reckoned if told is None or node == other else believed_bytes_per_s(reckoned, told)


def vacancy_of(cluster: Cluster, ring: Ring, measured: Measured = NOTHING) -> Vacancy:
    """Return the ring as `choose` takes it: the slowest link is that of all neighbours but those around the seat."""
    order = [*ring.nodes[ring.gap :], *ring.nodes[: ring.gap]]  # begins behind the seat, and ends before it
    links = [bytes_per_s(cluster, node, after, measured) for node, after in pairwise(order)]
    longest_s = ring.compute_s * ring.share
    return Vacancy(ring.seats, ring.volume_bytes, ring.average_s, longest_s, min(links, default=math.inf))


def with_which_faster(cluster: Cluster, ring: Ring, free: Free, measured: Measured = NOTHING) -> Free:
    """Return the GPUs with which a ring would be faster that runs on its living members alone.

    What nobody can tell speaks for a GPU.
    """
    if not ring.compute_s > 0.0 or not ring.nodes or not free.gpus.size:
        return free
    joined, alone = vacancy_of(cluster, ring, measured), len(ring.nodes)
    without = joined._replace(seats=alone, rest_compute_s=ring.compute_s * (ring.share * ring.seats / alone))
    closing = bytes_per_s(cluster, *neighbours(ring), measured)
    candidates = _candidates_of(cluster, ring, free, RING, measured)
    alike = np.isin(cluster.node_type[cluster.gpu_node[free.gpus]], cluster.node_type[list(ring.nodes)])
    links = candidates.from_previous_bytes_per_s, candidates.to_next_bytes_per_s
    kept = [
        not math.isfinite(compute_s) or is_faster_with(joined, without, compute_s, bool(is_alike), start, end, closing)
        for compute_s, is_alike, start, end in zip(candidates.compute_s, alike, *links, strict=True)
    ]
    return Free(free.gpus[kept], free.hazard_per_s[kept])


def _candidates_of(cluster: Cluster, ring: Ring, free: Free, formula: int, measured: Measured) -> Candidates:
    nodes = cluster.gpu_node[free.gpus].tolist()
    kinds, peak = cluster.node_type[nodes], cluster.peak_flops[nodes]
    peak_of = {int(kind): float(cluster.peak_flops[node]) for node, kind in enumerate(cluster.node_type)}
    records = [(time_s, peak_of[kind]) for kind, time_s in ring.recorded_s.items()]
    recorded = np.array([ring.recorded_s.get(int(kind), math.nan) for kind in kinds])
    demand = typical_flops(records) if formula == SOURCE and math.isnan(ring.demand_flops) else ring.demand_flops
    whole = compute_times_s(recorded, peak, demand, records, formula)
    usual_s, sure_s = (it * ring.share for it in whole)
    before, after = neighbours(ring)
    return Candidates(
        usual_s,
        sure_s,
        peak,
        np.array([bytes_per_s(cluster, before, node, measured) for node in nodes]),
        np.array([bytes_per_s(cluster, node, after, measured) for node in nodes]),
        free.hazard_per_s,
    )


def _considered(vacancy: Vacancy, candidates: Candidates, free: Free) -> list[Considered]:
    links = (candidates.from_previous_bytes_per_s, candidates.to_next_bytes_per_s)
    return [
        Considered(
            int(gpu),
            float(source_iteration_s(vacancy, compute_s, *around)),
            float(ring_iteration_s(vacancy, compute_s, *around)),
            float(compute_s),
            *map(float, around),
        )
        for gpu, compute_s, *around in zip(free.gpus, candidates.compute_s, *links, strict=True)
    ]


def warm_up(cluster: Cluster) -> None:
    """Let what is compiled be so before a fault: a ring waits for the choice."""
    ring = Ring([0], 1, 2, 1.0, 1.0, 1.0, math.nan, {})
    for formula in FORMULAS.values():
        choose_for(cluster, ring, Free(np.zeros(1, dtype=np.int64), np.zeros(1)), formula)
    with_which_faster(cluster, ring, Free(np.zeros(1, dtype=np.int64), np.zeros(1)))
