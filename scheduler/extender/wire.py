"""What kube-scheduler sends to an extender, and what it accepts: extender v1.

Replies have Go's names, integer scores, and all fields; kube-scheduler takes each deviation for an error, or worse, for
an answer.

Source: docs/kubernetes.md.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, NamedTuple, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError
from pydantic_core import from_json

from ..api.problems import ProblemError

MAX_SCORE = 10  # kube-scheduler does not clamp: 11 would beat every right answer
RANKED_NODES = 4  # nodes with a score above 0; the first decides unless other plug-ins disagree


def _null_to_empty_dict(value: object) -> object:
    return {} if value is None else value


def _null_to_empty_text(value: object) -> object:
    return "" if value is None else value


Texts = Annotated[dict[str, str], BeforeValidator(_null_to_empty_dict)]
Text = Annotated[str, BeforeValidator(_null_to_empty_text)]
Amounts = Annotated[dict[str, str | int], BeforeValidator(_null_to_empty_dict)]


Model = TypeVar("Model", bound=BaseModel)


class _KubernetesModel(BaseModel):
    # Objects of Kubernetes have many more fields, and each version adds some.
    model_config = ConfigDict(frozen=True, extra="ignore")


class OfferedMetadata(_KubernetesModel):
    """Metadata of an object."""

    name: Text = ""
    namespace: Text = ""
    uid: Text = ""
    labels: Texts = {}
    annotations: Texts = {}


class Resources(_KubernetesModel):
    """Resources of a container."""

    limits: Amounts = {}
    requests: Amounts = {}


class Container(_KubernetesModel):
    """A container of a pod."""

    resources: Annotated[Resources, BeforeValidator(_null_to_empty_dict)] = Resources()
    restartPolicy: Text = ""  # noqa: N815 # of an init container: Always for a sidecar


def _null_to_empty_tuple(value: object) -> object:
    return () if value is None else value


Containers = Annotated[tuple[Container, ...], BeforeValidator(_null_to_empty_tuple)]


class OfferedPodSpec(_KubernetesModel):
    """Spec of a pod."""

    containers: Containers = ()
    initContainers: Containers = ()  # noqa: N815
    nodeName: Text = ""  # noqa: N815 # where it runs; "" before


class OfferedPodStatus(_KubernetesModel):
    """Status of a pod."""

    phase: Text = ""
    startTime: Text = ""  # noqa: N815

    @property
    def accepted_s(self) -> float | None:
        """When the node accepted the pod; None before."""
        try:
            return datetime.fromisoformat(self.startTime).timestamp()
        except ValueError:
            return None


class OfferedPod(_KubernetesModel):
    """A pod: the fields that matter for its placement."""

    metadata: Annotated[OfferedMetadata, BeforeValidator(_null_to_empty_dict)] = OfferedMetadata()
    spec: Annotated[OfferedPodSpec, BeforeValidator(_null_to_empty_dict)] = OfferedPodSpec()
    status: Annotated[OfferedPodStatus, BeforeValidator(_null_to_empty_dict)] = OfferedPodStatus()


class OfferedNodeStatus(_KubernetesModel):
    """Status of a node."""

    allocatable: dict[str, str | int] | None = None


class OfferedNode(_KubernetesModel):
    """A node: the fields that matter for GPUs."""

    metadata: OfferedMetadata
    status: Annotated[OfferedNodeStatus, BeforeValidator(_null_to_empty_dict)] = OfferedNodeStatus()


class ExtenderRequest(NamedTuple):
    """A pod and the nodes that it may go to: the request of `filter` and `prioritize`."""

    pod: OfferedPod
    names: tuple[str, ...] | None  # nodeCacheCapable: true
    nodes: tuple[OfferedNode, ...] | None  # nodeCacheCapable: false
    raw: tuple[object, ...] = ()  # the same nodes, whole

    @property
    def hosts(self) -> list[str]:
        """Names of all offered nodes, each once."""
        named = [node.metadata.name for node in self.nodes or ()]
        return list(dict.fromkeys([*(self.names or ()), *named]))


class Victims(NamedTuple):
    """Pods that would be evicted from a node."""

    uids: tuple[str, ...]
    violations: int  # of disruption budgets


def _bad_request(detail: str) -> ProblemError:
    return ProblemError("bad-request", f"this is no request of kube-scheduler: {detail}")


def as_json(reply: object) -> str:
    """Return a reply as JSON.

    Raises:
        ProblemError: 400 if nodes that are to be sent back hold a number that JSON cannot represent.
    """
    try:
        return json.dumps(reply, allow_nan=False)
    except ValueError as error:
        raise _bad_request("a number is too large") from error


def read_object(body: bytes) -> dict[str, Any]:
    """Return the fields of a JSON object, by their names in small letters: Go takes any case.

    Raises:
        ProblemError: 400 if it is none.
    """
    try:
        value = from_json(body, allow_inf_nan=False)  # three times as fast as the standard library on 5,000 nodes
    except ValueError as error:
        raise _bad_request(f"the body is no JSON ({error})") from error
    if not isinstance(value, dict):
        raise _bad_request("the body is no JSON object")
    return {key.lower(): field for key, field in value.items()}


def _validated(kind: type[Model], value: object, place: str) -> Model:
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in (place, *first["loc"]))
        raise _bad_request(f"{where}: {first['msg']}") from error


def _read_pod(fields: Mapping[str, Any]) -> OfferedPod:
    if not isinstance(fields.get("pod"), dict):
        raise _bad_request("it has no Pod")
    return _validated(OfferedPod, fields["pod"], "Pod")


def read_request(body: bytes) -> ExtenderRequest:
    """Return the request of `filter` or `prioritize`.

    Raises:
        ProblemError: 400 if it cannot be read.
    """
    fields = read_object(body)
    pod, names, listed = _read_pod(fields), fields.get("nodenames"), fields.get("nodes")
    if names is None and listed is None:
        raise _bad_request("it has neither NodeNames nor Nodes")
    if names is not None and not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        raise _bad_request("NodeNames is no list of names")
    if listed is None:
        return ExtenderRequest(pod, tuple(names or ()), None)
    items = listed.get("items") if isinstance(listed, dict) else listed
    if items is None and isinstance(listed, dict):
        items = []
    if not isinstance(items, list):
        raise _bad_request("Nodes has no list of items")
    nodes = tuple(_validated(OfferedNode, item, f"Nodes.items.{i}") for i, item in enumerate(items))
    return ExtenderRequest(pod, None if names is None else tuple(names), nodes, tuple(items))


def read_victims(body: bytes) -> tuple[OfferedPod, dict[str, Victims]]:
    """Return the request of `preempt`: the pod, and the pods that it would displace on each node.

    Raises:
        ProblemError: 400 if it cannot be read.
    """
    fields = read_object(body)
    given = fields.get("nodenametometavictims")
    if given is None:
        given = fields.get("nodenametovictims")
    if not isinstance(given, dict):
        raise _bad_request("it has neither NodeNameToMetaVictims nor NodeNameToVictims")
    return _read_pod(fields), {node: _parse_victims(node, found) for node, found in given.items()}


def _parse_victims(node: str, found: object) -> Victims:
    if not isinstance(found, dict):
        raise _bad_request(f"the victims on node {node!r} are no object")
    fields = {str(key).lower(): value for key, value in found.items()}
    pods, violations = fields.get("pods") or [], fields.get("numpdbviolations") or 0
    if not isinstance(pods, list) or not all(isinstance(pod, dict) for pod in pods):
        raise _bad_request(f"the victims on node {node!r} are no list of pods")
    if not isinstance(violations, int) or not 0 <= violations < 1 << 62:
        raise _bad_request(f"NumPDBViolations on node {node!r} is no count")
    return Victims(tuple(_victim_uid(node, pod) for pod in pods), int(violations))


def _victim_uid(node: str, pod: Mapping[str, object]) -> str:
    """Return the uid of a victim: a field of its own in the short form, in the whole pod in the long one."""
    uid = {key.lower(): value for key, value in pod.items()}.get("uid")
    if uid is None and isinstance(metadata := pod.get("metadata"), dict):
        uid = metadata.get("uid")
    if not isinstance(uid, str) or not uid:
        raise _bad_request(f"a victim on node {node!r} has no uid")
    return uid


def filter_reply(offer: ExtenderRequest, refused: Mapping[str, str]) -> dict[str, object]:
    """Return the reply of `filter`, in the form of the request; `refused` has the nodes that stay out, and why."""
    names: list[str] | None = None
    nodes: dict[str, object] | None = None
    if offer.names is not None:
        names = [name for name in offer.names if name not in refused]
    if offer.nodes is not None:
        kept = [raw for node, raw in zip(offer.nodes, offer.raw, strict=True) if node.metadata.name not in refused]
        nodes = {"metadata": {}, "items": kept}
    return {
        "Nodes": nodes, "NodeNames": names, "FailedNodes": {}, "FailedAndUnresolvableNodes": dict(refused),
        "Error": "",
    }  # fmt: skip


def prioritize_reply(hosts: Sequence[str], order: Sequence[str]) -> list[dict[str, object]]:
    """Return the reply of `prioritize`: 10 for the first in `order`, one less for each after it, 0 for all others."""
    scores = {host: max(0, MAX_SCORE - rank) for rank, host in enumerate(order)}
    return [{"Host": host, "Score": scores.get(host, 0)} for host in hosts]


def preempt_reply(victims: Mapping[str, Victims]) -> dict[str, object]:
    """Return the reply of `preempt`, always in the short form."""
    return {
        "NodeNameToMetaVictims": {
            node: {"Pods": [{"UID": uid} for uid in found.uids], "NumPDBViolations": found.violations}
            for node, found in victims.items()
        }
    }
