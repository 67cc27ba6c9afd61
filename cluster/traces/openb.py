"""Pods and nodes of an Alibaba GPU cluster, as csv: hkust-adsl/kubernetes-scheduler-simulator."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError
from ..workload import Workload
from .jobs import Jobs, jobs_of, workload_from
from .table import Rows, columns_of, read_rows

POD_COLUMNS = ("name", "num_gpu", "creation_time", "deletion_time", "scheduled_time")
NODE_COLUMNS = ("sn", "gpu", "model")


class OpenbNodes(NamedTuple):
    """GPU nodes of the cluster, in file order."""

    names: tuple[str, ...]
    gpus: NDArray[np.int32]  # (nodes,) GPUs of the node, at least 1
    models: tuple[str, ...]  # (nodes,) GPU model, such as V100M32


def sniff(head: str) -> bool:
    """Return whether a file that begins so is in this format."""
    return "gpu_milli" in columns_of(head)


def read(path: Path) -> Workload:
    """Read a pod list; a pod with a share of a GPU takes a whole one (SPEC R10). See docs/formats.md.

    Raises:
        InputError: If it cannot be used.
    """
    return workload_from(path, map(_jobs, read_rows(path, POD_COLUMNS)))


def read_openb_nodes(path: Path) -> OpenbNodes:
    """Read a node list (columns sn, gpu, model); nodes without a GPU are left out.

    Raises:
        InputError: If it cannot be used, or lists no GPU.
    """
    names: list[str] = []
    gpus: list[int] = []
    models: list[str] = []
    for rows in read_rows(path, NODE_COLUMNS):
        counts = rows.whole_numbers("gpu")
        with_gpus = np.flatnonzero(counts)
        gpus.extend(counts[with_gpus].tolist())
        names.extend(rows.cells["sn"][row] for row in with_gpus)
        models.extend(rows.cells["model"][row] for row in with_gpus)
    if not names:
        raise InputError("there is no node with a GPU", "give a list of GPU nodes", path=path)
    return OpenbNodes(tuple(names), np.array(gpus, dtype=np.int32), tuple(models))


def _jobs(rows: Rows) -> Jobs:
    scheduled_s = rows.numbers("scheduled_time", blank=np.nan)
    deleted_s = rows.numbers("deletion_time", blank=np.nan)
    work_s = np.nan_to_num(deleted_s - scheduled_s)
    early = np.flatnonzero(work_s < 0)
    if early.size:
        raise rows.error("deletion_time", int(early[0]), "is before scheduled_time", "correct or drop the row")
    return jobs_of(rows.cells["name"], rows.whole_numbers("num_gpu"), work_s, rows.numbers("creation_time"))
