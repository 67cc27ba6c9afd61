"""Traces of the simulator of Tiresias (NSDI 2019), and of those after it: like Muri's, but in seconds."""

from collections.abc import Set

from ..csv_format import CsvFormat
from ..jobs import Jobs, jobs_of
from ..table import LONGEST_S, Rows

COLUMNS = ("job_id", "num_gpu", "submit_time", "duration")


def _marks(columns: Set[str]) -> bool:
    """Say whether a file may be in this format: one of Muri tells of iterations what Tiresias does not know."""
    return {"num_gpu", "submit_time", "duration"} <= columns and "iteration_time" not in columns


def _jobs(rows: Rows) -> Jobs:
    return jobs_of(
        rows.cells["job_id"],
        rows.whole_numbers("num_gpu"),
        rows.numbers("duration", most=LONGEST_S),
        rows.numbers("submit_time", most=LONGEST_S),
        names=rows.texts("model_name"),
    )


FORMAT = CsvFormat(COLUMNS, _marks, _jobs, ("model_name",), times="in seconds")
