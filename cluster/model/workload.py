"""Jobs as arrays, with parts and figures of a workload; and their plans: how each job may be spread over GPUs.

A plan has a data, a pipeline and a tensor degree. Its GPUs stand in the order of nodes: members of a tensor-parallel
group side by side, those of a stage of the pipeline behind one another, the stages last. So a stage whose GPUs divide
what each node gives lies on one node, and so does a group. docs/simulator.md has the formula of iteration times.

Source: SPEC P1, P2.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..files.errors import InputError
from ..kernels.compiled import kernel
from .topology import ANYTHING, NodeNeeds


class Iteration(NamedTuple):
    """What an iteration of a job does by its plan. Bytes are those that the slowest of its links carries."""

    data: int  # degrees of parallelism; their product is the number of GPUs
    pipeline: int
    tensor: int
    compute_s: float  # on GPUs of speed 1, the filling and emptying of the pipeline counted
    fixed_s: float  # that neither faster GPUs nor faster links would save
    gradient_bytes: float  # that the ring of each stage sums
    edge_bytes: float  # between stages, one after the other, that are not hidden behind computing
    tensor_bytes: float  # that a GPU sends to others of its tensor-parallel group


class JobPlan(NamedTuple):
    """One way to run a job."""

    iteration: Iteration
    work_s: float  # fault-free run time of the whole job on the reference placement
    memory_bytes: float = 0.0  # that each GPU needs
    away_bytes: float = 0.0  # of each GPU's state, in host memory while nothing needs it; 0 without offload

    @property
    def gpus(self) -> int:
        """GPUs that it takes."""
        return self.iteration.data * self.iteration.pipeline * self.iteration.tensor

    @property
    def gpu_s(self) -> float:
        """GPU-time that it takes on the reference placement."""
        return self.gpus * self.work_s

    @property
    def degrees(self) -> str:
        """For people: data x pipeline x tensor."""
        return f"{self.iteration.data}x{self.iteration.pipeline}x{self.iteration.tensor}"


@kernel
def iteration_s(iteration: Iteration, share: float, speed: float, inside: float, across: float, grain: int) -> float:
    """Return how long an iteration takes on a placement.

    Args:
        iteration: What the iteration does.
        share: Of the batch that each GPU computes, by what it has where no GPU is missing.
        speed: Of the slowest GPU.
        inside: Slowest bandwidth inside a node, bytes/s.
        across: Slowest of all bandwidths, where GPUs of several nodes talk.
        grain: Largest number that divides the GPUs that each node gives, or 0 where all is on one node.
    """
    stage = iteration.data * iteration.tensor  # GPUs
    time_s = share * iteration.compute_s / speed + iteration.fixed_s
    if iteration.tensor > 1:
        time_s += iteration.tensor_bytes / (inside if grain % iteration.tensor == 0 else across)
    if iteration.pipeline > 1:
        time_s += iteration.edge_bytes / (inside if grain % (stage * iteration.pipeline) == 0 else across)
    if iteration.data > 1:
        volume = 2.0 * (iteration.data - 1) / iteration.data * iteration.gradient_bytes
        time_s += volume / (inside if grain % stage == 0 else across)
    return time_s


@kernel
def reference_iteration_s(
    iteration: Iteration, reference_gpus: int, intra_bytes_per_s: float, nic_bytes_per_s: float
) -> float:
    """Return how long an iteration takes on GPUs of speed 1, on as few reference nodes as hold the job."""
    gpus = iteration.data * iteration.pipeline * iteration.tensor
    if gpus <= reference_gpus:
        return iteration_s(iteration, 1.0, 1.0, intra_bytes_per_s, intra_bytes_per_s, 0)
    full, rest = reference_gpus, gpus  # what full nodes and the last one give have this divisor
    while rest > 0:
        full, rest = rest, full % rest
    return iteration_s(iteration, 1.0, 1.0, intra_bytes_per_s, min(intra_bytes_per_s, nic_bytes_per_s), full)


def best_plan(plans: Sequence[JobPlan], *, offload: bool = False) -> JobPlan:
    """Return the plan of the fewest GPUs that ends no later than the first, at no more GPU-time; then the fastest.

    Args:
        plans: Of a job. The first may always be taken.
        offload: Whether others may put state away, too.
    """
    fixed = plans[0]
    allowed = [fixed, *(plan for plan in plans[1:] if offload or not plan.away_bytes)]
    fits = [plan for plan in allowed if plan.work_s <= fixed.work_s and plan.gpu_s <= fixed.gpu_s]
    return min(fits, key=lambda plan: (plan.gpus, plan.work_s))


DEFAULT_PARAMETER_BYTES = 2e9  # gradients of a model of 1e9 parameters at 2 bytes
DEFAULT_COMPUTE_S = 0.5  # compute time of one iteration on a GPU of speed 1


@dataclass(frozen=True, slots=True)
class Workload:
    """Jobs in order of submission; one row a job. Times count from the first submission or earlier.

    Work is the fault-free run time on the reference placement: GPUs of speed 1, as few nodes as hold the job.
    The estimate is what policies and order regimes see of it.
    """

    ids: tuple[str, ...]
    gpus: NDArray[np.int32]  # (jobs,) GPUs that the job needs at once, at least 1
    work_s: NDArray[np.float64]  # (jobs,) more than 0
    submit_s: NDArray[np.float64]  # (jobs,) never decreasing, at least 0
    estimate_s: NDArray[np.float64]  # (jobs,) estimate of work_s, more than 0
    compute_s: NDArray[np.float64]  # (jobs,) compute time of one iteration on a GPU of speed 1
    parameter_bytes: NDArray[np.float64]  # (jobs,) volume of one all-reduce
    left_out: int = 0  # rows of the file that ask no GPU or never ran
    users: tuple[str, ...] | None = None  # owner of each job, "" where not known; None if the trace has none
    names: tuple[str, ...] | None = None  # name of its program or model, which later runs share, in the same way
    needs: tuple[NodeNeeds, ...] | None = None  # its own, whatever its plan needs; None if all take any nodes
    plans: tuple[tuple[JobPlan, ...], ...] | None = None  # of each job, () for none; it runs by the first

    @property
    def jobs(self) -> int:
        """Number of jobs."""
        return len(self.ids)

    @property
    def node_needs(self) -> tuple[NodeNeeds, ...] | None:
        """What each job needs of the nodes that it runs on, with the memory of its plan; None if all take any."""
        if not any(self.plans or ()):
            return self.needs
        own = self.needs or (ANYTHING,) * self.jobs
        return tuple(
            _with_memory_of_plan(needs, plans[0]) if plans else needs
            for needs, plans in zip(own, self.plans or (), strict=True)
        )


def _with_memory_of_plan(needs: NodeNeeds, plan: JobPlan) -> NodeNeeds:
    """Return what a job with these needs of its own needs if it runs by a plan."""
    return needs._replace(
        gpu_memory_bytes=max(needs.gpu_memory_bytes, plan.memory_bytes),
        host_memory_bytes_per_gpu=max(needs.host_memory_bytes_per_gpu, plan.away_bytes),
    )


def workload_of(
    ids: tuple[str, ...],
    gpus: NDArray[np.int32],
    work_s: NDArray[np.float64],
    submit_s: NDArray[np.float64],
    *,
    compute_s: NDArray[np.float64] | None = None,
    parameter_bytes: NDArray[np.float64] | None = None,
    left_out: int = 0,
    users: tuple[str, ...] | None = None,
    names: tuple[str, ...] | None = None,
    needs: tuple[NodeNeeds, ...] | None = None,
    plans: tuple[tuple[JobPlan, ...], ...] | None = None,
) -> Workload:
    """Return a workload with exact estimates, sorted by submission; jobs submitted together keep their order.

    Args:
        ids: Name of each job.
        gpus: GPUs of each, shape (jobs,).
        work_s: Work in seconds, shape (jobs,).
        submit_s: Submission in seconds, shape (jobs,), in any order; shifted so that the first is at 0.
        compute_s: Seconds of compute an iteration, shape (jobs,); a default of 0.5.
        parameter_bytes: Bytes of one all-reduce, shape (jobs,); a default of 2e9.
        left_out: Rows of the file that are no jobs.
        users: User of each job, if they are known.
        names: Name of its program or model, if they are known.
        needs: Of each job, if any has some.
        plans: Of each job, if any has some.
    """
    jobs = len(ids)
    work = np.asarray(work_s, dtype=np.float64)
    workload = Workload(
        ids=ids,
        gpus=np.asarray(gpus, dtype=np.int32),
        work_s=work,
        submit_s=np.asarray(submit_s, dtype=np.float64),
        estimate_s=work,
        compute_s=np.full(jobs, DEFAULT_COMPUTE_S) if compute_s is None else np.asarray(compute_s, dtype=np.float64),
        parameter_bytes=(
            np.full(jobs, DEFAULT_PARAMETER_BYTES)
            if parameter_bytes is None
            else np.asarray(parameter_bytes, dtype=np.float64)
        ),
        left_out=left_out,
        users=users,
        names=names,
        needs=needs,
        plans=plans,
    )
    return sorted_by_submission(workload)


def sorted_by_submission(workload: Workload) -> Workload:
    """Return a workload sorted by submission, the first at 0; jobs submitted together keep their order."""
    found = selected_jobs(workload, np.argsort(workload.submit_s, kind="stable"))
    return replace(found, submit_s=found.submit_s - (found.submit_s[0] if found.jobs else 0.0))


ValueT = TypeVar("ValueT")
ARRAYS = ("gpus", "work_s", "submit_s", "estimate_s", "compute_s", "parameter_bytes")
OPTIONAL = ("users", "names", "needs", "plans")


def selected_jobs(workload: Workload, jobs: NDArray[np.intp]) -> Workload:
    """Return some jobs of a workload, by their indices."""
    values: dict[str, Any] = {name: getattr(workload, name)[jobs] for name in ARRAYS}
    values |= {name: _selected(getattr(workload, name), jobs) for name in OPTIONAL}
    return replace(workload, ids=tuple(workload.ids[job] for job in jobs), **values)


def _selected(values: Sequence[ValueT] | None, jobs: NDArray[np.intp]) -> tuple[ValueT, ...] | None:
    return None if values is None else tuple(values[job] for job in jobs)


def first_jobs(workload: Workload, jobs: int | None) -> Workload:
    """Return the first `jobs` jobs of a workload, or all of them."""
    return workload if jobs is None or jobs >= workload.jobs else selected_jobs(workload, np.arange(jobs))


def gap_variation(submit_s: NDArray[np.float64]) -> float:
    """Return the standard deviation over the mean of the times between submissions, NaN if all are at once.

    Args:
        submit_s: Submissions, never decreasing, shape (jobs,).
    """
    gaps_s = np.diff(submit_s)
    if not gaps_s.any():
        return float("nan")
    shares = gaps_s / gaps_s.max()  # in seconds, the mean of tiny gaps is 0, and the squares of huge ones are infinite
    return float(shares.std() / shares.mean())


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

    Windows of one call may overlap, unless `disjoint`; those of parts that do not overlap (such
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
    begin, end = _jobs_before_fraction(workload, first), _jobs_before_fraction(workload, last)
    if end - begin < jobs:
        problem = f"the part from {first:g} to {last:g} of the trace has {max(0, end - begin)} jobs, a window {jobs}"
        raise InputError(problem, "take a longer trace, a larger part or shorter windows")
    if disjoint:
        blocks = (end - begin) // jobs
        offset = begin + rng.integers(0, end - begin - blocks * jobs + 1)
        starts = offset + jobs * np.sort(rng.choice(blocks, min(count, blocks), replace=False))
    else:
        starts = rng.integers(begin, end - jobs + 1, count)
    windows = [with_gpus_cut(_window(workload, int(start), jobs), max_gpus) for start in starts]
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
    return replace(workload, gpus=np.minimum(workload.gpus, np.int32(max_gpus)))


def scaled_to_load(workload: Workload, load: float, cluster_gpus: int) -> Workload:
    """Return the workload with its submissions stretched or squeezed to a load; jobs submitted at once stay so.

    Args:
        workload: Jobs, of which the first is submitted at 0.
        load: Offered load (`TraceStatistics.offered_load`), more than 0.
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
    return replace(workload, submit_s=workload.submit_s / span_s * (gpu_s / (load * cluster_gpus)))


def _jobs_before_fraction(workload: Workload, fraction: float) -> int:
    """Return how many jobs stand before a fraction; one rule for all, so that parts meet without overlap."""
    if not 0 <= fraction <= 1:
        raise ValueError(f"a fraction is a number from 0 to 1; got {fraction}")
    return round(fraction * workload.jobs)


def _window(workload: Workload, begin: int, jobs: int) -> Workload:
    """Return some jobs from one on, shifted so that the first is submitted at 0."""
    return replace(sorted_by_submission(selected_jobs(workload, np.arange(begin, begin + jobs))), left_out=0)


WORK_QUANTILES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0)
HOUR_S = 3600.0


@dataclass(frozen=True, slots=True)
class TraceStatistics:
    """Figures of a workload."""

    jobs: int
    left_out: int  # rows of the file that ask no GPU or never ran
    span_s: float  # first to last submission
    gpu_hours: float  # GPUs x work, summed
    sizes: tuple[tuple[int, int], ...]  # (GPUs, jobs that ask for this number), ascending
    work_s: tuple[tuple[float, float], ...]  # (quantile, work), for each of WORK_QUANTILES
    mean_work_s: float
    gap_variation: float  # standard deviation over mean of the times between submissions; NaN if all are at once

    def offered_load(self, gpus: int) -> float:
        """Return the share of a cluster's GPU-time, while jobs are submitted, that they ask for.

        Args:
            gpus: GPUs of the cluster, all of speed 1.

        Returns:
            1 where the cluster is just large enough, on average; inf if all jobs come at once.

        Raises:
            ValueError: If there is no GPU.
        """
        if gpus < 1:
            raise ValueError(f"gpus is {gpus}, expected 1 or more")
        return self.gpu_hours * HOUR_S / (self.span_s * gpus) if self.span_s > 0 else float("inf")


def describe(workload: Workload) -> TraceStatistics:
    """Return the figures of a workload.

    Raises:
        ValueError: If it has no job.
    """
    if not workload.jobs:
        raise ValueError("the workload has no job")
    sizes, counts = np.unique(workload.gpus, return_counts=True)
    quantiles = np.quantile(workload.work_s, WORK_QUANTILES)
    return TraceStatistics(
        jobs=workload.jobs,
        left_out=workload.left_out,
        span_s=float(workload.submit_s[-1] - workload.submit_s[0]),
        gpu_hours=float(workload.gpus @ workload.work_s) / HOUR_S,
        sizes=tuple(zip(sizes.tolist(), counts.tolist(), strict=True)),
        work_s=tuple(zip(WORK_QUANTILES, quantiles.tolist(), strict=True)),
        mean_work_s=float(workload.work_s.mean()),
        gap_variation=gap_variation(workload.submit_s),
    )


def unique_ids(ids: Sequence[str]) -> tuple[str, ...]:
    """Return ids of which no two are equal: jobs after the first of an id are called ID#2, ID#3, ...

    Ids that are unique stay as they are, also where they end so.
    """
    used, copies, unique = set(ids), Counter[str](), list[str]()
    for name in ids:
        copies[name] += 1
        chosen = name
        while copies[name] > 1 and chosen in used:
            chosen = f"{name}#{copies[name]}"
            copies[name] += chosen in used
        used.add(chosen)
        unique.append(chosen)
    return tuple(unique)
