"""Pieces of a workload: chronological splits, and windows of consecutive jobs at a chosen load."""

import dataclasses

import numpy as np

from ..files.errors import InputError
from ..model.workload import Workload, selected


def sample_windows(
    workload: Workload,
    jobs: int,
    count: int,
    rng: np.random.Generator,
    *,
    first: float = 0.0,
    last: float = 1.0,
    max_gpus: int | None = None,
    load: float | None = None,
    cluster_gpus: int,
    disjoint: bool = False,
) -> list[Workload]:
    """Return windows of consecutive jobs, each starting at 0.

    Windows of one call may overlap, unless they are asked to be disjoint; those of parts that do not overlap (such
    as 0 to 0.6 and 0.7 to 1) share no job.

    Args:
        workload: Where the windows are taken from.
        jobs: Jobs of each window.
        count: Number of windows.
        rng: Draws where each starts, uniformly.
        first: The part of the workload begins after this share of its jobs.
        last: The part ends after this share of its jobs.
        max_gpus: Jobs that ask more get this many; left as they are if None.
        load: Offered load to which each window's arrivals are scaled; left as they are if None.
        cluster_gpus: GPUs that the load is offered to.
        disjoint: Take windows that share no job, at most as many as there are.

    Raises:
        InputError: If the part has fewer jobs than a window.
        ValueError: If a fraction is not from 0 to 1, or a count is below 1.
    """
    if jobs < 1 or count < 0:
        raise ValueError(f"windows need at least 1 job, and their count cannot be negative; got {jobs} and {count}")
    begin, end = _cut(workload, first), _cut(workload, last)
    if end - begin < jobs:
        problem = f"the part from {first:g} to {last:g} of the trace has {max(0, end - begin)} jobs, a window {jobs}"
        raise InputError(problem, "take a longer trace, a larger part or shorter windows")
    if disjoint:
        blocks = (end - begin) // jobs
        offset = begin + rng.integers(0, end - begin - blocks * jobs + 1)
        starts = offset + jobs * np.sort(rng.choice(blocks, min(count, blocks), replace=False))
    else:
        starts = rng.integers(begin, end - jobs + 1, count)
    windows = [with_gpus_cut(_jobs(workload, int(start), int(start) + jobs), max_gpus) for start in starts]
    return windows if load is None else [scaled_to_load(window, load, cluster_gpus) for window in windows]


def with_gpus_cut(workload: Workload, max_gpus: int | None) -> Workload:
    """Return the workload with at most `max_gpus` GPUs a job; their work stays the same, as run time on fewer GPUs.

    Raises:
        InputError: If such a job has a plan, by which it cannot run on fewer.
    """
    if max_gpus is None:
        return workload
    for job in np.flatnonzero(workload.gpus > max_gpus) if workload.plans is not None else ():
        if workload.plans is not None and workload.plans[job]:
            raise InputError(
                f"job {workload.ids[job]} asks {workload.gpus[job]} GPUs by its plan, more than {max_gpus}",
                "raise --max-gpus, or plan the trace for this cluster with `longshore trace plan`",
            )
    return dataclasses.replace(workload, gpus=np.minimum(workload.gpus, np.int32(max_gpus)))


def scaled_to_load(workload: Workload, load: float, cluster_gpus: int) -> Workload:
    """Return the workload with its submissions stretched or squeezed to a load; jobs submitted at once stay so.

    Args:
        workload: Jobs, of which the first is submitted at 0.
        load: Offered load (cluster/traces/statistics.py), more than 0.
        cluster_gpus: GPUs that it is offered to.

    Raises:
        ValueError: If the load or the number of GPUs is not positive.
    """
    if not (load > 0 and cluster_gpus > 0):
        raise ValueError(f"load and cluster_gpus must be more than 0; got {load} and {cluster_gpus}")
    span_s = float(workload.submit_s[-1]) if workload.jobs else 0.0
    if span_s == 0:
        return workload
    gpu_s = float(workload.gpus @ workload.work_s)
    return dataclasses.replace(workload, submit_s=workload.submit_s / span_s * (gpu_s / (load * cluster_gpus)))


def _cut(workload: Workload, fraction: float) -> int:
    """Return how many jobs stand before a fraction; one rule for all, so that parts meet without overlap."""
    if not 0 <= fraction <= 1:
        raise ValueError(f"a fraction is a number from 0 to 1; got {fraction}")
    return round(fraction * workload.jobs)


def _jobs(workload: Workload, begin: int, end: int) -> Workload:
    """Return the jobs from `begin` to `end` - 1, shifted so that the first is submitted at 0."""
    submit_s = workload.submit_s[begin:end]
    return Workload(
        ids=workload.ids[begin:end],
        gpus=workload.gpus[begin:end].copy(),
        work_s=workload.work_s[begin:end].copy(),
        submit_s=submit_s - (submit_s[0] if end > begin else 0.0),
        estimate_s=workload.estimate_s[begin:end].copy(),
        compute_s=workload.compute_s[begin:end].copy(),
        parameter_bytes=workload.parameter_bytes[begin:end].copy(),
        users=selected(workload.users, np.arange(begin, end)),
        names=selected(workload.names, np.arange(begin, end)),
        needs=selected(workload.needs, np.arange(begin, end)),
        plans=selected(workload.plans, np.arange(begin, end)),
    )
