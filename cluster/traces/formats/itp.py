"""Jobs of a Microsoft GPU cluster (ITP), as csv: microsoft/elasticflow-traces."""

from pathlib import Path

from ...model.workload import Workload
from ..jobs import Jobs, jobs_of, workload_from
from ..table import Rows, columns_of, read_rows

COLUMNS = ("job_id", "submission_time", "duration", "num_gpu")


def sniff(head: str) -> bool:
    """Return whether a file that begins so is in this format."""
    return "submission_time" in columns_of(head)


def read(path: Path) -> Workload:
    """Read the file; see docs/formats.md.

    Raises:
        InputError: If it cannot be used.
    """
    return workload_from(path, map(_jobs, read_rows(path, COLUMNS)))


def _jobs(rows: Rows) -> Jobs:
    return jobs_of(
        rows.cells["job_id"],
        rows.whole_numbers("num_gpu"),
        rows.numbers("duration"),
        rows.numbers("submission_time"),
    )
