"""From the rows of a trace to a workload."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..files.errors import InputError
from ..model.layouts import laid_out
from ..model.needs import ANYTHING, Needs
from ..model.plans import Plan
from ..model.workload import DEFAULT_COMPUTE_S, DEFAULT_PARAMETER_BYTES, Told, Workload, taken, workload_of


class Jobs(NamedTuple):
    """Jobs as some rows of a trace give them, in any order. A job of 0 GPUs or 0 seconds never ran."""

    ids: tuple[str, ...]
    gpus: NDArray[np.int64]  # (rows,)
    work_s: NDArray[np.float64]  # (rows,)
    submit_s: NDArray[np.float64]  # (rows,)
    estimate_s: NDArray[np.float64]  # (rows,)
    compute_s: NDArray[np.float64]  # (rows,)
    parameter_bytes: NDArray[np.float64]  # (rows,)
    users: tuple[str, ...] | None  # None if the trace does not tell
    names: tuple[str, ...] | None  # of programs or models
    needs: tuple[Needs, ...] | None  # None if the trace does not tell
    plans: tuple[tuple[Plan, ...], ...] | None = None  # None if the trace does not tell


def jobs_of(
    ids: tuple[str, ...],
    gpus: NDArray[np.int64],
    work_s: NDArray[np.float64],
    submit_s: NDArray[np.float64],
    *,
    estimate_s: NDArray[np.float64] | None = None,
    compute_s: NDArray[np.float64] | None = None,
    parameter_bytes: NDArray[np.float64] | None = None,
    users: tuple[str, ...] | None = None,
    names: tuple[str, ...] | None = None,
    needs: tuple[Needs, ...] | None = None,
    plans: tuple[tuple[Plan, ...], ...] | None = None,
) -> Jobs:
    """Return jobs with defaults for what a trace does not tell.

    Args:
        ids: Name of each job.
        gpus: GPUs of each, shape (rows,).
        work_s: Run time without the queue, shape (rows,).
        submit_s: Submission on any clock, shape (rows,).
        estimate_s: Estimate of the work, shape (rows,); the work where it is left out, NaN or 0.
        compute_s: Compute time of an iteration, shape (rows,); a default where it is left out or NaN.
        parameter_bytes: Volume of one all-reduce, shape (rows,); a default where it is left out or NaN.
        users: Who submitted each job, empty where that is not known.
        names: Name of its program or model, empty where that is not known.
        needs: Of the nodes that it runs on.
        plans: By which it may run.
    """
    return Jobs(
        ids,
        gpus,
        work_s,
        submit_s,
        work_s if estimate_s is None else np.where(estimate_s > 0, estimate_s, work_s),
        _or_default(compute_s, len(ids), DEFAULT_COMPUTE_S),
        _or_default(parameter_bytes, len(ids), DEFAULT_PARAMETER_BYTES),
        _stripped(users),
        _stripped(names),
        needs,
        plans,
    )


TYPES_APART = "|"  # between the names of types in a cell
MOST_CPUS = 1e6


def types_in(cell: str) -> tuple[str, ...]:
    """Return the names of types in a cell."""
    return tuple(name.strip() for name in cell.split(TYPES_APART) if name.strip())


def needs_of(
    gpus: NDArray[np.int64],
    *,
    types: tuple[str, ...] | None = None,
    cpus: NDArray[np.float64] | None = None,
    host_memory_bytes: NDArray[np.float64] | None = None,
) -> tuple[Needs, ...] | None:
    """Return what jobs need by what a trace tells of whole jobs, None if it tells nothing.

    Args:
        gpus: GPUs of each, shape (rows,).
        types: Cell of each with the types that it accepts, empty for any.
        cpus: CPUs of each, shape (rows,).
        host_memory_bytes: Memory of each, shape (rows,).
    """
    if types is None and cpus is None and host_memory_bytes is None:
        return None
    each = [np.zeros(gpus.size) if it is None else it / np.maximum(gpus, 1) for it in (cpus, host_memory_bytes)]
    accepted = map(types_in, types or ("",) * gpus.size)
    return tuple(
        Needs(names, 0.0, *shares) for names, *shares in zip(accepted, *(it.tolist() for it in each), strict=True)
    )


def _stripped(texts: tuple[str, ...] | None) -> tuple[str, ...] | None:
    return None if texts is None else tuple(text.strip() for text in texts)


def _or_default(values: NDArray[np.float64] | None, rows: int, default: float) -> NDArray[np.float64]:
    return np.full(rows, default) if values is None else np.where(np.isnan(values), default, values)


def workload_from(path: Path, parts: Iterable[Jobs]) -> Workload:
    """Return the jobs of all parts as a workload, without those that ask no GPU or never ran.

    Args:
        path: The file that they are from.
        parts: Jobs of consecutive rows.

    Raises:
        InputError: If no job is left.
    """
    kept, left_out = [], 0
    for part in parts:
        ran = (part.gpus > 0) & (part.work_s > 0)
        left_out += int(np.count_nonzero(~ran))
        kept.append(_those(part, np.flatnonzero(ran)))
    if not any(part.ids for part in kept):
        problem = f"none of its {left_out} rows is a job that asked a GPU and ran" if left_out else "there is no job"
        raise InputError(problem, "give a trace of GPU jobs with their run times", path=path)
    return _workload(_joined(kept), left_out)


def _those(jobs: Jobs, rows: NDArray[np.intp]) -> Jobs:
    return Jobs(
        tuple(jobs.ids[row] for row in rows),
        jobs.gpus[rows],
        jobs.work_s[rows],
        jobs.submit_s[rows],
        jobs.estimate_s[rows],
        jobs.compute_s[rows],
        jobs.parameter_bytes[rows],
        taken(jobs.users, rows),
        taken(jobs.names, rows),
        taken(jobs.needs, rows),
        taken(jobs.plans, rows),
    )


def _joined(parts: list[Jobs]) -> Jobs:
    return Jobs(
        tuple(name for part in parts for name in part.ids),
        np.concatenate([part.gpus for part in parts]),
        np.concatenate([part.work_s for part in parts]),
        np.concatenate([part.submit_s for part in parts]),
        np.concatenate([part.estimate_s for part in parts]),
        np.concatenate([part.compute_s for part in parts]),
        np.concatenate([part.parameter_bytes for part in parts]),
        _chained([part.users for part in parts]),
        _chained([part.names for part in parts]),
        _chained([_needs_of(part) for part in parts]) if any(part.needs for part in parts) else None,
        _chained([part.plans for part in parts]),
    )


def _needs_of(jobs: Jobs) -> tuple[Needs, ...]:
    """Return what each job needs: nothing where nothing is told."""
    return jobs.needs or (ANYTHING,) * len(jobs.ids)


def _chained(parts: list[tuple[Told, ...] | None]) -> tuple[Told, ...] | None:
    """Return what is told of the jobs of all parts, None if nothing is of one."""
    known = [part for part in parts if part is not None]
    return tuple(told for part in known for told in part) if len(known) == len(parts) else None


def _workload(jobs: Jobs, left_out: int) -> Workload:
    """Return jobs as a workload that keeps their estimates."""
    order = np.argsort(jobs.submit_s, kind="stable")
    workload = workload_of(
        jobs.ids,
        jobs.gpus.astype(np.int32),
        jobs.work_s,
        jobs.submit_s,
        compute_s=jobs.compute_s,
        parameter_bytes=jobs.parameter_bytes,
        left_out=left_out,
        users=jobs.users,
        names=jobs.names,
        needs=jobs.needs,
        plans=jobs.plans,
    )
    return laid_out(replace(workload, estimate_s=jobs.estimate_s[order]), "fixed")
