"""Jobs as arrays, and their plans: how each job may be spread over GPUs, and how long its iterations then take.

A plan has a data, a pipeline and a tensor degree. Its GPUs stand in the order of nodes: members of a tensor-parallel
group side by side, those of a stage of the pipeline behind one another, the stages last. So a stage whose GPUs divide
what each node gives lies on one node, and so does a group. docs/simulator.md has the formula.

Source: SPEC P1, P2.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..kernels.compiled import kernel
from .needs import NodeNeeds


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
    needs: tuple[NodeNeeds, ...] | None = None  # of the nodes that it runs on; None if all take any
    plans: tuple[tuple[JobPlan, ...], ...] | None = None  # of each job, () for none; it runs by the first

    @property
    def jobs(self) -> int:
        """Number of jobs."""
        return len(self.ids)


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
    order = np.argsort(submit_s, kind="stable")
    jobs = len(ids)
    compute = np.full(jobs, DEFAULT_COMPUTE_S) if compute_s is None else compute_s
    volume = np.full(jobs, DEFAULT_PARAMETER_BYTES) if parameter_bytes is None else parameter_bytes
    work = np.asarray(work_s, dtype=np.float64)[order]
    submit = np.asarray(submit_s, dtype=np.float64)[order]
    return Workload(
        ids=tuple(ids[i] for i in order),
        gpus=np.asarray(gpus, dtype=np.int32)[order],
        work_s=work,
        submit_s=submit - (submit[0] if jobs else 0.0),
        estimate_s=work.copy(),
        compute_s=np.asarray(compute, dtype=np.float64)[order],
        parameter_bytes=np.asarray(volume, dtype=np.float64)[order],
        left_out=left_out,
        users=selected(users, order),
        names=selected(names, order),
        needs=selected(needs, order),
        plans=selected(plans, order),
    )


ValueT = TypeVar("ValueT")


def selected(values: Sequence[ValueT] | None, jobs: NDArray[np.intp]) -> tuple[ValueT, ...] | None:
    """Return the values of some jobs, None if there are none."""
    return None if values is None else tuple(values[job] for job in jobs)


def first_jobs(workload: Workload, jobs: int | None) -> Workload:
    """Return the first `jobs` jobs of a workload, or all of them."""
    if jobs is None or jobs >= workload.jobs:
        return workload
    arrays = ("gpus", "work_s", "submit_s", "estimate_s", "compute_s", "parameter_bytes")
    first = np.arange(jobs)
    values: dict[str, Any] = {
        name: selected(getattr(workload, name), first) for name in ("users", "names", "needs", "plans")
    }
    cut = replace(workload, ids=workload.ids[:jobs], **values)
    return replace(cut, **{name: getattr(workload, name)[:jobs] for name in arrays})


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
