"""Objects of a Kubernetes cluster as far as they are read, and the device names of GPUs by index.

Source: the field's shape of a claim for exact devices by CEL; NVIDIA's driver names a device by its UUID.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, NamedTuple

from pydantic import AliasPath, BaseModel, ConfigDict, Field, ValidationInfo, field_validator
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

STOPPING_EFFECTS = frozenset({"NoSchedule", "NoExecute"})  # of taints; PreferNoSchedule keeps no pod away
_CONTAINER = ("status", "containerStatuses", 0, "state")
GpuOrder = Mapping[str, tuple[str, ...]]  # UUIDs of each node's GPUs in the order of their indices


class ApiModel(BaseModel):
    """Part of an object; the server may send more, and null for nothing."""

    model_config = ConfigDict(frozen=True, extra="ignore", alias_generator=to_camel)

    @field_validator("*", mode="before")
    @classmethod
    def _null_to_default(cls, value: Any, info: ValidationInfo) -> Any:
        return cls.model_fields[str(info.field_name)].default if value is None else value


def _nested_field(first: str, *path: str | int, default: Any) -> Any:
    """Return a field whose value is somewhere inside an object, or the default where the server sends none."""
    return Field(default, validation_alias=AliasPath(first, *path))


class KubernetesObject(ApiModel):
    """An object of any kind."""

    name: str = Field(validation_alias=AliasPath("metadata", "name"))
    uid: str = Field(validation_alias=AliasPath("metadata", "uid"))
    resource_version: str = Field(validation_alias=AliasPath("metadata", "resourceVersion"))
    labels: dict[str, str] = _nested_field("metadata", "labels", default={})
    annotations: dict[str, str] = _nested_field("metadata", "annotations", default={})
    finalizers: tuple[str, ...] = _nested_field("metadata", "finalizers", default=())
    deletion_timestamp: str = _nested_field("metadata", "deletionTimestamp", default="")


class Condition(ApiModel):
    """A condition: true, false or unknown."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_transition_time: datetime | None = None


class RunningState(ApiModel):
    """A container that runs."""

    started_at: datetime


class TerminatedState(ApiModel):
    """A container that has ended."""

    exit_code: int
    signal: int = 0
    reason: str = ""
    message: str = ""
    finished_at: datetime | None = None

    @property
    def has_unknown_end(self) -> bool:
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


class KubernetesPod(KubernetesObject):
    """A pod of ours, which has one container."""

    node: str = _nested_field("spec", "nodeName", default="")
    scheduling_gates: tuple[Any, ...] = _nested_field("spec", "schedulingGates", default=())
    phase: str = _nested_field("status", "phase", default="Pending")
    reason: str = _nested_field("status", "reason", default="")
    message: str = _nested_field("status", "message", default="")
    conditions: tuple[Condition, ...] = _nested_field("status", "conditions", default=())
    running: RunningState | None = _nested_field(*_CONTAINER, "running", default=None)
    waiting_reason: str = _nested_field(*_CONTAINER, "waiting", "reason", default="")
    waiting_message: str = _nested_field(*_CONTAINER, "waiting", "message", default="")
    terminated: TerminatedState | None = _nested_field(*_CONTAINER, "terminated", default=None)

    @property
    def is_gated(self) -> bool:
        """Whether it waits for its placement."""
        return bool(self.scheduling_gates)

    @property
    def is_being_deleted(self) -> bool:
        """Whether it is being deleted."""
        return bool(self.deletion_timestamp)

    @property
    def will_never_run(self) -> bool:
        """Whether it can never run: a pod that is being deleted is bound to no node."""
        return self.is_being_deleted and not self.node

    @property
    def is_over(self) -> bool:
        """Whether all its processes are proven gone: by its node's report, or as it has no node, or no longer."""
        if self.phase not in ("Succeeded", "Failed"):
            return self.will_never_run
        disrupted = self.condition("DisruptionTarget")
        # A collected pod had a node that was deleted or marked as out of service; its last status stays.
        collected = disrupted is not None and disrupted.reason == "DeletionByPodGC"
        return collected or self.running is None

    @property
    def has_failed(self) -> bool:
        """Whether it is over, and failed."""
        return self.is_over and self.phase != "Succeeded"

    def annotation(self, name: str) -> str:
        """Return an annotation, "" if it has none of this name."""
        return self.annotations.get(name, "")

    def annotated_count(self, name: str) -> int:
        """Return an annotation that is a count, 0 if it is none."""
        text = self.annotation(name)
        return int(text) if text.isdecimal() else 0

    def condition(self, kind: str) -> Condition | None:
        """Return its condition of a kind."""
        return next((condition for condition in self.conditions if condition.type == kind), None)


class Taint(ApiModel):
    """Why a node or a device should not be used."""

    key: str = ""
    value: str = ""
    effect: str = ""


class KubernetesNode(KubernetesObject):
    """A node."""

    unschedulable: bool = _nested_field("spec", "unschedulable", default=False)
    taints: tuple[Taint, ...] = _nested_field("spec", "taints", default=())
    conditions: tuple[Condition, ...] = _nested_field("status", "conditions", default=())

    @property
    def ready_condition(self) -> Condition | None:
        """Its condition Ready."""
        return next((condition for condition in self.conditions if condition.type == "Ready"), None)


class OfferedDevice(ApiModel):
    """A device that a driver offers."""

    name: str
    attributes: dict[str, dict[str, Any]] = {}  # the value of each by its type; only strings are read
    taints: tuple[Taint, ...] = ()


class ResourceSlice(KubernetesObject):
    """Devices of a node, as their driver publishes them, in one or more slices of a generation."""

    driver: str = Field(validation_alias=AliasPath("spec", "driver"))
    node: str = _nested_field("spec", "nodeName", default="")
    generation: int = _nested_field("spec", "pool", "generation", default=0)
    slices: int = _nested_field("spec", "pool", "resourceSliceCount", default=1)
    devices: tuple[OfferedDevice, ...] = _nested_field("spec", "devices", default=())


class KubernetesGpu(NamedTuple):
    """A GPU of a node."""

    uuid: str
    usable: bool  # its driver offers it, and no taint forbids it


Offers = Mapping[str, tuple[KubernetesGpu, ...]]  # GPUs of each node


def published_gpus(slices: Iterable[ResourceSlice], driver: str) -> Offers:
    """Return the GPUs of each node whose driver has published all of them, in CUDA's order: by PCI bus id."""
    ours = [each for each in slices if each.driver == driver and each.node]
    newest: dict[str, int] = {}
    for each in ours:
        newest[each.node] = max(newest.get(each.node, 0), each.generation)
    found: dict[str, list[ResourceSlice]] = {}
    for each in ours:
        if each.generation == newest[each.node]:
            found.setdefault(each.node, []).append(each)
    return {
        node: tuple(
            _as_gpu(device) for device in _gpu_devices_by_bus([device for each in parts for device in each.devices])
        )
        for node, parts in found.items()
        if len(parts) == parts[0].slices
    }


def updated_gpu_order(order: GpuOrder, offers: Offers) -> GpuOrder:
    """Return the order of GPUs, updated with what nodes offer now.

    A lost GPU does not shift the others: a node keeps its order until it offers as many GPUs again.
    """
    uuids = {node: tuple(gpu.uuid for gpu in gpus) for node, gpus in offers.items()}
    return {**order, **{node: found for node, found in uuids.items() if len(found) >= len(order.get(node, ()))}}


def gpus_in_order(order: GpuOrder, offers: Offers) -> Offers:
    """Return the GPUs of each node by index, with those that are not offered now."""
    usable = {gpu.uuid for gpus in offers.values() for gpu in gpus if gpu.usable}
    return {node: tuple(KubernetesGpu(uuid, uuid in usable) for uuid in uuids) for node, uuids in order.items()}


def _gpu_devices_by_bus(devices: list[OfferedDevice]) -> list[OfferedDevice]:
    whole = [
        device
        for device in devices
        if _text_attribute(device, "uuid") and _text_attribute(device, "type") in ("", "gpu")
    ]
    return sorted(whole, key=lambda device: (_bus_id(device), _trailing_number(device.name), device.name))


def _as_gpu(device: OfferedDevice) -> KubernetesGpu:
    return KubernetesGpu(
        _text_attribute(device, "uuid"), not any(taint.effect in STOPPING_EFFECTS for taint in device.taints)
    )


def _bus_id(device: OfferedDevice) -> str:
    """Return the bus id of a device: by the standard name, or by a driver's own."""
    names = ("resource.kubernetes.io/pciBusID", "pcieBusID", "pciBusID")  # NVIDIA's says pcieBusID
    return next((text for name in names if (text := _text_attribute(device, name))), "").lower()


def _text_attribute(device: OfferedDevice, name: str) -> str:
    return str(device.attributes.get(name, {}).get("string") or "")


def _trailing_number(name: str) -> int:
    digits = name[len(name.rstrip("0123456789")) :]
    return int(digits) if digits else -1
