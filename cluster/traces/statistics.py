"""What is in a workload, in figures, and writing one down."""

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..files.errors import InputError
from ..model.needs import Needs
from ..model.workload import Workload, gap_variation
from .formats.longshore import COLUMNS
from .jobs import TYPES_APART
from .plan_cells import cell_of

QUANTILES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0)
HOUR_S = 3600.0


@dataclass(frozen=True, slots=True)
class TraceStatistics:
    """Figures of a workload."""

    jobs: int
    left_out: int  # rows of the file that ask no GPU or never ran
    span_s: float  # first to last submission
    gpu_hours: float  # GPUs x work, summed
    sizes: tuple[tuple[int, int], ...]  # (GPUs, jobs that ask so many), ascending
    work_s: tuple[tuple[float, float], ...]  # (quantile, work), for each of QUANTILES
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
    quantiles = np.quantile(workload.work_s, QUANTILES)
    return TraceStatistics(
        jobs=workload.jobs,
        left_out=workload.left_out,
        span_s=float(workload.submit_s[-1] - workload.submit_s[0]),
        gpu_hours=float(workload.gpus @ workload.work_s) / HOUR_S,
        sizes=tuple(zip(sizes.tolist(), counts.tolist(), strict=True)),
        work_s=tuple(zip(QUANTILES, quantiles.tolist(), strict=True)),
        mean_work_s=float(workload.work_s.mean()),
        gap_variation=gap_variation(workload.submit_s),
    )


def write_trace(workload: Workload, path: Path) -> None:
    """Write a workload as Longshore's csv, from which it is read back to the last bit; see docs/formats.md.

    Args:
        workload: The jobs; the count of rows that were left out is not written.
        path: The file, which is replaced.

    Raises:
        InputError: If the file cannot be written.
    """
    numbers = (
        workload.gpus,
        workload.work_s,
        workload.submit_s,
        workload.estimate_s,
        workload.compute_s,
        workload.parameter_bytes,
    )
    texts = {"user": workload.users, "name": workload.names, **_needs_columns(workload), **_plans_column(workload)}
    known = {column: cells for column, cells in texts.items() if cells is not None}
    # Python 3.11 quotes only what the line terminator holds, so a name with a carriage return would break its row.
    returns = any("\r" in str(cell) for cells in (workload.ids, *known.values()) for cell in cells)
    try:
        with path.open("w", encoding="utf-8", errors="backslashreplace", newline="") as file:
            writer = csv.writer(
                file, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC if returns else csv.QUOTE_MINIMAL
            )
            numbered = ("estimate_s", "compute_s", "parameter_bytes")
            writer.writerow(("id", *COLUMNS, *numbered, *known))
            writer.writerows(zip(workload.ids, *(column.tolist() for column in numbers), *known.values(), strict=True))
    except OSError as error:
        raise InputError(
            f"cannot be written: {error.strerror}", "check the folder and its rights", path=path
        ) from error


def _plans_column(workload: Workload) -> dict[str, tuple[str, ...]]:
    """Return the column of plans, none if no job has one."""
    plans = workload.plans or ()
    return {"plans": tuple(map(cell_of, plans))} if any(plans) else {}


def _needs_columns(workload: Workload) -> dict[str, tuple[str | float, ...]]:
    """Return the columns that tell what jobs need, none if nothing is told of it."""
    if workload.needs is None:
        return {}
    types = tuple(TYPES_APART.join(needs.gpu_types) for needs in workload.needs)
    numbers = zip(*(needs[1:] for needs in workload.needs), strict=True)
    return dict(zip(Needs._fields, (types, *numbers), strict=True))
