"""Jobs of Microsoft Philly as Sia and its kin carry them, `philly.csv`: they have no name, and are called by line."""

import numpy as np
from numpy.typing import NDArray

from ..csv_format import CsvFormat
from ..jobs import Jobs, jobs_of
from ..table import NUMBER, Rows

COLUMNS = ("timestamp", "duration", "num_gpus")


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


FORMAT = CsvFormat(COLUMNS, lambda columns: {"timestamp", "num_gpus"} <= columns, _jobs, times="as dates or in seconds")
