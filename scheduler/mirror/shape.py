"""GPUs for jobs that do not take any: so many nodes, with GPUs of the same indices on each."""

from collections.abc import Iterable
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from .cluster_mirror import ROW, ClusterMirror


def fitted(
    mirror: ClusterMirror, job: str, chosen: Iterable[int], nodes: int, *, in_service: bool = False
) -> tuple[int, ...]:
    """Return free GPUs that suit a waiting job, as many of them as can be from those that were chosen for it.

    Args:
        mirror: The cluster; nothing may be picked for the job yet.
        job: The job.
        chosen: GPUs that somebody would take.
        nodes: That are to give it the same GPUs each.
        in_service: Whether GPUs of other jobs count as free.

    Returns:
        The GPUs, ascending: the chosen ones themselves if they suit, none if no free GPUs do.
    """
    gpus, state = mirror.asked(job).gpus, mirror.sim.state
    if gpus % nodes:
        return ()
    wanted = np.zeros(state.gpu_job.shape[1], dtype=bool)
    wanted[list(chosen)] = True
    free = ((state.gpu_job[ROW] < 0) | in_service) & (state.gpu_down[ROW] == 0)
    first = mirror.site.cluster.first_gpu
    each = gpus // nodes
    if nodes == 1:
        return _on_one(free, wanted & free, first, each)
    return _on_several(free, wanted & free, first, each, nodes)


def _on_one(free: NDArray[np.bool_], wanted: NDArray[np.bool_], first: NDArray[np.int32], each: int) -> tuple[int, ...]:
    """Return GPUs of the node with room that has most of those that are wanted."""
    room = np.add.reduceat(free, first[:-1], dtype=np.int64)
    has = np.add.reduceat(wanted, first[:-1], dtype=np.int64)
    node = int(np.argmax(np.where(room >= each, has, -1)))
    if room[node] < each:
        return ()
    gpus = np.arange(first[node], first[node + 1])
    own = gpus[free[gpus]]
    return tuple(sorted(own[np.argsort(~wanted[own], kind="stable")][:each].tolist()))


def _on_several(
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
    # Of 8 GPUs there are 70 ways at most, of 16 there are 12,870.
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
