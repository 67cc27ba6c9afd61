"""The GPUs that a plan may use: types with their figures, fastest first."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..cluster.model.topology import Cluster
from ..cluster.presets.cluster_file import ClusterSetup
from .model import Constants, HostProfile, MeasuredHardware


class GpuType(NamedTuple):
    """GPUs of one type."""

    name: str
    gpus: int
    peak_flops: float  # of one GPU
    memory_bytes: float  # of one GPU
    gpus_per_node: int
    intra_bytes_per_s: float  # between two GPUs of a node
    nic_bytes_per_s: float  # between nodes, the slowest link on the way
    host_bytes_per_s: float = 0.0  # between a GPU and host memory; 0 if unknown
    host_room_bytes: float = math.inf  # of host memory, for each GPU


Pool = tuple[GpuType, ...]  # fastest first


def pool_of(setup: ClusterSetup) -> Pool:
    """Return the GPUs of a cluster file by type, fastest first."""
    cluster = setup.cluster
    counts = np.diff(cluster.first_gpu)
    found = [
        _gpu_type(cluster, number, offer.gpu_type, counts)._replace(
            host_bytes_per_s=host_bytes_per_s, host_room_bytes=offer.host_memory_bytes_per_gpu
        )
        for number, (offer, host_bytes_per_s) in enumerate(zip(setup.offers, setup.host_bytes_per_s, strict=True))
    ]
    return tuple(
        sorted(
            (gpu_type for gpu_type in found if gpu_type.gpus),
            key=lambda gpu_type: (-gpu_type.peak_flops, gpu_type.name),
        )
    )


def ranks_of(host: HostProfile) -> Pool:
    """Return the ranks of a machine without GPUs as GPUs; their speed is in the profile."""
    return (GpuType("rank", host.ranks, 1.0, host.memory_bytes / host.ranks, host.ranks, 1.0, 1.0),)


def _gpu_type(cluster: Cluster, number: int, name: str, counts: np.ndarray[tuple[int], np.dtype[np.int32]]) -> GpuType:
    nodes = np.flatnonzero(cluster.node_type == number)
    if not nodes.size:
        return GpuType(name, 0, 1.0, 1.0, 1, 1.0, 1.0)
    racks = np.unique(cluster.node_rack[nodes])
    # Nodes of several racks communicate through their uplinks.
    uplink = float(cluster.uplink_bytes_per_s[racks].min()) if racks.size > 1 else np.inf
    first = int(nodes[0])
    return GpuType(
        name,
        int(counts[nodes].sum()),
        float(cluster.peak_flops[first]),
        float(cluster.memory_bytes[first]),
        int(counts[first]),
        float(cluster.intra_bytes_per_s[first]),
        min(float(cluster.nic_bytes_per_s[first]), uplink),
    )


def slowest(types: Sequence[GpuType]) -> GpuType:
    """Return the effective type of a group of several types: the smallest of each figure."""
    names = " + ".join(dict.fromkeys(gpu_type.name for gpu_type in types))
    return GpuType(
        names, sum(gpu_type.gpus for gpu_type in types), *(min(column) for column in list(zip(*types, strict=True))[2:])
    )


def carried_over(constants: Constants, measured: MeasuredHardware, to: GpuType | MeasuredHardware) -> Constants:
    """Return constants for other GPUs: bandwidths keep their share of the datasheet's."""
    inside, across = to.intra_bytes_per_s / measured.intra_bytes_per_s, to.nic_bytes_per_s / measured.nic_bytes_per_s
    return constants._replace(
        tensor_bytes_per_s=constants.tensor_bytes_per_s * inside,
        inside_bytes_per_s=constants.inside_bytes_per_s * inside,
        across_bytes_per_s=constants.across_bytes_per_s * across,
    )
