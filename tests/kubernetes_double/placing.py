"""The double's scheduler: binds pods without gates to nodes that fit, and gives claims their devices."""

import re
from contextlib import suppress

from tests.kubernetes_double.objects import ApiError, Object, Objects, is_over, now
from tests.kubernetes_double.server import bound

_CEL = re.compile(r'device\.attributes\["(?P<driver>[a-z.]+)"\]\.uuid in \[(?P<uuids>[^\]]*)\]')


def place_pods(objects: Objects) -> None:
    """Bind every pod that can be bound now."""
    for pod in objects.each("pods", ""):
        spec, meta = pod["spec"], pod["metadata"]
        if spec.get("nodeName") or spec.get("schedulingGates") or "deletionTimestamp" in meta or is_over(pod):
            continue
        _place(objects, pod)


def _place(objects: Objects, pod: Object) -> None:
    meta = pod["metadata"]
    key = ("pods", meta["namespace"], meta["name"])
    for node in objects.each("nodes", ""):
        if not (_takes_pods(node) and _fits(pod, node) and _has_gpus(objects, pod, node)):
            continue
        name = node["metadata"]["name"]
        if not _give_claims(objects, pod, name):
            continue
        with suppress(ApiError):
            objects.update(key, lambda current: bound(current, name))  # noqa: B023
        return
    _say_why(objects, key)


def _say_why(objects: Objects, key: tuple[str, str, str]) -> None:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no node fits"}

    def edit(pod: Object) -> Object:
        pod["status"]["conditions"] = [condition]
        return pod

    with suppress(ApiError):
        objects.update(key, edit)


def _takes_pods(node: Object) -> bool:
    ready = any(c["type"] == "Ready" and c["status"] == "True" for c in node["status"]["conditions"])
    return ready and not node["spec"].get("unschedulable")


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
        objects.update(key, lambda current: current | {"status": status})  # noqa: B023
    return True


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
    living = {pod["metadata"]["uid"] for pod in objects.each("pods", "") if not is_over(pod)}
    return {
        (result["pool"], result["device"])
        for claim in objects.each("resourceclaims", "")
        if any(each["uid"] in living for each in claim.get("status", {}).get("reservedFor", []))
        for result in claim["status"]["allocation"]["devices"]["results"]
    }
