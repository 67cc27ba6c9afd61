"""What a cluster is made of, as arrays, and what jobs need of its nodes."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Cluster(NamedTuple):
    """Static description of a cluster. GPUs of a node and nodes of a rack are contiguous, in cluster-file order.

    A GPU's speed is relative to the cluster file's reference accelerator, which has speed 1.
    """

    gpu_node: NDArray[np.int32]  # (gpus,) node of each GPU
    first_gpu: NDArray[np.int32]  # (nodes + 1,) GPUs of node i are first_gpu[i] to first_gpu[i + 1] - 1
    node_rack: NDArray[np.int32]  # (nodes,) rack of each node
    first_node: NDArray[np.int32]  # (racks + 1,) nodes of rack r are first_node[r] to first_node[r + 1] - 1
    node_type: NDArray[np.int32]  # (nodes,) index of the node type in the cluster file
    speed: NDArray[np.float64]  # (nodes,) speed of each of the node's GPUs
    peak_flops: NDArray[np.float64]  # (nodes,) peak FLOP/s of each of the node's GPUs
    memory_bytes: NDArray[np.float64]  # (nodes,) memory of each of the node's GPUs
    intra_bytes_per_s: NDArray[np.float64]  # (nodes,) bandwidth between two GPUs of the node
    nic_bytes_per_s: NDArray[np.float64]  # (nodes,) bandwidth between the node and others of its rack
    uplink_bytes_per_s: NDArray[np.float64]  # (racks,) bandwidth between the rack and others
    suits: NDArray[np.int32]  # (classes, nodes) 1 where a node suits jobs of a class of needs; class 0 takes every node


REFERENCE_FLOPS = 125e12  # of a GPU of speed 1: a V100's


def grid_cluster(
    nodes: int,
    gpus_per_node: int,
    *,
    speed: NDArray[np.float64] | None = None,
    nodes_per_rack: int = 0,
) -> Cluster:
    """Return a cluster of equal-sized nodes, with the bandwidths of a common InfiniBand installation.

    Args:
        nodes: Number of nodes.
        gpus_per_node: GPUs of each.
        speed: Relative speed of each node's GPUs, shape (nodes,); 1 everywhere if None.
        nodes_per_rack: Nodes of each rack; 0 puts all in one.
    """
    speeds = np.ones(nodes) if speed is None else np.asarray(speed, dtype=np.float64)
    rack = np.arange(nodes) // (nodes_per_rack or nodes)
    racks = int(rack[-1]) + 1
    return Cluster(
        gpu_node=np.repeat(np.arange(nodes, dtype=np.int32), gpus_per_node),
        first_gpu=np.arange(nodes + 1, dtype=np.int32) * np.int32(gpus_per_node),
        node_rack=rack.astype(np.int32),
        first_node=np.append(np.searchsorted(rack, np.arange(racks)), nodes).astype(np.int32),
        node_type=np.unique(speeds, return_inverse=True)[1].astype(np.int32),
        speed=speeds,
        peak_flops=speeds * REFERENCE_FLOPS,
        memory_bytes=np.full(nodes, 32e9),
        intra_bytes_per_s=np.full(nodes, 150e9),
        nic_bytes_per_s=np.full(nodes, 12.5e9),
        uplink_bytes_per_s=np.full(racks, 50e9),
        suits=np.ones((1, nodes), dtype=np.int32),
    )


def speed_sum(cluster: Cluster) -> float:
    """Return how many GPUs of speed 1 a cluster is worth."""
    return float((cluster.speed * np.diff(cluster.first_gpu)).sum())
