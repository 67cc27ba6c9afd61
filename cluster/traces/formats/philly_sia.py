"""Jobs of Microsoft Philly as Sia and its kin carry them, `philly.csv`."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...model.workload import Workload
from ..jobs import Jobs, jobs_of, workload_from
from ..table import NUMBER, Rows, columns_of, read_rows

COLUMNS = ("timestamp", "duration", "num_gpus")


def sniff(head: str) -> bool:
    """Return whether a file that begins so is in this format."""
    return {"timestamp", "num_gpus"} <= columns_of(head)


def read(path: Path) -> Workload:
    """Read the file, in which jobs have no name: they are called after their line. See docs/formats.md.

    Raises:
        InputError: If it cannot be used.
    """
    return workload_from(path, map(_jobs, read_rows(path, COLUMNS)))


def _jobs(rows: Rows) -> Jobs:
    return jobs_of(
        tuple(f"line-{line}" for line in rows.lines),
        rows.whole_numbers("num_gpus"),
        rows.numbers("duration", blank=0.0),
        _submit_s(rows),
    )


def _submit_s(rows: Rows) -> NDArray[np.float64]:
    """Return submissions, which some copies give as dates and others as seconds."""
    if NUMBER.fullmatch(rows.cells["timestamp"][0]):
        return rows.numbers("timestamp")
    return rows.dates_s("timestamp")
