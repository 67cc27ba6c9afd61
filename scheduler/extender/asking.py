"""What a pod asks for: GPUs, its gang, and what is known of its run time."""

import math
import re
from collections.abc import Mapping
from decimal import Decimal
from typing import NamedTuple

from .wire import Container, Pod

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
MOST_MEMBERS = 100_000
_QUANTITY = re.compile(r"(\d{1,18})(?:\.0{1,9})?(m|k|M|G)?")
_SCALE = {"": Decimal(1), "m": Decimal("0.001"), "k": Decimal(1000), "M": Decimal(10**6), "G": Decimal(10**9)}


class Wish(NamedTuple):
    """What is known of a pod that is to be placed."""

    uid: str
    gpus: int
    group: str | None  # of the gang that it belongs to
    members: int  # pods of the gang, 0 if nobody says
    estimate_s: float
    compute_s: float
    parameter_bytes: float


def wish_of(pod: Pod) -> Wish:
    """Return what a pod asks for. What cannot be read of it counts as not said."""
    notes = pod.metadata.annotations
    group = _group(pod)
    return Wish(
        uid=pod.metadata.uid or f"{pod.metadata.namespace}/{pod.metadata.name}",
        gpus=gpus_of(pod),
        group=group,
        members=_members({**notes, **pod.metadata.labels}) if group else 0,
        estimate_s=_number(notes, ESTIMATE, DEFAULT_ESTIMATE_S),
        compute_s=_number(notes, COMPUTE, 1.0),
        parameter_bytes=_number(notes, PARAMETERS, 0.0),
    )


def gpus_of(pod: Pod) -> int:
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
    return count_of(found) or 0


def count_of(quantity: str | int) -> int | None:
    """Return a quantity of Kubernetes as a whole number, None if it is none."""
    if isinstance(quantity, int):
        return quantity if 0 <= quantity < 10**18 else None
    found = _QUANTITY.fullmatch(quantity.strip())
    return None if found is None else math.ceil(int(found[1]) * _SCALE[found[2] or ""])


def _group(pod: Pod) -> str | None:
    labels, notes = pod.metadata.labels, pod.metadata.annotations
    names = [labels.get(key) for key in GROUP_LABELS] + [notes.get(key) for key in GROUP_ANNOTATIONS]
    name = next(filter(None, names), None)
    return None if name is None else f"{pod.metadata.namespace}/{name}"


def _members(proposal: Mapping[str, str]) -> int:
    for key in MEMBER_KEYS:
        if key in proposal and (count := count_of(proposal[key])) is not None:
            return count if 0 < count <= MOST_MEMBERS else 0
    return 0


def _number(proposal: Mapping[str, str], key: str, default: float) -> float:
    try:
        number = float(proposal.get(key, default))
    except ValueError:
        return default
    return number if math.isfinite(number) and 0.0 < number < 1e15 else default
