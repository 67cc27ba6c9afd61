"""Which free GPU of a real cluster takes an empty seat of a ring, and whether a slow job gains by other GPUs.

Source: SPEC F5 to F7, K2; the simulator's side is cluster/simulator/seats.py; docs/steps.md.
"""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import combinations, pairwise
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...cluster.model.topology import Cluster
from ...cluster.placing import slowdown_of
from ...cluster.switching import (
    FORMULAS,
    RING,
    SOURCE,
    Candidates,
    Vacancy,
    believed_bytes_per_s,
    choose_replacement,
    compute_times_s,
    is_faster_with,
    link_bytes_per_s,
    ring_iteration_s,
    source_iteration_s,
    typical_flops,
)
from .cluster_mirror import ROW, ClusterMirror

Measured = Mapping[tuple[int, int], float]  # bytes/s from one node to another
NO_MEASUREMENTS: Measured = MappingProxyType({})


class RingGap(NamedTuple):
    """The members of a ring beside one empty seat, and what is known of the job."""

    nodes: Sequence[int]  # of the living members, in the order of the ring
    gap: int  # how many of them come before the seat
    seats: int  # the living ones, and those that are to be filled
    compute_s: float  # the longest compute time of a living member, where no seat is empty; 0 if unknown
    average_s: float  # average iteration time (SPEC F3); 0 if unknown
    volume_bytes: float  # parameters as they are sent in an iteration
    demand_flops: float  # of an iteration; nan if unknown
    recorded_s: Mapping[int, float]  # mean compute time of the job by node type (SPEC F2), where no seat is empty
    share: float = 1.0  # of a batch that a member computes, by what it has where no seat is empty


class FreeGpus(NamedTuple):
    """GPUs that could take a seat."""

    gpus: NDArray[np.int64]  # (candidates,) their numbers, in the order of nodes
    hazard_per_s: NDArray[np.float64]  # (candidates,)


class Considered(NamedTuple):
    """A candidate with its iteration times in seconds, inf if unknown, and the bandwidths they rest on."""

    gpu: int
    source_s: float  # T(x) of SPEC F6
    ring_s: float  # T*(x), of the whole ring
    compute_s: float
    from_previous_bytes_per_s: float
    to_next_bytes_per_s: float


class SeatChoice(NamedTuple):
    """Who takes a seat, and among whom."""

    gpu: int  # -1 for none
    considered: tuple[Considered, ...]


def free_gpus_for(mirror: ClusterMirror, job: str, excluded: Collection[int] = ()) -> FreeGpus:
    """Return the free GPUs in service that suit a job: of each node the one of lowest hazard, then of lowest number.

    The other GPUs of a node are no better, as in the simulator.
    """
    state = mirror.sim.state
    hazard = state.gpu_hazard_per_s[ROW]
    usable = (state.gpu_job[ROW] < 0) & (state.gpu_down[ROW] == 0) & mirror.suitable_gpus(job)
    usable[list(excluded)] = False
    best: dict[int, int] = {}
    for gpu in np.flatnonzero(usable).tolist():
        node = int(mirror.site.cluster.gpu_node[gpu])
        if node not in best or hazard[gpu] < hazard[best[node]]:
            best[node] = gpu
    gpus = np.array([best[node] for node in sorted(best)], dtype=np.int64)
    return FreeGpus(gpus, hazard[gpus])


def choose_seat_gpu(
    cluster: Cluster, ring: RingGap, free: FreeGpus, formula: int, measured: Measured = NO_MEASUREMENTS
) -> SeatChoice:
    """Return which free GPU takes the seat, by a formula of a candidate's iteration time, SOURCE or RING.

    Source: SPEC F6, F7.
    """
    if not free.gpus.size or not ring.nodes:
        return SeatChoice(-1, ())
    vacancy = vacancy_of(cluster, ring, measured)
    candidates = _candidates_of(cluster, ring, free, formula, measured)
    chosen = choose_replacement(vacancy, candidates, formula)
    return SeatChoice(
        int(free.gpus[chosen]) if chosen >= 0 else -1, tuple(_considered_candidates(vacancy, candidates, free))
    )


def best_seat_gpus(
    cluster: Cluster, ring: RingGap, free: FreeGpus, formula: int, most: int, measured: Measured = NO_MEASUREMENTS
) -> Iterator[int]:  # fmt: skip
    """Yield at most `most` GPUs that would take the seat, each if those before it were not there."""
    for _ in range(most):
        gpu = choose_seat_gpu(cluster, ring, free, formula, measured).gpu
        if gpu < 0:
            return
        yield gpu
        free = without_gpus(free, [gpu])


def neighbour_nodes(ring: RingGap) -> tuple[int, int]:
    """Return the nodes of the members before and behind the seat."""
    return ring.nodes[ring.gap - 1], ring.nodes[ring.gap % len(ring.nodes)]


def without_gpus(free: FreeGpus, gpus: Collection[int]) -> FreeGpus:
    """Return the others."""
    kept = ~np.isin(free.gpus, list(gpus))
    return FreeGpus(free.gpus[kept], free.hazard_per_s[kept])


def known_bytes_per_s(cluster: Cluster, node: int, other: int, measured: Measured = NO_MEASUREMENTS) -> float:
    """Return the bandwidth between two nodes, or within one: as it was measured, or else by the cluster file."""
    reckoned = float(link_bytes_per_s(cluster, node, other))
    found = measured.get((node, other))
    return reckoned if found is None or node == other else believed_bytes_per_s(reckoned, found)


def vacancy_of(cluster: Cluster, ring: RingGap, measured: Measured = NO_MEASUREMENTS) -> Vacancy:
    """Return the ring as `choose_replacement` takes it: its slowest link is that of neighbours not beside the seat."""
    order = [*ring.nodes[ring.gap :], *ring.nodes[: ring.gap]]  # begins behind the seat, and ends before it
    links = [known_bytes_per_s(cluster, node, after, measured) for node, after in pairwise(order)]
    longest_s = ring.compute_s * ring.share
    return Vacancy(ring.seats, ring.volume_bytes, ring.average_s, longest_s, min(links, default=math.inf))


def gpus_making_ring_faster(
    cluster: Cluster, ring: RingGap, free: FreeGpus, measured: Measured = NO_MEASUREMENTS
) -> FreeGpus:
    """Return the GPUs with which a ring would be faster that runs on its living members alone.

    An unknown time counts in favour of a GPU.
    """
    if not ring.compute_s > 0.0 or not ring.nodes or not free.gpus.size:
        return free
    joined, alone = vacancy_of(cluster, ring, measured), len(ring.nodes)
    alone_vacancy = joined._replace(seats=alone, rest_compute_s=ring.compute_s * (ring.share * ring.seats / alone))
    closing = known_bytes_per_s(cluster, *neighbour_nodes(ring), measured)
    candidates = _candidates_of(cluster, ring, free, RING, measured)
    alike = np.isin(cluster.node_type[cluster.gpu_node[free.gpus]], cluster.node_type[list(ring.nodes)])
    links = candidates.from_previous_bytes_per_s, candidates.to_next_bytes_per_s
    kept = [
        not math.isfinite(compute_s)
        or is_faster_with(joined, alone_vacancy, compute_s, bool(is_alike), start, end, closing)
        for compute_s, is_alike, start, end in zip(candidates.compute_s, alike, *links, strict=True)
    ]
    return FreeGpus(free.gpus[kept], free.hazard_per_s[kept])


def _candidates_of(cluster: Cluster, ring: RingGap, free: FreeGpus, formula: int, measured: Measured) -> Candidates:
    nodes = cluster.gpu_node[free.gpus].tolist()
    kinds, peak = cluster.node_type[nodes], cluster.peak_flops[nodes]
    peak_of = {int(kind): float(cluster.peak_flops[node]) for node, kind in enumerate(cluster.node_type)}
    records = [(time_s, peak_of[kind]) for kind, time_s in ring.recorded_s.items()]
    recorded = np.array([ring.recorded_s.get(int(kind), math.nan) for kind in kinds])
    demand = typical_flops(records) if formula == SOURCE and math.isnan(ring.demand_flops) else ring.demand_flops
    whole = compute_times_s(recorded, peak, demand, records, formula)
    usual_s, sure_s = (step_s * ring.share for step_s in whole)
    before, after = neighbour_nodes(ring)
    return Candidates(
        usual_s,
        sure_s,
        peak,
        np.array([known_bytes_per_s(cluster, before, node, measured) for node in nodes]),
        np.array([known_bytes_per_s(cluster, node, after, measured) for node in nodes]),
        free.hazard_per_s,
    )


def _considered_candidates(vacancy: Vacancy, candidates: Candidates, free: FreeGpus) -> list[Considered]:
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
    ring = RingGap([0], 1, 2, 1.0, 1.0, 1.0, math.nan, {})
    for formula in FORMULAS.values():
        choose_seat_gpu(cluster, ring, FreeGpus(np.zeros(1, dtype=np.int64), np.zeros(1)), formula)
    gpus_making_ring_faster(cluster, ring, FreeGpus(np.zeros(1, dtype=np.int64), np.zeros(1)))


class PlacementShape(NamedTuple):
    """How the GPUs of a job must lie on nodes."""

    nodes: int  # that give as many GPUs each
    same_indices: bool = False  # whether these have the same indices on each node


def fit_to_shape(
    mirror: ClusterMirror, job: str, chosen: Iterable[int], form: PlacementShape, *, in_service: bool = False
) -> tuple[int, ...]:
    """Return free GPUs that suit a waiting job, as many of them as can be from those that a policy proposes.

    Nothing may be picked for the job yet. With `in_service`, GPUs of other jobs count as free.

    Returns:
        The GPUs, ascending: the chosen ones themselves if they suit, none if no free GPUs do.
    """
    state = mirror.sim.state
    free = ((state.gpu_job[ROW] < 0) | in_service) & (state.gpu_down[ROW] == 0) & mirror.suitable_gpus(job)
    return gpus_of_shape(mirror, free, chosen, mirror.request(job).gpus, form)


def gpus_of_shape(
    mirror: ClusterMirror, usable: NDArray[np.bool_], chosen: Iterable[int], gpus: int, form: PlacementShape
) -> tuple[int, ...]:
    """Return usable GPUs of a given shape, with as many of the chosen ones as possible.

    Args:
        mirror: The cluster.
        usable: Whether each GPU may be taken, shape (gpus,).
        chosen: GPUs that a policy proposes.
        gpus: How many are wanted.
        form: How they must lie.

    Returns:
        The GPUs, ascending, none if no usable ones do.
    """
    if gpus % form.nodes:
        return ()
    wanted = np.zeros(usable.size, dtype=bool)
    wanted[list(chosen)] = True
    find = _gpus_of_same_indices if form.same_indices and form.nodes > 1 else _gpus_of_any_indices
    return find(usable, wanted & usable, mirror.site.cluster.first_gpu, gpus // form.nodes, form.nodes)


def _gpus_of_any_indices(
    free: NDArray[np.bool_], wanted: NDArray[np.bool_], first: NDArray[np.int32], each: int, nodes: int
) -> tuple[int, ...]:
    """Return GPUs of the nodes with room that have most of those that are wanted."""
    if nodes > first.size - 1:
        return ()
    room = np.add.reduceat(free, first[:-1], dtype=np.int64)
    has = np.minimum(np.add.reduceat(wanted, first[:-1], dtype=np.int64), each)
    best = np.argsort(-np.where(room >= each, has, -1), kind="stable")[:nodes]
    if room[best].min() < each:
        return ()
    found: list[int] = []
    for node in best:
        gpus = np.arange(first[node], first[node + 1])
        own = gpus[free[gpus]]
        found += own[np.argsort(~wanted[own], kind="stable")][:each].tolist()
    return tuple(sorted(found))


MAX_INDEX_SETS = 12_870  # of which each is tried: those of 8 of 16 GPUs
MAX_SEEDS = 16  # nodes to begin with, where there are more


def _gpus_of_same_indices(
    free: NDArray[np.bool_], wanted: NDArray[np.bool_], first: NDArray[np.int32], each: int, nodes: int
) -> tuple[int, ...]:
    """Return the same indices of several nodes, of all such choices the one that has most of what is wanted."""
    most, best = -1, tuple[int, ...]()
    widest = int(np.diff(first).max())
    table = np.full((first.size - 1, widest), -1)  # (nodes, indices) GPU, -1 for none
    for node in range(first.size - 1):
        table[node, : first[node + 1] - first[node]] = np.arange(first[node], first[node + 1])
    usable = (table >= 0) & free[table]
    liked = usable & wanted[table]
    if math.comb(widest, each) > MAX_INDEX_SETS:
        return _common_indices_by_seeds(table, usable, liked, each, nodes)
    for indices in combinations(range(widest), each):
        at = np.array(indices)
        able = np.flatnonzero(usable[:, at].all(axis=1))
        if able.size < nodes:
            continue
        has = liked[np.ix_(able, at)].sum(axis=1)
        order = np.argsort(-has, kind="stable")[:nodes]
        if (total := int(has[order].sum())) > most:
            most, best = total, tuple(sorted(table[np.ix_(able[order], at)].ravel().tolist()))
    return best


def _common_indices_by_seeds(
    table: NDArray[np.int64], usable: NDArray[np.bool_], liked: NDArray[np.bool_], each: int, nodes: int
) -> tuple[int, ...]:
    """Return the same indices of several nodes, where there are too many sets of indices to try all.

    From each of the nodes with most usable GPUs on, the node is added that shares most of the indices that are left.
    """
    most, best = -1, tuple[int, ...]()
    room = usable.sum(axis=1)
    for seed in np.argsort(-room, kind="stable")[:MAX_SEEDS].tolist():
        common, chosen = usable[seed].copy(), [seed]
        while len(chosen) < nodes:
            shared = (usable & common).sum(axis=1)
            shared[chosen] = -1
            node = int(np.lexsort((-(liked & common).sum(axis=1), -shared))[0])
            if shared[node] < each:
                break
            chosen.append(node)
            common &= usable[node]
        if len(chosen) < nodes or common.sum() < each:
            continue
        has = np.where(common, liked[chosen].sum(axis=0), -1)
        at = np.sort(np.argsort(-has, kind="stable")[:each])
        if (total := int(has[at].sum())) > most:
            most, best = total, tuple(sorted(table[np.ix_(chosen, at)].ravel().tolist()))
    return best


GAIN = 0.8  # of the present step time, at most, on other GPUs


def other_gpu_sets(
    mirror: ClusterMirror, job: str, slow_gpus: Iterable[int], form: PlacementShape | None = None
) -> list[list[int]]:
    """Return sets of GPUs that a running job could have instead: on few nodes, and on fast ones."""
    state, cluster, wanted = mirror.sim.state, mirror.site.cluster, mirror.request(job).gpus
    is_held_or_free = (state.gpu_job[ROW] < 0) | (state.gpu_job[ROW] == mirror.slot(job))
    usable = is_held_or_free & (state.gpu_down[ROW] == 0) & mirror.suitable_gpus(job)
    usable[list(slow_gpus)] = False
    gpus = np.flatnonzero(usable)
    if gpus.size < wanted:
        return []
    nodes = cluster.gpu_node[gpus]
    room = np.bincount(nodes, minlength=cluster.speed.size)[nodes]
    # A node that has room for all comes before one with more, and both before those that have not.
    few = np.lexsort(
        (nodes, cluster.speed[nodes] * -1.0, np.where(room >= wanted, room, cluster.gpu_node.size * 2 - room))
    )
    fast = np.lexsort((nodes, -room, cluster.speed[nodes] * -1.0))
    found = [gpus[order[:wanted]].tolist() for order in (few, fast)]
    if form is None:
        return found
    return [list(suited) for chosen in found if (suited := gpus_of_shape(mirror, usable, chosen, wanted, form))]


def slowdown_on(mirror: ClusterMirror, slot: int, gpus: list[int]) -> float:
    """Return by what a job's work takes longer on GPUs, whether they are free or not."""
    cluster = mirror.site.cluster
    nodes, taken = np.unique(cluster.gpu_node[gpus], return_counts=True)
    racks = np.unique(cluster.node_rack[nodes])
    return float(
        slowdown_of(
            mirror.sim, 0, slot, nodes.size, float(cluster.speed[nodes].min()),
            float(cluster.intra_bytes_per_s[nodes[taken > 1]].min(initial=np.inf)),
            float(cluster.nic_bytes_per_s[nodes].min()),
            float(cluster.uplink_bytes_per_s[racks].min()) if racks.size > 1 else np.inf,
            0,
        )
    )  # fmt: skip


def best_other_step_s(
    mirror: ClusterMirror, job: str, slow_gpus: Iterable[int], usual_s: float, form: PlacementShape | None = None
) -> float:
    """Return the step time that a running job is predicted to have on other GPUs, inf if there are none for it.

    Args:
        mirror: The cluster.
        job: It counts with the GPUs that it holds now: a ring gives some up and gets others while it runs.
        slow_gpus: That it must not have.
        usual_s: Its step time on its present GPUs before they were slow.
        form: How its GPUs must lie.
    """
    slot, own = mirror.slot(job), list(mirror.gpus_of_job(job))
    if not own:
        return math.inf
    others = [slowdown_on(mirror, slot, gpus) for gpus in other_gpu_sets(mirror, job, slow_gpus, form)]
    return usual_s * min(others, default=math.inf) / slowdown_on(mirror, slot, own)
