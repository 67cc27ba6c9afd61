"""Pods of an Alibaba GPU cluster, as csv: hkust-adsl/kubernetes-scheduler-simulator.

A pod with a share of a GPU takes a whole one (SPEC R10).
"""

import numpy as np
from numpy.typing import NDArray

from ...model.needs import Needs
from ..csv_format import CsvFormat
from ..jobs import Jobs, jobs_of, needs_of
from ..table import Rows

MIB = 2.0**20
COLUMNS = ("name", "num_gpu", "creation_time", "deletion_time", "scheduled_time")


def _jobs(rows: Rows) -> Jobs:
    scheduled_s = rows.numbers("scheduled_time", blank=np.nan)
    deleted_s = rows.numbers("deletion_time", blank=np.nan)
    work_s = np.nan_to_num(deleted_s - scheduled_s)
    early = np.flatnonzero(work_s < 0)
    if early.size:
        raise rows.error("deletion_time", int(early[0]), "is before scheduled_time", "correct or drop the row")
    gpus = rows.whole_numbers("num_gpu")
    return jobs_of(rows.cells["name"], gpus, work_s, rows.numbers("creation_time"), needs=_needs(rows, gpus))


def _needs(rows: Rows, gpus: NDArray[np.int64]) -> tuple[Needs, ...] | None:
    cpus = rows.numbers("cpu_milli", blank=0.0) / 1000.0 if rows.has("cpu_milli") else None
    memory = rows.numbers("memory_mib", blank=0.0) * MIB if rows.has("memory_mib") else None
    return needs_of(gpus, types=rows.texts("gpu_spec"), cpus=cpus, host_memory_bytes=memory)


FORMAT = CsvFormat(
    COLUMNS, lambda columns: "gpu_milli" in columns, _jobs, ("gpu_spec", "cpu_milli", "memory_mib"), times="in seconds"
)
