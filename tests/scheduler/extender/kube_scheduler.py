"""What kube-scheduler 1.36 makes of replies: a strict reader, for each deviation that it takes amiss an error.

It follows what was recorded of a real one. Each `Refusal` is a reply after which a pod fails, is scheduled without the
extender, or goes to a node that was not meant.
"""

import json
from collections.abc import Mapping
from typing import Any

import httpx

MOST_NODE_SCORE, MOST_EXTENDER_SCORE = 100, 10  # MaxNodeScore, MaxExtenderPriority
# Of the plugins that score by default, as its configuration has them (default_plugins.go).
DEFAULT_WEIGHTS = {
    "TaintToleration": 3, "NodeAffinity": 2, "PodTopologySpread": 2, "InterPodAffinity": 2, "NodeResourcesFit": 1,
    "NodeResourcesBalancedAllocation": 1, "ImageLocality": 1,
}  # fmt: skip


def total(score: int, weight: int, plugins: Mapping[str, int]) -> int:
    """Return what a node comes to: the one with the most gets the pod (prioritizeNodes in schedule_one.go).

    Args:
        score: Of the extender.
        weight: Of the extender.
        plugins: What each plugin gives, 0 to 100.
    """
    own = sum(DEFAULT_WEIGHTS[name] * value for name, value in plugins.items())
    return own + score * weight * (MOST_NODE_SCORE // MOST_EXTENDER_SCORE)


class RefusalError(Exception):
    """The reply is not taken as it was meant."""


def _decoded(reply: httpx.Response) -> object:
    if reply.status_code != 200:
        raise RefusalError(f"code {reply.status_code}")
    try:
        return json.loads(reply.content, parse_constant=lambda text: 1 / 0)
    except (ValueError, ZeroDivisionError) as error:
        raise RefusalError("no JSON") from error


def _fields(value: object) -> dict[str, object]:
    if value is None:
        return {}  # as Go decodes null
    if not isinstance(value, dict):
        raise RefusalError("no object")
    return {key.lower(): field for key, field in value.items()}


def asked(request: bytes) -> list[str]:
    """Return the nodes of a request."""
    fields = _fields(json.loads(request))
    if (names := fields.get("nodenames")) is not None:
        assert isinstance(names, list)
        return names
    nodes = fields["nodes"]
    assert isinstance(nodes, dict)
    return [node["metadata"]["name"] for node in nodes["items"]]


def passed(request: bytes, reply: httpx.Response) -> list[str]:
    """Return the nodes that are left after `filter`."""
    fields, nodes = _fields(_decoded(reply)), asked(request)
    if fields.get("error"):
        raise RefusalError(str(fields["error"]))
    by_name = _fields(json.loads(request)).get("nodenames") is not None
    left = fields.get("nodenames") if by_name else _items(fields.get("nodes"))
    if left is None:
        raise RefusalError("both lists are null: no node is available")
    assert isinstance(left, list)
    failed = {**_fields(fields.get("failednodes")), **_fields(fields.get("failedandunresolvablenodes"))}
    if not set(left) <= set(nodes):
        raise RefusalError("a filtered node is not found in the input node list")
    if not left and nodes and not {name.lower() for name in nodes} <= failed.keys():
        raise RefusalError("no node is available, and nobody knows why")
    return left


def _items(nodes: object) -> list[str] | None:
    if nodes is None:
        return None
    items = _fields(nodes).get("items") or []
    assert isinstance(items, list)
    return [item["metadata"]["name"] for item in items]


def scores(request: bytes, reply: httpx.Response) -> dict[str, int]:
    """Return the scores that `prioritize` gave."""
    listed, nodes = _decoded(reply), set(asked(request))
    if not isinstance(listed, list):
        raise RefusalError("no list")
    found: dict[str, int] = {}
    for each in listed:
        fields = _fields(each)
        host, score = fields.get("host"), fields.get("score")
        if not isinstance(host, str) or not isinstance(score, int) or isinstance(score, bool):
            raise RefusalError(f"{each} is no host with an integer")
        if not 0 <= score <= 10:
            raise RefusalError(f"{score} is not clamped")
        if host in found or host not in nodes:
            raise RefusalError(f"{host} is there twice, or was not asked about")
        found[host] = score
    if found.keys() != nodes:
        raise RefusalError("a node that is left out counts as 0")
    return found


def victims(request: bytes, reply: httpx.Response) -> dict[str, set[str]]:
    """Return whom `preempt` would evict on each node."""
    given = _fields(json.loads(request))
    meta = given.get("nodenametometavictims")
    known: dict[str, set[str]] = {}
    for name, found in _fields_as_they_are(meta or given.get("nodenametovictims")).items():
        known[name] = {pod["UID"] if meta else pod["metadata"]["uid"] for pod in found["Pods"]}
    proposal = _fields_as_they_are(_fields(_decoded(reply)).get("nodenametometavictims"))
    chosen = {name: {pod["UID"] for pod in found["Pods"]} for name, found in proposal.items()}
    if known and not chosen:
        raise RefusalError("no candidate node for preemption")
    for name, uids in chosen.items():
        if name not in known or not uids <= known[name]:
            raise RefusalError("a node or a pod that is not found")
        if type(proposal[name]["NumPDBViolations"]) is not int:
            raise RefusalError("no count of violations")
    return chosen


def _fields_as_they_are(value: object) -> dict[str, dict[str, Any]]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise RefusalError("no object")
    return value
