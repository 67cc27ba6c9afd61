"""Jobs of Shanghai AI Lab's clusters, `trace_seren.csv` and `trace_kalos.csv`: InternLM/AcmeTrace."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...model.workload import Workload
from ..jobs import Jobs, jobs_of, workload_from
from ..table import Rows, columns_of, read_rows

COLUMNS = ("job_id", "gpu_num", "submit_time", "duration")
RUN_COLUMNS = ("start_time", "end_time")


def sniff(head: str) -> bool:
    """Return whether a file that begins so is in this format."""
    columns = columns_of(head)
    return "gpu_num" in columns and bool({"gpu_time", "type"} & columns) and "vc" not in columns


def read(path: Path) -> Workload:
    """Read the file; see docs/formats.md.

    Raises:
        InputError: If it cannot be used.
    """
    return workload_from(path, map(_jobs, read_rows(path, COLUMNS, optional=RUN_COLUMNS)))


def _jobs(rows: Rows) -> Jobs:
    duration_s = rows.numbers("duration", blank=0.0)
    timed = all(rows.has(column) for column in RUN_COLUMNS)
    return jobs_of(
        rows.cells["job_id"],
        rows.whole_numbers("gpu_num"),
        _run_s(rows) if timed else duration_s,
        rows.dates_s("submit_time"),
    )


def _run_s(rows: Rows) -> NDArray[np.float64]:
    """Return end less start, 0 where one is missing: the column duration counts the queue in at Kalos, not at Seren."""
    start_s = rows.dates_s("start_time", blank=np.nan)
    end_s = rows.dates_s("end_time", blank=np.nan)
    run_s = np.nan_to_num(end_s - start_s)
    early = np.flatnonzero(run_s < 0)
    if early.size:
        raise rows.error("end_time", int(early[0]), "is before start_time", "correct or drop the row")
    return run_s
