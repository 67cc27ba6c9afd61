"""From an attempt and its placement to the manifests of pods and claims."""

import hashlib
import inspect
import json
import math
from dataclasses import asdict
from functools import cache
from typing import NamedTuple

from ....cluster.model.placement import Placement, Share
from ..protocol import Attempt, RefusedError
from . import launcher
from .api import Json
from .objects import (
    ATTEMPT,
    FIRST_RANK,
    GATE,
    GPUS,
    NODE_ANNOTATION,
    PODS,
    RANKS_ANNOTATION,
    SPEC_ANNOTATION,
    KubernetesGpu,
)
from .settings import KubernetesSettings

PORT = 29500  # rendezvous port of ranks, PyTorch's default; each pod has an address of its own
LABELS = {"app.kubernetes.io/managed-by": "longshore"}  # by which the service and the policies find pods
END_S = 10  # for a launcher, after the grace, to wait for the last process and report how the ranks ended
_HOME = "/longshore"
_MESSAGE = "/dev/termination-log"


_MAX_ARGUMENT_BYTES = 128 << 10  # of one argument of a program: MAX_ARG_STRLEN of Linux, the final 0 included


class PodPart(NamedTuple):
    """One pod of an attempt."""

    number: int  # in the order of the placement
    share: Share
    first_rank: int
    gpus: tuple[KubernetesGpu, ...]  # devices of the share; empty where GPUs are only counted


def digest_of(attempt: Attempt, placement: Placement) -> str:
    """Return a digest that distinguishes an attempt from others of the same name."""
    content = json.dumps([asdict(attempt), [asdict(share) for share in placement]], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:32]


def pod_name(attempt: str, number: int) -> str:
    """Return the name of a pod, which is also its host name."""
    return f"{attempt}-{number}"


def pod_manifest(attempt: Attempt, placement: Placement, part: PodPart, settings: KubernetesSettings) -> Json:
    """Return a pod that waits for its placement; nothing of the cluster starts it before that.

    Raises:
        RefusedError: If its command and environment are too long for an argument.
    """
    spec = json.dumps(launcher_spec(attempt, placement, part, settings), sort_keys=True)
    spec = spec.replace("$", "\\u0024")  # the kubelet expands `$(NAME)` and `$$` in arguments
    if len(spec) >= _MAX_ARGUMENT_BYTES:
        raise RefusedError(
            f"{attempt.name}: its command and environment take {len(spec)} of {_MAX_ARGUMENT_BYTES} bytes"
        )
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": pod_name(attempt.name, part.number),
            "labels": {ATTEMPT: attempt.name, **LABELS},
            # Without it, a pod that was deleted would be gone with the record of how it ended.
            "finalizers": [ATTEMPT],
            "annotations": {
                SPEC_ANNOTATION: digest_of(attempt, placement), PODS: str(len(placement)),
                FIRST_RANK: str(part.first_rank), RANKS_ANNOTATION: str(len(part.share.gpus)),
                GPUS: ",".join(str(gpu) for gpu in part.share.gpus), NODE_ANNOTATION: part.share.node,
            },
        },
        "spec": _pod_spec(attempt, part, settings, _container_manifest(attempt, part, settings, spec)),
    }  # fmt: skip


def _container_manifest(attempt: Attempt, part: PodPart, settings: KubernetesSettings, spec: str) -> Json:
    """Return the container of a pod: its launcher with the spec, and its GPUs."""
    own = settings.pod.container_fields()
    mounts = [{"name": "longshore", "mountPath": _HOME}, {"name": "shm", "mountPath": "/dev/shm"}]
    resources = dict(own.get("resources", {}))
    if part.gpus:
        resources["claims"] = [{"name": "gpus"}]
    else:
        resources["limits"] = {**resources.get("limits", {}), settings.resource: str(len(part.share.gpus))}
    return {
        **own,
        "name": "ranks",
        "image": attempt.image or settings.image,
        "command": ["python3", "-I", "-S", "-X", "utf8", "-c", _launcher_source()],
        "args": [spec],
        "volumeMounts": [*mounts, *own.get("volumeMounts", [])],
        "resources": resources,
        "terminationMessagePath": _MESSAGE,
    }


def _pod_spec(attempt: Attempt, part: PodPart, settings: KubernetesSettings, container: Json) -> Json:
    """Return what a pod consists of beside its container."""
    pod, name = settings.pod.pod_spec_fields(), pod_name(attempt.name, part.number)
    volumes = [{"name": "longshore", "emptyDir": {}}, {"name": "shm", "emptyDir": {"medium": "Memory"}}]
    claims = {"resourceClaims": [{"name": "gpus", "resourceClaimName": name}]} if part.gpus else {}
    return {
        **pod,
        "restartPolicy": "Never",
        "schedulingGates": [{"name": GATE}],
        "hostname": name,
        "subdomain": settings.ranks_service,
        "terminationGracePeriodSeconds": math.ceil(attempt.grace_s) + END_S,
        "tolerations": [
            toleration.model_dump(by_alias=True, exclude_none=True) for toleration in settings.tolerations()
        ],
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "containers": [container],
        "volumes": [*volumes, *pod.get("volumes", [])],
        **claims,
    }


def claim_manifest(pod: Json, part: PodPart, settings: KubernetesSettings) -> Json:
    """Return the claim of a pod, as the server has stored that, for exactly its devices; deleted with the pod."""
    meta = pod["metadata"]
    uuids = ", ".join(json.dumps(gpu.uuid) for gpu in part.gpus)
    expression = f'device.attributes["{settings.device_class}"].uuid in [{uuids}]'
    exactly = {
        "deviceClassName": settings.device_class, "allocationMode": "ExactCount", "count": len(part.gpus),
        "selectors": [{"cel": {"expression": expression}}],
    }  # fmt: skip
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {
            "name": meta["name"],
            "labels": {ATTEMPT: meta["labels"][ATTEMPT]},
            "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": meta["name"], "uid": meta["uid"]}],
        },
        "spec": {"devices": {"requests": [{"name": "gpus", "exactly": exactly}]}},
    }


@cache
def _launcher_source() -> str:
    """Return the launcher's source at the time of the first pod, also if another version is installed meanwhile."""
    return inspect.getsource(launcher)


def placement_patch(uid: str, node: str) -> list[Json]:
    """Return the patch that places a pod on a node and lets it start, in one step and only if its uid is the same."""
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    return [
        {"op": "test", "path": "/metadata/uid", "value": uid},
        {"op": "test", "path": "/spec/schedulingGates/0/name", "value": GATE},
        {"op": "add", "path": "/spec/affinity", "value": {"nodeAffinity": required}},
        {"op": "remove", "path": "/spec/schedulingGates/0"},
    ]


def launcher_spec(attempt: Attempt, placement: Placement, part: PodPart, settings: KubernetesSettings) -> Json:
    """Return what the launcher in a pod is to run."""
    gpus = part.share.gpus
    first = f"{pod_name(attempt.name, 0)}.{settings.ranks_service}.{settings.namespace}.svc"
    return {
        "attempt": attempt.name,
        "job": attempt.job,
        "command": list(attempt.command),
        "folder": attempt.folder or f"{_HOME}/work",
        "environment": dict(attempt.environment),
        "grace_s": attempt.grace_s,
        "limit_s": None if math.isinf(attempt.limit_s) else attempt.limit_s,
        "home": _HOME,
        "message": _MESSAGE,
        "node": part.share.node,
        "gpus": list(gpus),
        # In a container, CUDA counts its GPUs from 0: a UUID means the same GPU everywhere.
        "visible": [gpu.uuid for gpu in part.gpus] or [str(number) for number in range(len(gpus))],
        "visible_gpus": attempt.visible_gpus,
        "first_rank": part.first_rank,
        "world": sum(len(share.gpus) for share in placement),
        "master": "127.0.0.1" if len(placement) == 1 else first,
        "port": PORT,
    }
