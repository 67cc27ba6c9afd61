"""The double's scheduler: binds pods without gates to nodes that fit, and gives claims their devices.

A node fits that is ready, has no taint that the pod does not tolerate, the wanted name or labels, and GPUs enough, all
as counts or as claims. Left out: scores (the first node that fits is taken), preemption, CPU, memory and volumes, and
all of a claim but a count of devices whose UUIDs are listed.
"""

import re
from collections import Counter
from contextlib import suppress

from tests.kubernetes_double.collecting import PROTECTION
from tests.kubernetes_double.objects import ApiError, Object, Objects, is_over, now
from tests.kubernetes_double.server import bound
from tests.kubernetes_double.tainting import untolerated

_CEL = re.compile(r'device\.attributes\["(?P<driver>[a-z.]+)"\]\.uuid in \[(?P<uuids>[^\]]*)\]')


def place_pods(objects: Objects) -> None:
    """Bind every pod that can be bound now."""
    for pod in objects.each("pods", ""):
        spec, meta = pod["spec"], pod["metadata"]
        if spec.get("nodeName") or spec.get("schedulingGates") or "deletionTimestamp" in meta or is_over(pod):
            continue
        _place(objects, pod)


def _place(objects: Objects, pod: Object) -> None:
    meta, why = pod["metadata"], Counter[str]()
    key = ("pods", meta["namespace"], meta["name"])
    nodes = objects.each("nodes", "")
    for node in nodes:
        name = node["metadata"]["name"]
        problem = _problem(objects, pod, node)
        if not problem and _give_claims(objects, pod, name):
            with suppress(ApiError):
                objects.update(key, lambda current: bound(current, name))  # noqa: B023
            return
        why[problem or "cannot allocate all claims"] += 1
    reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(why.items()))
    _say_why(objects, key, f"0/{len(nodes)} nodes are available: {reasons}.")


def _problem(objects: Objects, pod: Object, node: Object) -> str:
    """Return why a pod cannot be on a node in kube-scheduler's words, "" if it can."""
    if not any(c["type"] == "Ready" and c["status"] == "True" for c in node["status"]["conditions"]):
        return "node(s) were not ready"
    if node["spec"].get("unschedulable"):
        return "node(s) were unschedulable"
    if taints := untolerated(pod, node["spec"].get("taints", []), {"NoSchedule", "NoExecute"}):
        return f"node(s) had untolerated taint {{{taints[0]['key']}: {taints[0].get('value', '')}}}"
    if not _fits(pod, node):
        return "node(s) didn't match Pod's node affinity/selector"
    return "" if _has_gpus(objects, pod, node) else "Insufficient nvidia.com/gpu"


def _say_why(objects: Objects, key: tuple[str, str, str], message: str) -> None:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}

    def edit(pod: Object) -> Object:
        pod["status"]["conditions"] = [condition]
        return pod

    with suppress(ApiError):
        objects.update(key, edit)


def _fits(pod: Object, node: Object) -> bool:
    labels = node["metadata"]["labels"]
    if any(labels.get(name) != value for name, value in pod["spec"].get("nodeSelector", {}).items()):
        return False
    affinity = pod["spec"].get("affinity", {}).get("nodeAffinity", {})
    terms = affinity.get("requiredDuringSchedulingIgnoredDuringExecution", {}).get("nodeSelectorTerms")
    return terms is None or any(_matches(term, node) for term in terms)


def _matches(term: Object, node: Object) -> bool:
    assert set(term) == {"matchFields"}, "only what is used is understood"
    return all(
        (field["key"], field["operator"]) == ("metadata.name", "In") and node["metadata"]["name"] in field["values"]
        for field in term["matchFields"]
    )


def _has_gpus(objects: Objects, pod: Object, node: Object) -> bool:
    name = node["metadata"]["name"]
    taken = sum(
        _count(other)
        for other in objects.each("pods", "")
        if other["spec"].get("nodeName") == name and not is_over(other)
    )
    return taken + _count(pod) <= int(node["status"]["allocatable"].get("nvidia.com/gpu", 0))


def _count(pod: Object) -> int:
    limits = (container.get("resources", {}).get("limits", {}) for container in pod["spec"]["containers"])
    return sum(int(limit.get("nvidia.com/gpu", 0)) for limit in limits)


def _give_claims(objects: Objects, pod: Object, node: str) -> bool:
    """Allocate the devices of a pod's claims on a node, and say whether all have theirs."""
    namespace = pod["metadata"]["namespace"]
    for entry in pod["spec"].get("resourceClaims", []):
        key = ("resourceclaims", namespace, entry["resourceClaimName"])
        try:
            claim = objects.get(key)
        except ApiError:
            return False
        if claim.get("status", {}).get("allocation"):
            continue
        results = _choose(objects, claim, node)
        if results is None:
            return False
        reserved = [{"resource": "pods", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}]
        status = {"allocation": {"devices": {"results": results}, "at": now()}, "reservedFor": reserved}
        objects.update(key, lambda current: _allocated(current, status))  # noqa: B023
    return True


def _allocated(claim: Object, status: Object) -> Object:
    meta = claim["metadata"]
    return claim | {"status": status, "metadata": {**meta, "finalizers": [*meta.get("finalizers", []), PROTECTION]}}


def _choose(objects: Objects, claim: Object, node: str) -> list[Object] | None:
    taken, chosen = _taken(objects), []
    for request in claim["spec"]["devices"]["requests"]:
        exactly = request["exactly"]
        assert exactly["allocationMode"] == "ExactCount"
        fitting = [
            (device["name"], piece["spec"]["driver"])
            for piece in objects.each("resourceslices", "")
            if piece["spec"]["nodeName"] == node
            for device in piece["spec"]["devices"]
            if (node, device["name"]) not in taken and _selected(device, exactly["selectors"])
        ]
        if len(fitting) < exactly["count"]:
            return None
        chosen += [
            {"request": request["name"], "driver": driver, "pool": node, "device": name}
            for name, driver in fitting[: exactly["count"]]
        ]
    return chosen


def _selected(device: Object, selectors: list[Object]) -> bool:
    for selector in selectors:
        found = _CEL.fullmatch(selector["cel"]["expression"])
        assert found, f"not understood: {selector}"
        uuids = [text.strip().strip('"') for text in found["uuids"].split(",")]
        if device["attributes"]["uuid"]["string"] not in uuids:
            return False
    return True


def _taken(objects: Objects) -> set[tuple[str, str]]:
    return {
        (result["pool"], result["device"])
        for claim in objects.each("resourceclaims", "")
        for result in claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", [])
    }
