"""Objects of a Kubernetes cluster, as far as they are read."""

from datetime import datetime
from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator
from pydantic.alias_generators import to_camel

ATTEMPT = "longshore.io/attempt"  # label of all that belongs to an attempt, and the finalizer that keeps its pods
PODS = "longshore.io/pods"  # annotation: how many the attempt has
SPEC = "longshore.io/spec"  # annotation: digest of what was to be run
FIRST_RANK = "longshore.io/first-rank"  # annotation
RANKS = "longshore.io/ranks"  # annotation: how many the pod has
GPUS = "longshore.io/gpus"  # annotation: their indices on its node
NODE = "longshore.io/node"  # annotation: the one that it is to run on
DROPPED = "longshore.io/dropped"  # annotation: why it was deleted before it could run
GATE = "longshore.io/placement"


class Read(BaseModel):
    """Part of an object; the server may tell more, and null for nothing."""

    model_config = ConfigDict(frozen=True, extra="ignore", alias_generator=to_camel)

    @model_validator(mode="before")
    @classmethod
    def _leave_out_nulls(cls, value: Any) -> Any:
        return {k: v for k, v in value.items() if v is not None} if isinstance(value, dict) else value


class Metadata(Read):
    """Who an object is."""

    name: str
    uid: str
    resource_version: str
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    finalizers: tuple[str, ...] = ()
    deletion_timestamp: str = ""


class Condition(Read):
    """What is the case, or not, or not known."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_transition_time: datetime | None = None


class Running(Read):
    """A container that runs."""

    started_at: datetime


class Waiting(Read):
    """A container that does not run yet."""

    reason: str = ""
    message: str = ""


class Terminated(Read):
    """A container that has ended."""

    exit_code: int
    signal: int = 0
    reason: str = ""
    message: str = ""
    finished_at: datetime | None = None

    @property
    def is_made_up(self) -> bool:
        """Whether nothing is known of its end: a kubelet calls that an exit code of 137, and containerd one of 255."""
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

    running: Running | None = None
    waiting: Waiting | None = None
    terminated: Terminated | None = None


class ContainerStatus(Read):
    """What the node says of a container."""

    state: ContainerState = ContainerState()


class PodStatus(Read):
    """What the node says of a pod."""

    phase: str = "Pending"
    reason: str = ""
    message: str = ""
    conditions: tuple[Condition, ...] = ()
    container_statuses: tuple[ContainerStatus, ...] = ()


class SchedulingGate(Read):
    """What keeps a pod from being placed."""

    name: str


class PodSpec(Read):
    """Where a pod runs."""

    node_name: str = ""
    scheduling_gates: tuple[SchedulingGate, ...] = ()


class Pod(Read):
    """A pod of ours, which has one container."""

    metadata: Metadata
    spec: PodSpec
    status: PodStatus = PodStatus()

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
        """Whether it is on its way out."""
        return bool(self.metadata.deletion_timestamp)

    @property
    def never_ran(self) -> bool:
        """Whether it can never run: no node is bound to a pod that is on its way out."""
        return self.is_deleted and not self.spec.node_name

    @property
    def is_over(self) -> bool:
        """Whether all its processes are proven gone: its node says so, it never had a node, or its node is gone."""
        if self.status.phase not in ("Succeeded", "Failed"):
            return self.never_ran
        disrupted = self.condition("DisruptionTarget")
        # What is collected had a node that was deleted, or that somebody marked as out of service; its last word stays.
        collected = disrupted is not None and disrupted.reason == "DeletionByPodGC"
        return collected or self.state.running is None

    @property
    def has_failed(self) -> bool:
        """Whether it is over, and not well."""
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


class NodeStatus(Read):
    """What is said of a node."""

    conditions: tuple[Condition, ...] = ()


class NodeSpec(Read):
    """What an administrator wants of a node."""

    unschedulable: bool = False
    taints: tuple[Taint, ...] = ()


class Node(Read):
    """A node."""

    metadata: Metadata
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()

    @property
    def ready(self) -> Condition | None:
        """What is known of its answering."""
        return next((condition for condition in self.status.conditions if condition.type == "Ready"), None)


class Attribute(Read):
    """A value of one of four types, of which one is read."""

    string: str = ""


class Device(Read):
    """A device that a driver offers."""

    name: str
    attributes: dict[str, Attribute] = {}
    taints: tuple[Taint, ...] = ()


class Pool(Read):
    """Where a slice's devices belong."""

    name: str
    generation: int = 0
    resource_slice_count: int = 1


class SliceSpec(Read):
    """What a slice offers."""

    driver: str
    pool: Pool
    node_name: str = ""
    devices: tuple[Device, ...] = ()


class ResourceSlice(Read):
    """Devices of a node, as their driver publishes them."""

    metadata: Metadata
    spec: SliceSpec
