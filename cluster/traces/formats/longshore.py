"""Longshore's own csv of jobs, which holds all that a workload does."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...model.workload import Workload
from ..jobs import Jobs, jobs_of, workload_from
from ..table import LONGEST_S, Rows, columns_of, read_rows

COLUMNS = ("gpus", "work_s", "submit_s")
OPTIONAL = ("id", "estimate_s", "compute_s", "parameter_bytes")
LEAST_COMPUTE_S = 1e-6  # a job that computes for no time and sends nothing would have no speed
MOST_BYTES = 1e18


def sniff(head: str) -> bool:
    """Return whether a file that begins so is in this format."""
    columns = columns_of(head)
    return "work_s" in columns or {"gpus", "submit_s"} <= columns


def read(path: Path) -> Workload:
    """Read the file; see docs/formats.md.

    Raises:
        InputError: If it cannot be used.
    """
    return workload_from(path, map(_jobs, read_rows(path, COLUMNS, optional=OPTIONAL)))


def _jobs(rows: Rows) -> Jobs:
    return jobs_of(
        rows.cells["id"] if rows.has("id") else tuple(f"line-{line}" for line in rows.lines),
        rows.whole_numbers("gpus"),
        rows.numbers("work_s"),
        rows.numbers("submit_s"),
        estimate_s=_optional(rows, "estimate_s", least=0.0, most=LONGEST_S),
        compute_s=_optional(rows, "compute_s", least=LEAST_COMPUTE_S, most=LONGEST_S),
        parameter_bytes=_optional(rows, "parameter_bytes", least=0.0, most=MOST_BYTES),
    )


def _optional(rows: Rows, column: str, *, least: float, most: float) -> NDArray[np.float64] | None:
    """Return the column, NaN where a cell is empty, or None if there is no such column."""
    return rows.numbers(column, least=least, most=most, blank=np.nan) if rows.has(column) else None
