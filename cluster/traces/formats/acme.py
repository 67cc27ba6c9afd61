"""Jobs of Shanghai AI Lab's clusters, `trace_seren.csv` and `trace_kalos.csv`: InternLM/AcmeTrace."""

from collections.abc import Set

import numpy as np
from numpy.typing import NDArray

from ..csv_format import CsvFormat
from ..jobs import Jobs, jobs_of, needs_of
from ..table import Rows

COLUMNS = ("job_id", "gpu_num", "submit_time", "duration")
RUN_COLUMNS = ("start_time", "end_time")


def _marks(columns: Set[str]) -> bool:
    return "gpu_num" in columns and bool({"gpu_time", "type"} & columns) and "vc" not in columns


def _jobs(rows: Rows) -> Jobs:
    duration_s = rows.numbers("duration", blank=0.0)
    gpus = rows.whole_numbers("gpu_num")
    timed = all(rows.has(column) for column in RUN_COLUMNS)
    return jobs_of(
        rows.cells["job_id"],
        gpus,
        _run_s(rows) if timed else duration_s,
        rows.dates_s("submit_time"),
        users=rows.texts("user"),
        names=rows.texts("type"),
        needs=needs_of(gpus, cpus=rows.numbers("cpu_num", blank=0.0) if rows.has("cpu_num") else None),
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


FORMAT = CsvFormat(COLUMNS, _marks, _jobs, (*RUN_COLUMNS, "user", "type", "cpu_num"), times="as dates")
