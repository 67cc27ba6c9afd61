"""Jobs of a Microsoft GPU cluster (ITP), as csv: microsoft/elasticflow-traces."""

from ..csv_format import CsvFormat
from ..jobs import Jobs, jobs_of
from ..table import Rows

COLUMNS = ("job_id", "submission_time", "duration", "num_gpu")


def _jobs(rows: Rows) -> Jobs:
    return jobs_of(
        rows.cells["job_id"],
        rows.whole_numbers("num_gpu"),
        rows.numbers("duration"),
        rows.numbers("submission_time"),
    )


FORMAT = CsvFormat(COLUMNS, lambda columns: "submission_time" in columns, _jobs, times="in seconds")
