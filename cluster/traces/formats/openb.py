"""Pods of an Alibaba GPU cluster, as csv: hkust-adsl/kubernetes-scheduler-simulator.

A pod with a share of a GPU takes a whole one (SPEC R10).
"""

import numpy as np

from ..csv_format import CsvFormat
from ..jobs import Jobs, jobs_of
from ..table import Rows

COLUMNS = ("name", "num_gpu", "creation_time", "deletion_time", "scheduled_time")


def _jobs(rows: Rows) -> Jobs:
    scheduled_s = rows.numbers("scheduled_time", blank=np.nan)
    deleted_s = rows.numbers("deletion_time", blank=np.nan)
    work_s = np.nan_to_num(deleted_s - scheduled_s)
    early = np.flatnonzero(work_s < 0)
    if early.size:
        raise rows.error("deletion_time", int(early[0]), "is before scheduled_time", "correct or drop the row")
    return jobs_of(rows.cells["name"], rows.whole_numbers("num_gpu"), work_s, rows.numbers("creation_time"))


FORMAT = CsvFormat(COLUMNS, lambda columns: "gpu_milli" in columns, _jobs)
