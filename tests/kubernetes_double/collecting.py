"""What the double's controllers take away, some time after it is of no use any more.

Claims give their devices back once no pod that reserved them lives; until then a finalizer keeps them. Whatever names
only owners that are gone is deleted, also what came to be after its owner went. Pods on a node with a taint of effect
NoExecute that they do not tolerate are deleted. Left out: pods of nodes that are gone, the seconds of a toleration,
the taints that a cluster sets by itself on nodes that do not answer, and owners that want their dependants gone first.
"""

from contextlib import suppress

from tests.kubernetes_double.objects import ApiError, Key, Object, Objects, is_over, now
from tests.kubernetes_double.tainting import untolerated

PROTECTION = "resource.kubernetes.io/delete-protection"  # finalizer of claims that have devices


def collect(objects: Objects) -> None:
    """Take away what is of no use."""
    with objects.changed:
        _give_back(objects)
        _collect_orphans(objects)
        _evict(objects)


def _give_back(objects: Objects) -> None:
    living = {pod["metadata"]["uid"] for pod in objects.each("pods", "") if not is_over(pod)}
    for claim in objects.each("resourceclaims", ""):
        status = claim.get("status", {})
        if status.get("allocation") and not any(each["uid"] in living for each in status["reservedFor"]):
            objects.update(_key("resourceclaims", claim), _unallocated)


def _unallocated(claim: Object) -> Object:
    meta = claim["metadata"]
    kept = [name for name in meta.get("finalizers", []) if name != PROTECTION]
    return claim | {"status": {}, "metadata": {**meta, "finalizers": kept}}


def _collect_orphans(objects: Objects) -> None:
    pods = {pod["metadata"]["uid"] for pod in objects.each("pods", "")}
    for claim in objects.each("resourceclaims", ""):
        owners = claim["metadata"].get("ownerReferences", [])
        if owners and not any(owner["uid"] in pods for owner in owners):
            objects.delete(_key("resourceclaims", claim), None, None)


def _evict(objects: Objects) -> None:
    taints = {node["metadata"]["name"]: node["spec"].get("taints", []) for node in objects.each("nodes", "")}
    for pod in objects.each("pods", ""):
        unbearable = untolerated(pod, taints.get(pod["spec"].get("nodeName"), []), {"NoExecute"})
        if not unbearable or "deletionTimestamp" in pod["metadata"] or is_over(pod):
            continue
        with suppress(ApiError):
            objects.update(_key("pods", pod), _disrupted)
            objects.delete(_key("pods", pod), None, None)


def _disrupted(pod: Object) -> Object:
    reason = {
        "type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager",
        "message": "Taint manager: deleting due to NoExecute taint", "lastTransitionTime": now(),
    }  # fmt: skip
    pod["status"]["conditions"] = [*pod["status"].get("conditions", []), reason]
    return pod


def _key(plural: str, value: Object) -> Key:
    meta = value["metadata"]
    return plural, meta.get("namespace", ""), meta["name"]
