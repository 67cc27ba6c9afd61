"""What a job takes at least, alone on a cluster whose GPUs are all up: run time, and a share of the cluster."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...cluster.model.scenarios import Rules
from ...cluster.model.topology import Cluster

LEAST_SLOWDOWN, MOST_SLOWDOWN = 1e-60, 1e60  # the simulator holds slowdowns within these
MOST_PACES = 4  # speeds that are told apart where each second is looked at
MOST_FILTERS = 24  # distinct ways to count large jobs that are tried


class Jobs(NamedTuple):
    """Jobs of one scenario."""

    gpus: NDArray[np.int32]  # (jobs,)
    work_s: NDArray[np.float64]  # (jobs,)
    submit_s: NDArray[np.float64]  # (jobs,)
    compute_s: NDArray[np.float64]  # (jobs,)
    parameter_bytes: NDArray[np.float64]  # (jobs,)
    fixed_s: NDArray[np.float64]  # (jobs,) of an iteration by a plan, 0 without one
    planned_s: NDArray[np.float64]  # (jobs,) of an iteration by a plan on the reference placement, 0 without one


class Needs(NamedTuple):
    """What each job takes at least, whatever GPUs it runs on."""

    run_s: NDArray[np.float64]  # (jobs,) from start to end without a fault
    shares_s: NDArray[np.float64]  # (limits, jobs) run time x share of a limit that all jobs share
    pace_run_s: NDArray[np.float64]  # (paces, jobs) run time where the slowest GPU is of a pace, inf if it cannot be
    pace_use: NDArray[np.float64]  # (kinds, paces, jobs) share of the GPUs of a pace or faster while it runs so


def needs(cluster: Cluster, speed: NDArray[np.float64], rules: Rules, jobs: Jobs) -> Needs:
    """Return what jobs need.

    Each row of `shares_s` is one limit of the cluster. At no moment can the shares of the running jobs sum to more
    than 1, so that jobs which are run from a moment on take at least the sum of their `shares_s`.

    The first limit is speed: a running job holds GPUs, and the speeds of all GPUs held sum to at most those of the
    cluster. A job's slowest GPU sets its pace, so its GPUs are at least as fast as the one whose speed its run time is
    counted by. The least product of both over all speeds is what it needs, on whatever GPUs it runs, also if faults
    make it run on several sets of them.

    The others count GPUs, and see what the first does not: a job of more than half the cluster's GPUs runs beside no
    other such job. With n GPUs of G, and a number q up to G / 2, a job counts as 1 if it asks more than G - q GPUs, as
    nothing if it asks fewer than q, else as n / G. Beside a job that counts as 1 fewer than q GPUs are left, and who
    runs there counts as nothing; without one, the GPUs held are at most G.

    Args:
        cluster: The cluster.
        speed: Of each node's GPUs, shape (nodes,).
        rules: Give the model of run time.
        jobs: None may ask more GPUs than the cluster has.

    Source: the counting of large jobs is a dual feasible function (Fekete and Schepers 2001).
    """
    slowdown, area = np.full(jobs.gpus.size, np.inf), np.full(jobs.gpus.size, np.inf)
    sizes = np.diff(cluster.first_gpu)
    for slowest in np.unique(speed):
        fast = speed >= slowest
        for asked in np.unique(jobs.gpus):
            if sizes[fast].sum() < asked:
                continue
            mine = jobs.gpus == asked
            least = _least_slowdown(cluster, fast, float(slowest), int(asked), rules, jobs, mine)
            held = float(np.sort(np.repeat(speed[fast], sizes[fast]))[:asked].sum())
            slowdown[mine] = np.minimum(slowdown[mine], least)
            area[mine] = np.minimum(area[mine], least * held)
    run_s = slowdown * jobs.work_s
    by_speed = area * jobs.work_s / float(speed @ sizes)
    shares_s = np.vstack([by_speed, *_counted(jobs.gpus, int(sizes.sum()), run_s)])
    return Needs(run_s, shares_s, *_paces(cluster, _few(speed), rules, jobs, run_s, shares_s))


def _few(speed: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return speeds of which only some differ, none lower than it was, shape (nodes,)."""
    kinds = np.unique(speed)
    last = [part[-1] for part in np.array_split(kinds, min(kinds.size, MOST_PACES))]
    return np.asarray(last)[np.searchsorted(last, speed)]


def _paces(
    cluster: Cluster, speed: NDArray[np.float64], rules: Rules, jobs: Jobs, run_s: NDArray[np.float64],
    shares_s: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:  # fmt: skip
    """Return `pace_run_s` and `pace_use`.

    A pace is the speed of a job's slowest GPU. A job of a pace holds all its GPUs among those of this pace or faster.
    Of still faster ones it holds at least as many as those that are slower than these cannot give. The last kind is
    no pace, but the way to count large jobs by which they take longest.
    """
    sizes, paces = np.diff(cluster.first_gpu), np.unique(speed)
    room = np.array([sizes[speed >= pace].sum() for pace in paces])
    taken_s, use = np.full((paces.size, jobs.gpus.size), np.inf), np.zeros((paces.size + 1, paces.size, jobs.gpus.size))
    for place, pace in enumerate(paces):
        for asked in np.unique(jobs.gpus[jobs.gpus <= room[place]]):
            mine = jobs.gpus == asked
            least = _least_slowdown(cluster, speed >= pace, float(pace), int(asked), rules, jobs, mine)
            taken_s[place, mine] = least * jobs.work_s[mine]
        for kind in range(paces.size):
            elsewhere = max(0, int(room[place] - room[kind]))
            use[kind, place] = np.maximum(jobs.gpus - elsewhere, 0) / room[kind]
    counted_s = shares_s[1:]
    use[-1] = counted_s[counted_s.sum(axis=1).argmax()] / run_s
    return taken_s, use


def _least_slowdown(
    cluster: Cluster, fast: NDArray[np.bool_], speed: float, asked: int, rules: Rules, jobs: Jobs,
    mine: NDArray[np.bool_],
) -> NDArray[np.float64]:  # fmt: skip
    """Return a slowdown that no placement on some nodes, whose slowest GPU has a speed, is below, shape (mine,)."""
    sizes = np.diff(cluster.first_gpu)[fast]
    nodes = int(np.searchsorted(np.cumsum(np.sort(sizes)[::-1]), asked) + 1)
    if not rules.ring:
        found = np.full(int(mine.sum()), (1.0 + rules.node_penalty * (nodes - 1)) / speed)
    elif asked == 1:
        found = np.full(int(mine.sum()), 1.0 / speed)
    else:
        compute_s = jobs.compute_s[mine]
        volume = 2.0 * (asked - 1) / asked * jobs.parameter_bytes[mine]
        large = asked > rules.reference_gpus
        reference = rules.reference_nic_bytes_per_s if large else rules.reference_intra_bytes_per_s
        link = _fastest_link(cluster, fast, asked, nodes)
        found = (compute_s / speed + volume / link) / (compute_s + volume / reference)
    if rules.ring and jobs.planned_s[mine].any():
        planned_s = jobs.planned_s[mine]  # links, which plans use in many ways, are taken to cost no time
        least_s = jobs.compute_s[mine] / speed + jobs.fixed_s[mine]
        found = np.where(planned_s > 0.0, least_s / np.maximum(planned_s, 1e-300), found)
    bounded: NDArray[np.float64] = np.clip(found, LEAST_SLOWDOWN, MOST_SLOWDOWN)
    return bounded


def _fastest_link(cluster: Cluster, fast: NDArray[np.bool_], asked: int, nodes: int) -> float:
    """Return a bandwidth that no ring of so many GPUs on some nodes exceeds, on one node or on more."""
    holds_all = fast & (np.diff(cluster.first_gpu) >= asked)
    inside = float(cluster.intra_bytes_per_s[holds_all].max(initial=0.0))
    if fast.sum() < 2:
        return inside
    # A ring of k nodes is no faster than the k-th fastest link of all nodes.
    across = float(np.sort(cluster.nic_bytes_per_s[fast])[::-1][max(nodes, 2) - 1])
    return max(inside, across)


def _counted(gpus: NDArray[np.int32], most: int, run_s: NDArray[np.float64]) -> list[NDArray[np.float64]]:
    """Return run time x share of each way to count GPUs; only those that differ."""
    bounds = np.unique(np.concatenate([[1], gpus[gpus <= most // 2], most - gpus[2 * gpus > most] + 1]))
    bounds = bounds[(bounds >= 1) & (2 * bounds <= max(most, 2))]
    picked = bounds[np.unique(np.linspace(0, bounds.size - 1, min(bounds.size, MOST_FILTERS)).astype(int))]
    rows = [np.where(gpus > most - q, 1.0, np.where(gpus < q, 0.0, gpus / most)) * run_s for q in picked]
    return list(np.unique(np.array(rows), axis=0))
