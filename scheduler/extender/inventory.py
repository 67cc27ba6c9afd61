"""What an extender knows: the nodes and their GPUs, the pods that hold them, and what a pod requests.

Requests do not include running pods. The Kubernetes API lists them. Without it, a pod is assumed to be on the node that
was ranked first, until an offer of kube-scheduler contradicts that.
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import NamedTuple

import numpy as np

from ...cluster.faults.models import FaultConfiguration
from ...cluster.model.problem import DEFAULT_HAZARD_PER_S, ORDERS, Rules, rules_stopping_at_faults
from ...cluster.model.topology import Cluster, grid_cluster
from ...cluster.presets.cluster_file import ClusterSetup, draw_faults
from ..mirror.cluster_mirror import ClusterSite
from .wire import Container, OfferedNode, OfferedPod

RESOURCE = "nvidia.com/gpu"
DEFAULT_ESTIMATE_S = 3600.0
ESTIMATE, COMPUTE, PARAMETERS = "longshore.io/estimate-s", "longshore.io/compute-s", "longshore.io/parameter-bytes"
# Names of a gang, as the schedulers and operators that know gangs write them.
GROUP_LABELS = (
    "longshore.io/job", "scheduling.x-k8s.io/pod-group", "pod-group.scheduling.sigs.k8s.io",
    "pod-group.scheduling.sigs.k8s.io/name", "kueue.x-k8s.io/pod-group-name", "training.kubeflow.org/job-name",
    "volcano.sh/job-name",
)  # fmt: skip
GROUP_ANNOTATIONS = ("scheduling.k8s.io/group-name",)
# How many pods it has; coscheduling and Volcano keep that in an object of their own.
MEMBER_KEYS = (
    "longshore.io/pods", "kueue.x-k8s.io/pod-group-total-count", "pod-group.scheduling.sigs.k8s.io/min-available",
)  # fmt: skip
MAX_GANG_PODS = 100_000
_QUANTITY = re.compile(r"(\d{1,18})(?:\.0{1,9})?(m|k|M|G)?")
_SCALE = {"": Decimal(1), "m": Decimal("0.001"), "k": Decimal(1000), "M": Decimal(10**6), "G": Decimal(10**9)}


class PodRequest(NamedTuple):
    """A pod to place."""

    uid: str
    gpus: int
    group: str | None  # of the gang that it belongs to
    members: int  # pods of the gang, 0 if unknown
    estimate_s: float
    compute_s: float
    parameter_bytes: float


def request_of(pod: OfferedPod) -> PodRequest:
    """Return what a pod requests. Fields that cannot be parsed get their defaults."""
    notes = pod.metadata.annotations
    group = _gang_name(pod)
    return PodRequest(
        uid=pod.metadata.uid or f"{pod.metadata.namespace}/{pod.metadata.name}",
        gpus=gpus_of_pod(pod),
        group=group,
        members=_gang_size({**notes, **pod.metadata.labels}) if group else 0,
        estimate_s=_positive_number(notes, ESTIMATE, DEFAULT_ESTIMATE_S),
        compute_s=_positive_number(notes, COMPUTE, 1.0),
        parameter_bytes=_positive_number(notes, PARAMETERS, 0.0),
    )


def gpus_of_pod(pod: OfferedPod) -> int:
    """Return how many GPUs a pod holds at once, as the kubelet counts them: containers beside sidecars, or a step."""
    sidecars = most = 0
    for container in pod.spec.initContainers:
        gpus = _container_gpus(container)
        if container.restartPolicy == "Always":
            sidecars += gpus
            most = max(most, sidecars)
        else:
            most = max(most, sidecars + gpus)
    return max(most, sidecars + sum(map(_container_gpus, pod.spec.containers)))


def _container_gpus(container: Container) -> int:
    limit = container.resources.limits.get(RESOURCE)
    found = container.resources.requests.get(RESOURCE, 0) if limit is None else limit
    return whole_number(found) or 0


def whole_number(quantity: str | int) -> int | None:
    """Return a quantity of Kubernetes as a whole number, None if it is none."""
    if isinstance(quantity, int):
        return quantity if 0 <= quantity < 10**18 else None
    found = _QUANTITY.fullmatch(quantity.strip())
    return None if found is None else math.ceil(int(found[1]) * _SCALE[found[2] or ""])


def _gang_name(pod: OfferedPod) -> str | None:
    labels, notes = pod.metadata.labels, pod.metadata.annotations
    names = [labels.get(key) for key in GROUP_LABELS] + [notes.get(key) for key in GROUP_ANNOTATIONS]
    name = next(filter(None, names), None)
    return None if name is None else f"{pod.metadata.namespace}/{name}"


def _gang_size(texts: Mapping[str, str]) -> int:
    for key in MEMBER_KEYS:
        if key in texts and (count := whole_number(texts[key])) is not None:
            return count if 0 < count <= MAX_GANG_PODS else 0
    return 0


def _positive_number(texts: Mapping[str, str], key: str, default: float) -> float:
    try:
        number = float(texts.get(key, default))
    except ValueError:
        return default
    return number if math.isfinite(number) and 0.0 < number < 1e15 else default


RACK_LABELS = (
    "topology.kubernetes.io/rack", "network.topology.nvidia.com/leaf", "topology.kubernetes.io/zone",
)  # fmt: skip
# Of clusters without a file: a gang is a quarter slower for each node beyond the first, as in `hetero64`.
NODE_PENALTY = 0.25


class NamedSite(NamedTuple):
    """What policies know of a cluster, and the names of its nodes."""

    site: ClusterSite
    names: tuple[str, ...]


class Inventory:
    """The nodes of a cluster.

    Args:
        setup: A cluster file whose nodes have the names of those in Kubernetes; no other nodes count.
            None to learn them from Node objects, as equally fast.
    """

    def __init__(self, setup: ClusterSetup | None) -> None:
        self._fixed = None if setup is None else _site_of_setup(setup)
        self._gpus: dict[str, int] = {}  # allocatable, as last seen
        self._rack: dict[str, str] = {}
        self._learned: NamedSite | None = None
        self._most: dict[str, int] = {}  # GPUs of each node of what was learned

    def update(self, nodes: Iterable[OfferedNode]) -> None:
        """Update from Node objects."""
        for node in nodes:
            if (gpus := allocatable_gpus(node)) is None:
                continue
            name, labels = node.metadata.name, node.metadata.labels
            self._gpus[name] = gpus
            self._rack[name] = next((labels[key] for key in RACK_LABELS if key in labels), "")

    def replace(self, nodes: Iterable[OfferedNode]) -> None:
        """Replace all nodes."""
        self._gpus.clear()
        self.update(nodes)

    def forget(self, name: str) -> None:
        """Remove a node."""
        self._gpus.pop(name, None)

    @property
    def named_site(self) -> NamedSite | None:
        """The cluster; None while nothing is known. The same object until it changes."""
        if self._fixed is not None:
            return self._fixed
        # A node that offers fewer GPUs than before has lost some; only more of them make another cluster.
        most = {name: max(gpus, self._most.get(name, 0)) for name, gpus in self._gpus.items()}
        most = {name: gpus for name, gpus in most.items() if gpus > 0}
        if most != self._most:
            self._most = most
            self._learned = _uniform_site(most, self._rack) if most else None
        return self._learned

    def lost_gpus(self, named_site: NamedSite) -> dict[int, int]:
        """Return how many of its GPUs a node does not offer at present, by the node's index; only those with some."""
        gpus = np.diff(named_site.site.cluster.first_gpu).tolist()
        lost = {
            i: had - self._gpus.get(name, had) for i, (name, had) in enumerate(zip(named_site.names, gpus, strict=True))
        }
        return {i: number for i, number in lost.items() if number > 0}


def allocatable_gpus(node: OfferedNode) -> int | None:
    """Return the number of GPUs that a node offers to pods in all; None if unknown."""
    offered = node.status.allocatable
    return None if offered is None else whole_number(offered.get(RESOURCE, 0))


def stand_in_site() -> NamedSite:
    """Return a cluster of one GPU, for when none is known."""
    return _uniform_site({"stand-in": 1}, {"stand-in": ""})


def _site_of_setup(setup: ClusterSetup) -> NamedSite:
    # Pods are ranked one at a time, and an extender cannot let one wait.
    rules = rules_stopping_at_faults(setup.rules)._replace(order=ORDERS["fifo"], waiting=False)
    return NamedSite(ClusterSite(setup.cluster, rules, draw_faults(setup, 0)[1], setup.hazard_per_s), setup.node_names)


def _uniform_site(gpus: dict[str, int], rack: dict[str, str]) -> NamedSite:
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
    process = FaultConfiguration().process(1.0)
    return NamedSite(ClusterSite(cluster, rules, process, hazard_per_s), tuple(names))


MIN_LEFT_S = 60.0  # of a pod that has outlived its estimate
UNSEEN_S = 60.0  # after which an assumed pod counts no more that the Kubernetes API does not show
MAX_ASSUMED_S = 7 * 86400.0  # after which no assumed pod counts any more, so that nodes that are no more are forgotten
PLAN_S = 120.0  # how long the GPUs that were planned for the rest of a gang are kept from others


@dataclass(frozen=True, slots=True)
class HeldGpus:
    """GPUs of a node that a pod holds."""

    node: str
    gpus: int
    group: str | None
    since_s: float
    estimate_s: float  # of the whole run

    def remaining_s(self, now_s: float) -> float:
        """Return how much longer it is expected to run."""
        return max(self.estimate_s - (now_s - self.since_s), MIN_LEFT_S)


@dataclass(slots=True)
class GangPlan:
    """Nodes for the pods of a gang that are still to be ranked."""

    gpus: int  # of each pod
    pods: dict[str, int]  # by node
    until_s: float


@dataclass(slots=True)
class Ledger:
    """GPUs that are held, and plans. Not safe for threads."""

    known: dict[str, HeldGpus] = field(default_factory=dict)  # by uid: the Kubernetes API shows them
    assumed: dict[str, HeldGpus] = field(default_factory=dict)  # by uid, oldest first
    plans: dict[str, GangPlan] = field(default_factory=dict)  # by group
    is_watched: bool = False  # the Kubernetes API shows all pods

    def assume(self, uid: str, holding: HeldGpus) -> None:
        """Assume a pod to be where it was ranked first."""
        self.assumed.pop(uid, None)
        if uid not in self.known:
            self.assumed[uid] = holding

    def drop_assumption(self, uid: str) -> None:
        """Assume nothing of a pod any more: it waits, or the Kubernetes API shows where it is."""
        self.assumed.pop(uid, None)

    def drop_expired(self, now_s: float) -> None:
        """Drop expired plans and assumptions."""
        self.plans = {group: each for group, each in self.plans.items() if each.until_s > now_s and each.pods}
        most_s = UNSEEN_S if self.is_watched else MAX_ASSUMED_S
        self.assumed = {uid: each for uid, each in self.assumed.items() if now_s - each.since_s < most_s}

    def drop_contradicted(self, usable_gpus: Mapping[str, int], gpus: int) -> None:
        """Drop the oldest assumptions on nodes where kube-scheduler finds room for a number of GPUs and we do not.

        Args:
            usable_gpus: GPUs of each node that was offered, less those that it has lost.
            gpus: What fits on each of them.
        """
        held = self.held_gpus()
        short = {node for node, room in usable_gpus.items() if room - held.get(node, 0) < gpus}
        for uid, holding in list(self.assumed.items()) if short else ():
            if holding.node in short and usable_gpus[holding.node] - held[holding.node] < gpus:
                held[holding.node] -= holding.gpus
                del self.assumed[uid]

    def held_gpus(self) -> dict[str, int]:
        """Return how many GPUs pods hold on each node."""
        held: dict[str, int] = {}
        for holding in (*self.known.values(), *self.assumed.values()):
            held[holding.node] = held.get(holding.node, 0) + holding.gpus
        return held

    def gang_holdings(self, group: str) -> list[HeldGpus]:
        """Return where pods of a gang are."""
        return [holding for holding in (*self.known.values(), *self.assumed.values()) if holding.group == group]

    def unavailable_to(self, group: str | None) -> Iterable[tuple[str, HeldGpus]]:
        """Yield the GPUs that a pod of a gang (or of none) cannot have: held ones, and those planned for others."""
        yield from self.known.items()
        yield from self.assumed.items()
        for other, plan in self.plans.items():
            if other != group:
                for node, pods in plan.pods.items():
                    yield f"{other} {node} {pods}", HeldGpus(node, pods * plan.gpus, other, plan.until_s, PLAN_S)
