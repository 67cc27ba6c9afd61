"""Jobs of SenseTime's clusters (Helios), `cluster_log.csv`: S-Lab-System-Group/HeliosData."""

from ..csv_format import CsvFormat
from ..jobs import Jobs, jobs_of
from ..table import Rows

COLUMNS = ("job_id", "gpu_num", "submit_time", "duration")


def _jobs(rows: Rows) -> Jobs:
    return jobs_of(
        rows.cells["job_id"],
        rows.whole_numbers("gpu_num"),
        rows.numbers("duration", blank=0.0),
        rows.dates_s("submit_time"),
        users=rows.texts("user"),
    )


FORMAT = CsvFormat(COLUMNS, lambda columns: {"vc", "gpu_num"} <= columns, _jobs, ("user",))
