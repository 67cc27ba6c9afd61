"""Which nodes there are, and how many GPUs each has: from a cluster file, or as Node objects tell."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from ...cluster.faults.none import NoFaults, none
from ...cluster.model.scenarios import DEFAULT_HAZARD_PER_S, ORDERS, Rules, stopping
from ...cluster.model.topology import Cluster, grid_cluster
from ...cluster.presets.cluster_file import ClusterSetup, draw_faults
from ..mirror.standing import Site
from .asking import RESOURCE, count_of
from .wire import Node

RACK_LABELS = (
    "topology.kubernetes.io/rack", "network.topology.nvidia.com/leaf", "topology.kubernetes.io/zone",
)  # fmt: skip
# Of clusters without a file: a gang is a quarter slower for each node beyond the first, as in `hetero64`.
NODE_PENALTY = 0.25


class Place(NamedTuple):
    """What policies know of a cluster, and the names of its nodes."""

    site: Site
    names: tuple[str, ...]


class Inventory:
    """The nodes of a cluster.

    Args:
        setup: A cluster file whose nodes have the names of those in Kubernetes; it alone says which nodes there are.
            None to learn them from Node objects, as equally fast.
    """

    def __init__(self, setup: ClusterSetup | None) -> None:
        self._fixed = None if setup is None else _place_of(setup)
        self._gpus: dict[str, int] = {}  # allocatable, as last seen
        self._rack: dict[str, str] = {}
        self._learned: Place | None = None
        self._most: dict[str, int] = {}  # GPUs of each node of what was learned

    def see(self, nodes: Iterable[Node]) -> None:
        """Learn from Node objects."""
        for node in nodes:
            if (gpus := allocatable_gpus(node)) is None:
                continue
            name, labels = node.metadata.name, node.metadata.labels
            self._gpus[name] = gpus
            self._rack[name] = next((labels[key] for key in RACK_LABELS if key in labels), "")

    def replace(self, nodes: Iterable[Node]) -> None:
        """Learn which nodes there are, and that there are no others."""
        self._gpus.clear()
        self.see(nodes)

    def forget(self, name: str) -> None:
        """Learn that a node is no more."""
        self._gpus.pop(name, None)

    @property
    def place(self) -> Place | None:
        """What there is; None while nothing is known. The same object until it changes."""
        if self._fixed is not None:
            return self._fixed
        # A node that offers fewer GPUs than before has lost some; only more of them make another cluster.
        most = {name: max(gpus, self._most.get(name, 0)) for name, gpus in self._gpus.items()}
        most = {name: gpus for name, gpus in most.items() if gpus > 0}
        if most != self._most:
            self._most = most
            self._learned = _learned(most, self._rack) if most else None
        return self._learned

    def lost(self, place: Place) -> dict[int, int]:
        """Return how many of its GPUs a node does not offer at present, by the node's index; only those with some."""
        gpus = np.diff(place.site.cluster.first_gpu).tolist()
        lost = {i: had - self._gpus.get(name, had) for i, (name, had) in enumerate(zip(place.names, gpus, strict=True))}
        return {i: number for i, number in lost.items() if number > 0}


def allocatable_gpus(node: Node) -> int | None:
    """Return how many GPUs a node offers to pods in all; None if it does not say."""
    offered = node.status.allocatable
    return None if offered is None else count_of(offered.get(RESOURCE, 0))


def stand_in() -> Place:
    """Return a cluster of one GPU, for when none is known."""
    return _learned({"nobody": 1}, {"nobody": ""})


def _place_of(setup: ClusterSetup) -> Place:
    # One pod is asked about at a time, and an extender cannot let it wait.
    rules = stopping(setup.rules)._replace(order=ORDERS["fifo"], waiting=False)
    return Place(Site(setup.cluster, rules, draw_faults(setup, 0)[1], setup.hazard_per_s), setup.node_names)


def _learned(gpus: dict[str, int], rack: dict[str, str]) -> Place:
    """Return a cluster of equally fast nodes."""
    names = sorted(gpus, key=lambda name: (rack[name], name))
    racks = sorted({rack[name] for name in names})
    grid = grid_cluster(len(names), 1)
    sizes = np.array([gpus[name] for name in names], dtype=np.int32)
    node_rack = np.array([racks.index(rack[name]) for name in names], dtype=np.int32)
    cluster: Cluster = grid._replace(
        gpu_node=np.repeat(np.arange(len(names), dtype=np.int32), sizes),
        first_gpu=np.append(0, np.cumsum(sizes)).astype(np.int32),
        node_rack=node_rack,
        first_node=np.append(np.searchsorted(node_rack, np.arange(len(racks))), len(names)).astype(np.int32),
        uplink_bytes_per_s=np.full(len(racks), grid.uplink_bytes_per_s[0]),
    )
    rules = Rules(
        ring=False, node_penalty=NODE_PENALTY, reference_gpus=int(sizes.max()),
        reference_intra_bytes_per_s=float(grid.intra_bytes_per_s[0]),
        reference_nic_bytes_per_s=float(grid.nic_bytes_per_s[0]), checkpoint_s=3600.0, restart_s=300.0,
        order=ORDERS["fifo"], ageing_s=float("inf"), waiting=False,
    )  # fmt: skip
    hazard_per_s = np.full(int(sizes.sum()), DEFAULT_HAZARD_PER_S)
    process = none(cluster, hazard_per_s, NoFaults(), 0)[1]
    return Place(Site(cluster, rules, process, hazard_per_s), tuple(names))
