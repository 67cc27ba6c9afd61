"""The cluster of a scheduler without a cluster file: the GPUs of this machine, or slots where it has none."""

import logging
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from ...cluster.files.durable import open_folder, write_first
from ...cluster.files.errors import BackendError, InputError
from ...cluster.files.paths import exists
from ...cluster.files.yaml_file import yaml_text
from ...preflight.readers import GpuInfo, GpuLostError, GpuReader
from ..backends.local.own_gpus import open_own_gpus
from ..settings import default_cluster_file

log = logging.getLogger(__name__)

QUICKSTART = """\
# Four nodes of four slots on this machine; a slot behaves like a GPU, but no GPU is behind it.
name: quickstart
node_types:
  slots: {gpus: 4, peak_flops: 1e12, memory_bytes: 1e9, intra_bytes_per_s: 10e9, nic_bytes_per_s: 10e9}
racks:
  - nodes:
      - {type: slots, count: 4}
run_time: {model: simple, node_penalty: 0.05}
"""
# FLOP/s of 16-bit floats with sums of 32 bits, without sparsity, by NVIDIA's datasheets; the first that fits counts.
_PEAKS = {
    "GB300": 2500e12, "GB200": 2500e12, "B300": 2250e12, "B200": 2250e12, "GH200": 989e12, "H200": 989e12,
    "H100 PCIE": 756e12, "H100 NVL": 835e12, "H100": 989e12, "H800": 989e12, "H20": 148e12, "A100": 312e12,
    "A800": 312e12, "A40": 150e12, "A30": 165e12, "A16": 18e12, "A10G": 70e12, "A10": 125e12, "L40S": 362e12,
    "L40": 181e12, "L4": 121e12, "RTX 6000 ADA": 364e12, "RTX A6000": 155e12, "RTX A5000": 111e12, "RTX A4000": 77e12,
    "RTX 5090": 210e12, "RTX 4090": 165e12, "RTX 3090": 71e12, "V100": 125e12, "T4": 65e12, "P100": 19e12, "P40": 12e12,
}  # fmt: skip
_OTHER_PEAK = 50e12  # of a GPU that is not in the table
_NVLINK_BYTES_PER_S = 25e9  # of one link in one direction, from the second generation to the fourth
_PCIE_LANE_BYTES_PER_S = {1: 0.25e9, 2: 0.5e9, 3: 0.98e9, 4: 1.97e9, 5: 3.94e9, 6: 7.56e9}
_LEAST_BYTES_PER_S = 4e9  # between GPUs whose links are not reported
_NIC_BYTES_PER_S = 1.25e9  # of a single node, where it means nothing


def default_cluster(folder: Path) -> Path:
    """Return the cluster file of a folder, which is written if there is none.

    Raises:
        InputError: If it cannot be written.
    """
    path = default_cluster_file(folder)
    if not exists(path):
        try:
            opened = open_folder(str(folder))
            try:
                write_first(opened, path.name, own_cluster().encode())  # whole or not at all, as where the disk is full
            finally:
                os.close(opened)
        except OSError as error:
            raise InputError(f"{path} cannot be written: {error.strerror}", "choose another --folder") from error
    elif _has_slots(path) and own_cluster() != QUICKSTART:
        log.warning("this machine has GPUs, but %s has slots: delete it to use the GPUs", path)
    return path


def _has_slots(path: Path) -> bool:
    """Return whether a file has the slots that are written where no GPUs are found; errors are for who reads it."""
    with suppress(OSError):
        return path.is_file() and path.stat().st_size == len(QUICKSTART) and path.read_text() == QUICKSTART
    return False


def own_cluster() -> str:
    """Return the content of a cluster file for this machine."""
    try:
        reader = open_own_gpus()
        gpus, count = reader.gpus(), reader.count()
    except (BackendError, GpuLostError) as error:
        log.info("no GPUs of this machine are used: %s", error)
        return QUICKSTART
    return _describe(reader, gpus, count) if gpus else QUICKSTART


def _describe(reader: GpuReader, gpus: Sequence[GpuInfo], count: int) -> str:
    """Return the content of a cluster file for the GPUs of this machine, those that are lost among them."""
    names = sorted({gpu.name for gpu in gpus})
    slowest = min(gpus, key=lambda gpu: (_peak(gpu.name), gpu.name))
    kind = {
        "gpus": count,
        "peak_flops": _peak(slowest.name),
        "memory_bytes": float(min(gpu.memory_bytes for gpu in gpus)),
        "intra_bytes_per_s": min(_link_bytes_per_s(reader, gpu.index) for gpu in gpus),
        "nic_bytes_per_s": _NIC_BYTES_PER_S,
    }
    name = re.sub(r"[^a-z0-9]+", "-", slowest.name.lower().removeprefix("nvidia")).strip("-") or "gpus"
    node = {"type": name, "name": os.uname().nodename}
    content = {
        "name": os.uname().nodename,
        "node_types": {name: kind},
        "racks": [{"nodes": [node]}],
        "run_time": {"model": "simple", "node_penalty": 0.05},
    }
    mixed = "\n# They are of several kinds; all count as the slowest." if len(names) > 1 else ""
    return f"# The {count} GPUs of this machine, as its driver reports them: {', '.join(names)}.{mixed}\n" + yaml_text(
        content
    )


def _peak(name: str) -> float:
    words = f" {' '.join(re.findall(r'[A-Z0-9]+', name.upper()))} "
    return next((peak for known, peak in _PEAKS.items() if f" {known} " in words), _OTHER_PEAK)


def _link_bytes_per_s(reader: GpuReader, gpu: int) -> float:
    """Return what a GPU sends to another one in a second: by its NVLinks, or else by its slot."""
    try:
        links = sum(link.active for link in reader.nvlinks(gpu) or ())
        if links:
            return links * _NVLINK_BYTES_PER_S
        pcie, generation = reader.pcie(gpu), reader.max_pcie_generation(gpu)
    except GpuLostError:
        return _LEAST_BYTES_PER_S
    lane = _PCIE_LANE_BYTES_PER_S.get(generation or (pcie.generation if pcie else 0), 0.0)
    return max(lane * (pcie.max_width if pcie else 0), _LEAST_BYTES_PER_S)
