"""Jobs as arrays."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from .needs import Needs
from .plans import Plan

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
    users: tuple[str, ...] | None = None  # who submitted each job, "" where not known; None if the trace does not tell
    names: tuple[str, ...] | None = None  # name of its program or model, which later runs share, in the same way
    needs: tuple[Needs, ...] | None = None  # of the nodes that it runs on; None if all take any
    plans: tuple[tuple[Plan, ...], ...] | None = None  # of each job, () for none; it runs by the first

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
    needs: tuple[Needs, ...] | None = None,
    plans: tuple[tuple[Plan, ...], ...] | None = None,
) -> Workload:
    """Return a workload with exact estimates, sorted by submission; jobs submitted together keep their order.

    Args:
        ids: Name of each job.
        gpus: GPUs of each, shape (jobs,).
        work_s: Work in seconds, shape (jobs,).
        submit_s: Submission in seconds, shape (jobs,), in any order; shifted so that the first is at 0.
        compute_s: Seconds of compute an iteration, shape (jobs,); a default of 0.5.
        parameter_bytes: Bytes of one all-reduce, shape (jobs,); a default of 2e9.
        left_out: Rows that were left out.
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
        users=taken(users, order),
        names=taken(names, order),
        needs=taken(needs, order),
        plans=taken(plans, order),
    )


Told = TypeVar("Told")


def taken(told: Sequence[Told] | None, jobs: NDArray[np.intp]) -> tuple[Told, ...] | None:
    """Return what is told of some jobs, None if nothing is."""
    return None if told is None else tuple(told[job] for job in jobs)


def first_jobs(workload: Workload, jobs: int | None) -> Workload:
    """Return the first so many jobs of a workload, or all of them."""
    if jobs is None or jobs >= workload.jobs:
        return workload
    arrays = ("gpus", "work_s", "submit_s", "estimate_s", "compute_s", "parameter_bytes")
    first = np.arange(jobs)
    told: dict[str, Any] = {
        name: taken(getattr(workload, name), first) for name in ("users", "names", "needs", "plans")
    }
    cut = replace(workload, ids=workload.ids[:jobs], **told)
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
