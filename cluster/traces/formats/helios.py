"""Jobs of SenseTime's clusters (Helios), `cluster_log.csv`: S-Lab-System-Group/HeliosData."""

from pathlib import Path

from ...model.workload import Workload
from ..jobs import Jobs, jobs_of, workload_from
from ..table import Rows, columns_of, read_rows

COLUMNS = ("job_id", "gpu_num", "submit_time", "duration")


def sniff(head: str) -> bool:
    """Return whether a file that begins so is in this format."""
    return {"vc", "gpu_num"} <= columns_of(head)


def read(path: Path) -> Workload:
    """Read the file; see docs/formats.md.

    Raises:
        InputError: If it cannot be used.
    """
    return workload_from(path, map(_jobs, read_rows(path, COLUMNS)))


def _jobs(rows: Rows) -> Jobs:
    return jobs_of(
        rows.cells["job_id"],
        rows.whole_numbers("gpu_num"),
        rows.numbers("duration", blank=0.0),
        rows.dates_s("submit_time"),
    )
