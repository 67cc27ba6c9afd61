"""Pods of an Alibaba GPU cluster, as csv: hkust-adsl/kubernetes-scheduler-simulator."""

from pathlib import Path

import numpy as np

from ...model.workload import Workload
from ..jobs import Jobs, jobs_of, workload_from
from ..table import Rows, columns_of, read_rows

POD_COLUMNS = ("name", "num_gpu", "creation_time", "deletion_time", "scheduled_time")


def sniff(head: str) -> bool:
    """Return whether a file that begins so is in this format."""
    return "gpu_milli" in columns_of(head)


def read(path: Path) -> Workload:
    """Read a pod list; a pod with a share of a GPU takes a whole one (SPEC R10). See docs/formats.md.

    Raises:
        InputError: If it cannot be used.
    """
    return workload_from(path, map(_jobs, read_rows(path, POD_COLUMNS)))


def _jobs(rows: Rows) -> Jobs:
    scheduled_s = rows.numbers("scheduled_time", blank=np.nan)
    deleted_s = rows.numbers("deletion_time", blank=np.nan)
    work_s = np.nan_to_num(deleted_s - scheduled_s)
    early = np.flatnonzero(work_s < 0)
    if early.size:
        raise rows.error("deletion_time", int(early[0]), "is before scheduled_time", "correct or drop the row")
    return jobs_of(rows.cells["name"], rows.whole_numbers("num_gpu"), work_s, rows.numbers("creation_time"))
