"""GPUs for jobs that do not take any: as many on each of some nodes."""

from collections.abc import Iterable
from itertools import combinations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .cluster_mirror import ClusterMirror
from .standing import ROW


class Form(NamedTuple):
    """How the GPUs of a job must lie on nodes."""

    nodes: int  # that give as many GPUs each
    same_indices: bool = False  # whether these have the same indices on each node


def fitted(
    mirror: ClusterMirror, job: str, chosen: Iterable[int], form: Form, *, in_service: bool = False
) -> tuple[int, ...]:
    """Return free GPUs that suit a waiting job, as many of them as can be from those that were chosen for it.

    Args:
        mirror: The cluster; nothing may be picked for the job yet.
        job: The job.
        chosen: GPUs that somebody would take.
        form: How the job's GPUs must lie.
        in_service: Whether GPUs of other jobs count as free.

    Returns:
        The GPUs, ascending: the chosen ones themselves if they suit, none if no free GPUs do.
    """
    state = mirror.sim.state
    free = ((state.gpu_job[ROW] < 0) | in_service) & (state.gpu_down[ROW] == 0) & mirror.suits(job)
    return suiting(mirror, free, chosen, mirror.asked(job).gpus, form)


def suiting(
    mirror: ClusterMirror, usable: NDArray[np.bool_], chosen: Iterable[int], gpus: int, form: Form
) -> tuple[int, ...]:
    """Return usable GPUs that lie as a form says, as many of them as can be from those that were chosen.

    Args:
        mirror: The cluster.
        usable: Whether each GPU may be taken, shape (gpus,).
        chosen: GPUs that somebody would take.
        gpus: How many are wanted.
        form: How they must lie.

    Returns:
        The GPUs, ascending, none if no usable ones do.
    """
    if gpus % form.nodes:
        return ()
    wanted = np.zeros(usable.size, dtype=bool)
    wanted[list(chosen)] = True
    find = _of_same_indices if form.same_indices and form.nodes > 1 else _of_any_indices
    return find(usable, wanted & usable, mirror.site.cluster.first_gpu, gpus // form.nodes, form.nodes)


def _of_any_indices(
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


def _of_same_indices(
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
