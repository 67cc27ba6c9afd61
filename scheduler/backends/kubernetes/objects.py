"""Objects of a Kubernetes cluster as far as they are read, and the device names of GPUs by index.

Source: the field's shape of a claim for exact devices by CEL; NVIDIA's driver names a device by its UUID.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, model_validator
from pydantic.alias_generators import to_camel

ATTEMPT = "longshore.io/attempt"  # label of all that belongs to an attempt, and the finalizer that keeps its pods
PODS = "longshore.io/pods"  # annotation: how many the attempt has
SPEC_ANNOTATION = "longshore.io/spec"  # annotation: digest of what was to be run
FIRST_RANK = "longshore.io/first-rank"  # annotation
RANKS_ANNOTATION = "longshore.io/ranks"  # annotation: how many the pod has
GPUS = "longshore.io/gpus"  # annotation: their indices on its node
NODE_ANNOTATION = "longshore.io/node"  # annotation: its node
DROPPED = "longshore.io/dropped"  # annotation: why it was deleted before it could run
GATE = "longshore.io/placement"


class Read(BaseModel):
    """Part of an object; the server may send more, and null for nothing."""

    model_config = ConfigDict(frozen=True, extra="ignore", alias_generator=to_camel)

    @model_validator(mode="before")
    @classmethod
    def _leave_out_nulls(cls, value: Any) -> Any:
        return {k: v for k, v in value.items() if v is not None} if isinstance(value, dict) else value


class ObjectMetadata(Read):
    """The identity of an object."""

    name: str
    uid: str
    resource_version: str
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    finalizers: tuple[str, ...] = ()
    deletion_timestamp: str = ""


class Condition(Read):
    """A condition: true, false or unknown."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_transition_time: datetime | None = None


class RunningState(Read):
    """A container that runs."""

    started_at: datetime


class WaitingState(Read):
    """A container that does not run yet."""

    reason: str = ""
    message: str = ""


class TerminatedState(Read):
    """A container that has ended."""

    exit_code: int
    signal: int = 0
    reason: str = ""
    message: str = ""
    finished_at: datetime | None = None

    @property
    def is_made_up(self) -> bool:
        """Whether its end is unknown: a kubelet reports exit code 137 then, and containerd 255."""
        return self.reason in ("ContainerStatusUnknown", "Unknown")

    @property
    def never_began(self) -> bool:
        """Whether the container runtime could not start its program; containerd and Docker have two names for it."""
        return self.reason in ("StartError", "ContainerCannotRun")

    @property
    def lacks_program(self) -> bool:
        """Whether the program is not in the image, or cannot be executed there."""
        return self.never_began and 'exec: "' in self.message


class ContainerState(Read):
    """One of three."""

    running: RunningState | None = None
    waiting: WaitingState | None = None
    terminated: TerminatedState | None = None


class ContainerStatus(Read):
    """The node's report of a container."""

    state: ContainerState = ContainerState()


class KubernetesPodStatus(Read):
    """The node's report of a pod."""

    phase: str = "Pending"
    reason: str = ""
    message: str = ""
    conditions: tuple[Condition, ...] = ()
    container_statuses: tuple[ContainerStatus, ...] = ()


class SchedulingGate(Read):
    """A gate that keeps a pod from being placed."""

    name: str


class KubernetesPodSpec(Read):
    """Where a pod runs."""

    node_name: str = ""
    scheduling_gates: tuple[SchedulingGate, ...] = ()


class KubernetesPod(Read):
    """A pod of ours, which has one container."""

    metadata: ObjectMetadata
    spec: KubernetesPodSpec
    status: KubernetesPodStatus = KubernetesPodStatus()

    @property
    def state(self) -> ContainerState:
        """State of its container."""
        statuses = self.status.container_statuses
        return statuses[0].state if statuses else ContainerState()

    @property
    def is_gated(self) -> bool:
        """Whether it waits for its placement."""
        return bool(self.spec.scheduling_gates)

    @property
    def is_deleted(self) -> bool:
        """Whether it is being deleted."""
        return bool(self.metadata.deletion_timestamp)

    @property
    def never_ran(self) -> bool:
        """Whether it can never run: a pod that is being deleted is bound to no node."""
        return self.is_deleted and not self.spec.node_name

    @property
    def is_over(self) -> bool:
        """Whether all its processes are proven gone: by its node's report, or as it has no node, or no longer."""
        if self.status.phase not in ("Succeeded", "Failed"):
            return self.never_ran
        disrupted = self.condition("DisruptionTarget")
        # A collected pod had a node that was deleted or marked as out of service; its last status stays.
        collected = disrupted is not None and disrupted.reason == "DeletionByPodGC"
        return collected or self.state.running is None

    @property
    def has_failed(self) -> bool:
        """Whether it is over, and failed."""
        return self.is_over and self.status.phase != "Succeeded"

    def annotation(self, name: str) -> str:
        """Return an annotation, "" if it has none of this name."""
        return self.metadata.annotations.get(name, "")

    def count(self, name: str) -> int:
        """Return an annotation that is a count, 0 if it is none."""
        text = self.annotation(name)
        return int(text) if text.isdecimal() else 0

    def condition(self, kind: str) -> Condition | None:
        """Return its condition of a kind."""
        return next((condition for condition in self.status.conditions if condition.type == kind), None)


class Taint(Read):
    """Why a node or a device should not be used."""

    key: str = ""
    value: str = ""
    effect: str = ""


class KubernetesNodeStatus(Read):
    """The status of a node."""

    conditions: tuple[Condition, ...] = ()


class NodeSpec(Read):
    """The settings of a node."""

    unschedulable: bool = False
    taints: tuple[Taint, ...] = ()


class KubernetesNode(Read):
    """A node."""

    metadata: ObjectMetadata
    spec: NodeSpec = NodeSpec()
    status: KubernetesNodeStatus = KubernetesNodeStatus()

    @property
    def ready(self) -> Condition | None:
        """Its condition Ready."""
        return next((condition for condition in self.status.conditions if condition.type == "Ready"), None)


class Attribute(Read):
    """A value of one of four types; only strings are read."""

    string: str = ""


class OfferedDevice(Read):
    """A device that a driver offers."""

    name: str
    attributes: dict[str, Attribute] = {}
    taints: tuple[Taint, ...] = ()


class Pool(Read):
    """The pool of a slice's devices."""

    name: str
    generation: int = 0
    resource_slice_count: int = 1


class SliceSpec(Read):
    """The devices of a slice."""

    driver: str
    pool: Pool
    node_name: str = ""
    devices: tuple[OfferedDevice, ...] = ()


class ResourceSlice(Read):
    """Devices of a node, as their driver publishes them."""

    metadata: ObjectMetadata
    spec: SliceSpec


_STOPS = frozenset({"NoSchedule", "NoExecute"})

GpuOrder = Mapping[str, tuple[str, ...]]  # UUIDs of each node's GPUs in the order of their indices


class KubernetesGpu(NamedTuple):
    """A GPU of a node."""

    uuid: str
    usable: bool  # its driver offers it, and no taint forbids it


Offers = Mapping[str, tuple[KubernetesGpu, ...]]  # GPUs of each node


def published(slices: Iterable[ResourceSlice], driver: str) -> Offers:
    """Return the GPUs of each node whose driver has published all of them, in CUDA's order: by PCI bus id.

    Args:
        slices: All that the cluster has.
        driver: Whose devices count.
    """
    ours = [each.spec for each in slices if each.spec.driver == driver and each.spec.node_name]
    newest: dict[str, int] = {}
    for spec in ours:
        newest[spec.node_name] = max(newest.get(spec.node_name, 0), spec.pool.generation)
    found: dict[str, list[SliceSpec]] = {}
    for spec in ours:
        if spec.pool.generation == newest[spec.node_name]:
            found.setdefault(spec.node_name, []).append(spec)
    return {
        node: tuple(_gpu(device) for device in _in_order([device for spec in specs for device in spec.devices]))
        for node, specs in found.items()
        if len(specs) == specs[0].pool.resource_slice_count
    }


def learned(order: GpuOrder, now: Offers) -> GpuOrder:
    """Return the order of GPUs, updated with what nodes offer now.

    A lost GPU does not shift the others: a node keeps its order until it offers as many GPUs again.
    """
    uuids = {node: tuple(gpu.uuid for gpu in gpus) for node, gpus in now.items()}
    return {**order, **{node: found for node, found in uuids.items() if len(found) >= len(order.get(node, ()))}}


def by_index(order: GpuOrder, now: Offers) -> Offers:
    """Return the GPUs of each node by index, with those that are not offered now."""
    usable = {gpu.uuid for gpus in now.values() for gpu in gpus if gpu.usable}
    return {node: tuple(KubernetesGpu(uuid, uuid in usable) for uuid in uuids) for node, uuids in order.items()}


def _in_order(devices: list[OfferedDevice]) -> list[OfferedDevice]:
    whole = [device for device in devices if _text(device, "uuid") and _text(device, "type") in ("", "gpu")]
    return sorted(whole, key=lambda device: (_bus_id(device), _number(device.name), device.name))


def _gpu(device: OfferedDevice) -> KubernetesGpu:
    return KubernetesGpu(_text(device, "uuid"), not any(taint.effect in _STOPS for taint in device.taints))


def _bus_id(device: OfferedDevice) -> str:
    """Return the bus id of a device: by the standard name, or by a driver's own."""
    names = ("resource.kubernetes.io/pciBusID", "pcieBusID", "pciBusID")  # NVIDIA's says pcieBusID
    return next((text for name in names if (text := _text(device, name))), "").lower()


def _text(device: OfferedDevice, name: str) -> str:
    found = device.attributes.get(name)
    return "" if found is None else found.string


def _number(name: str) -> int:
    digits = name[len(name.rstrip("0123456789")) :]
    return int(digits) if digits else -1
