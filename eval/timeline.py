"""What each GPU did over time, read from the events of one scenario."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..cluster.model.outcome import Event

DOWN = -1  # in place of a job: the GPU was out of service


class Spells(NamedTuple):
    """Times in which a GPU was held by a job or out of service; one row a GPU and spell."""

    gpu: NDArray[np.int64]  # (spells,)
    job: NDArray[np.int64]  # (spells,) DOWN where the GPU was out of service
    start_s: NDArray[np.float64]  # (spells,)
    end_s: NDArray[np.float64]  # (spells,)


class Use(NamedTuple):
    """How many GPUs were busy and down, from each moment to the next."""

    time_s: NDArray[np.float64]  # (moments,) increasing; the last is the end of the run
    busy: NDArray[np.int64]  # (moments,)
    down: NDArray[np.int64]  # (moments,)


def spells(events: Sequence[Event], cluster_gpus: int) -> Spells:
    """Return the spells of a schedule; what is open at the last event ends there.

    A GPU that two fault sources hold down is one spell, from the first fault to the last repair.

    Args:
        events: In order of time.
        cluster_gpus: GPUs of the cluster.
    """
    found: list[tuple[int, int, float, float]] = []
    job_since_s = np.full(cluster_gpus, np.nan)
    down_since_s = np.full(cluster_gpus, np.nan)
    faults = np.zeros(cluster_gpus, dtype=np.int64)
    holder = np.zeros(cluster_gpus, dtype=np.int64)
    end_s = events[-1].time_s if events else 0.0
    for event in events:
        gpus = list(event.gpus)
        if event.kind == "start":
            job_since_s[gpus], holder[gpus] = event.time_s, event.job
        elif event.kind == "switch":
            had = np.flatnonzero((holder == event.job) & ~np.isnan(job_since_s))
            left, won = np.setdiff1d(had, gpus), np.setdiff1d(gpus, had)
            found += [(int(gpu), event.job, job_since_s[gpu], event.time_s) for gpu in left]
            job_since_s[left] = np.nan
            job_since_s[won], holder[won] = event.time_s, event.job
        elif event.kind in ("stop", "finish"):
            found += [(gpu, event.job, job_since_s[gpu], event.time_s) for gpu in gpus]
            job_since_s[gpus] = np.nan
        elif event.kind == "fault":
            down_since_s[gpus] = np.where(faults[gpus] == 0, event.time_s, down_since_s[gpus])
            faults[gpus] += 1
        elif event.kind == "repair":
            faults[gpus] -= 1
            found += [(gpu, DOWN, down_since_s[gpu], event.time_s) for gpu in gpus if faults[gpu] == 0]
    found += [(int(gpu), int(holder[gpu]), job_since_s[gpu], end_s) for gpu in np.flatnonzero(~np.isnan(job_since_s))]
    found += [(int(gpu), DOWN, down_since_s[gpu], end_s) for gpu in np.flatnonzero(faults > 0)]
    return _spells([spell for spell in found if spell[3] > spell[2]])


def _spells(found: list[tuple[int, int, float, float]]) -> Spells:
    columns = np.array(found, dtype=np.float64).reshape(-1, 4).T
    return Spells(columns[0].astype(np.int64), columns[1].astype(np.int64), columns[2], columns[3])


def use_over_time(spent: Spells) -> Use:
    """Return how many GPUs were busy and how many down at every moment at which that changes."""
    time_s, index = np.unique(np.concatenate(([0.0], spent.start_s, spent.end_s)), return_inverse=True)
    step = np.zeros((2, time_s.size), dtype=np.int64)  # busy, down
    row = (spent.job == DOWN).astype(np.int64)
    np.add.at(step, (row, index[1 : row.size + 1]), 1)
    np.add.at(step, (row, index[row.size + 1 :]), -1)
    busy, down = step.cumsum(axis=1)
    return Use(time_s, busy, down)


def blocks(spent: Spells) -> Spells:
    """Return the spells sorted so that neighbouring GPUs of one job and spell follow each other."""
    order = np.lexsort((spent.gpu, spent.end_s, spent.start_s, spent.job))
    return Spells(spent.gpu[order], spent.job[order], spent.start_s[order], spent.end_s[order])


def share_by_node(
    spent: Spells, gpu_node: NDArray[np.int32], edges_s: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the shares of each node's GPUs that were busy and down, in the middle of each bin of time.

    Args:
        spent: The spells.
        gpu_node: Node of each GPU, shape (gpus,).
        edges_s: Edges of the bins, shape (bins + 1,).

    Returns:
        Busy and down, each of shape (nodes, bins).
    """
    middle_s = (edges_s[:-1] + edges_s[1:]) / 2
    size = np.bincount(gpu_node)
    step = np.zeros((2, size.size, middle_s.size + 1))
    row, node = (spent.job == DOWN).astype(np.int64), gpu_node[spent.gpu]
    np.add.at(step, (row, node, np.searchsorted(middle_s, spent.start_s)), 1)
    np.add.at(step, (row, node, np.searchsorted(middle_s, spent.end_s)), -1)
    busy, down = step.cumsum(axis=2)[:, :, :-1] / size[:, None]
    return busy, down
