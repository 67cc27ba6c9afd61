"""Jobs of SenseTime's clusters (Helios), `cluster_log.csv`: S-Lab-System-Group/HeliosData."""

from ..csv_format import DATES, CsvFormat
from ..jobs import Jobs, jobs_of, needs_of
from ..table import Rows

COLUMNS = ("job_id", "gpu_num", "submit_time", "duration")


def _jobs(rows: Rows) -> Jobs:
    gpus = rows.whole_numbers("gpu_num")
    return jobs_of(
        rows.cells["job_id"],
        gpus,
        rows.numbers("duration", blank=0.0),
        rows.dates_s("submit_time"),
        users=rows.texts("user"),
        needs=needs_of(gpus, cpus=rows.numbers("cpu_num", blank=0.0) if rows.has("cpu_num") else None),
    )


FORMAT = CsvFormat(COLUMNS, lambda columns: {"vc", "gpu_num"} <= columns, _jobs, ("user", "cpu_num"), times=DATES)
