"""What a cluster is made of, as arrays, and what jobs need of its nodes."""

import math
from collections.abc import Iterable, Sequence
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


GB = 1e9  # bytes


class NodeNeeds(NamedTuple):
    """What a job needs. It takes CPUs and memory of a node in proportion to the GPUs that it takes there."""

    gpu_types: tuple[str, ...] = ()  # names of the node types that it accepts; any if empty
    gpu_memory_bytes: float = 0.0  # least memory of each GPU
    cpus_per_gpu: float = 0.0
    host_memory_bytes_per_gpu: float = 0.0

    @property
    def words(self) -> str:
        """For people, behind a number of GPUs; nothing if it needs nothing."""
        types = "of type " + " or ".join(self.gpu_types)
        memory = f"with {self.gpu_memory_bytes / GB:g} GB"
        cpus = f"with {self.cpus_per_gpu:g} CPUs each"
        host = f"with {self.host_memory_bytes_per_gpu / GB:g} GB of host memory each"
        return " ".join(words for words, need in zip((types, memory, cpus, host), self, strict=True) if need)


class NodeOffer(NamedTuple):
    """What a node type offers to each of its GPUs; inf where the cluster file has no value."""

    gpu_type: str
    gpu_memory_bytes: float = math.inf
    cpus_per_gpu: float = math.inf
    host_memory_bytes_per_gpu: float = math.inf

    def meets(self, needs: NodeNeeds) -> bool:
        """Return whether nodes of this type suit a job."""
        return (not needs.gpu_types or self.gpu_type in needs.gpu_types) and all(
            has >= wants for has, wants in zip(self[1:], needs[1:], strict=True)
        )


ANYTHING = NodeNeeds()


def accepted_types(needs: NodeNeeds, offers: Sequence[NodeOffer]) -> frozenset[int]:
    """Return the numbers of the node types that suit a job."""
    return frozenset(number for number, offer in enumerate(offers) if offer.meets(needs))


def with_need_classes(cluster: Cluster, classes: Iterable[frozenset[int]]) -> Cluster:
    """Return a cluster with one more class of needs for each set of node types, behind that which takes every node."""
    rows = [np.isin(cluster.node_type, list(types)) for types in classes]
    suits = np.vstack([np.ones((1, cluster.node_type.size), dtype=np.int32), *rows])
    return cluster._replace(suits=suits.astype(np.int32))


def with_classes_of_jobs(
    cluster: Cluster, offers: Sequence[NodeOffer], needs: Sequence[Sequence[NodeNeeds] | None]
) -> tuple[Cluster, list[NDArray[np.int32]]]:
    """Return a cluster with a class for each kind of needs, and the class of each job.

    Args:
        cluster: The cluster.
        offers: Of its node types.
        needs: Of the jobs of each workload, None where no job needs anything.
    """
    every = frozenset(range(len(offers)))
    types = {kind: accepted_types(kind, offers) for jobs in needs for kind in dict.fromkeys(jobs or ())}
    classes = {every: 0}
    for found in types.values():
        classes.setdefault(found, len(classes))
    kinds = [np.array([classes[types[kind]] for kind in jobs or ()], dtype=np.int32) for jobs in needs]
    return with_need_classes(cluster, [kind for kind in classes if classes[kind] > 0]), kinds
