"""What can be chosen of the Kubernetes backend, and which taints of nodes its pods tolerate.

Source: the rules of kube-scheduler's plugin TaintToleration.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from .objects import STOPPING_EFFECTS, Taint

DNS_LABEL = r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"
DNS_WORDS = "1 to 63 small letters, digits and -, the first and the last no -."
Fields = dict[str, Any]  # of Kubernetes' own, under its own names
_OWN_NAMES = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel)


class Toleration(BaseModel):
    """Taints that a pod tolerates, in Kubernetes' own terms."""

    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel, populate_by_name=True)

    key: str = ""  # "" for any
    operator: Literal["Equal", "Exists"] = "Equal"
    value: str = ""
    effect: Literal["", "NoSchedule", "PreferNoSchedule", "NoExecute"] = ""  # "" for all
    toleration_seconds: int | None = None  # for which a taint of effect NoExecute is tolerated

    def tolerates(self, taint: Taint) -> bool:
        """Return whether a pod with it can run on a node with a taint, and stay there."""
        if self.effect not in ("", taint.effect) or self.key not in ("", taint.key):
            return False
        if taint.effect == "NoExecute" and self.toleration_seconds is not None:
            return False  # It would be evicted after that time.
        return self.operator == "Exists" or (self.key == taint.key and self.value == taint.value)


def blocking_taint(taints: Iterable[Taint], tolerations: Sequence[Toleration]) -> Taint | None:
    """Return the first taint that keeps pods from a node, None if there is none."""
    for taint in taints:
        if taint.effect in STOPPING_EFFECTS and not any(toleration.tolerates(taint) for toleration in tolerations):
            return taint
    return None


class ContainerFields(BaseModel):
    """What the container of each pod gets on top of what Longshore sets."""

    model_config = _OWN_NAMES

    env: tuple[Fields, ...] = ()
    env_from: tuple[Fields, ...] = ()
    volume_mounts: tuple[Fields, ...] = ()
    resources: Fields = {}  # requests and limits of CPU and memory
    security_context: Fields = {"allowPrivilegeEscalation": False}
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] = "IfNotPresent"


class PodFields(BaseModel):
    """What each pod gets on top of what Longshore sets: data, secrets, rights."""

    model_config = _OWN_NAMES

    volumes: tuple[Fields, ...] = ()
    tolerations: tuple[Toleration, ...] = ()
    image_pull_secrets: tuple[Fields, ...] = ()
    service_account_name: str = "default"
    security_context: Fields = {"seccompProfile": {"type": "RuntimeDefault"}}
    priority_class_name: str = ""
    runtime_class_name: str = ""
    container: ContainerFields = ContainerFields()

    def pod_spec_fields(self) -> Fields:
        """Return the fields of a pod's spec, without its tolerations."""
        fields = self.model_dump(by_alias=True, exclude={"container", "tolerations"}, mode="json")
        return {k: v for k, v in fields.items() if v}

    def container_fields(self) -> Fields:
        """Return the fields of a container."""
        return {k: v for k, v in self.container.model_dump(by_alias=True, mode="json").items() if v}


class KubernetesSettings(BaseModel):
    """Where pods run, and how they get their GPUs. Times are in seconds."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    image: str = Field(min_length=1)  # of jobs that name none; any with Python 3.9 on its PATH as python3
    namespace: str = Field(default="longshore", pattern=DNS_LABEL, description=DNS_WORDS)
    kubeconfig: Path | None = None  # by default the cluster that Longshore itself runs in
    gpus: Literal["claims", "counts"] = "claims"  # exactly the chosen ones by DRA, or any N of the node
    device_class: str = "gpu.nvidia.com"  # of claims; also the name of the driver
    resource: str = "nvidia.com/gpu"  # of counts
    ranks_service: str = Field(
        default="longshore-ranks", pattern=DNS_LABEL, description=DNS_WORDS
    )  # headless; pods find each other by it
    pod: PodFields = PodFields()
    bind_s: float = Field(default=60.0, gt=0.0)  # within which a node takes its pod, and then gets its image
    deadline_s: float = Field(default=5.0, gt=0.0, le=60.0)  # of a call

    def tolerations(self) -> tuple[Toleration, ...]:
        """Return what pods tolerate: what was chosen, and the usual taint that keeps nodes with GPUs for such pods."""
        return (*self.pod.tolerations, Toleration(key=self.resource, operator="Exists", effect="NoSchedule"))
