"""What jobs need of the nodes that they run on, beyond a number of GPUs, and which nodes suit them."""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .topology import Cluster

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


def with_classes(cluster: Cluster, classes: Iterable[frozenset[int]]) -> Cluster:
    """Return a cluster with one more class of needs for each set of node types, behind that which takes every node."""
    rows = [np.isin(cluster.node_type, list(types)) for types in classes]
    suits = np.vstack([np.ones((1, cluster.node_type.size), dtype=np.int32), *rows])
    return cluster._replace(suits=suits.astype(np.int32))


def classified(
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
    return with_classes(cluster, [kind for kind in classes if classes[kind] > 0]), kinds
