"""What Ray says of its nodes."""

import time
from collections.abc import Mapping
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict, ValidationError

from ....cluster.files.errors import BackendError
from .api import Api
from .names import LABEL, gpu_resource

_OLD_S = 1.0  # Ray is asked no more often than this
_NODES = "/api/v0/nodes?detail=1&limit=10000"  # the most that it tells at once, of dead ones too


class _Foreign(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)


class _Node(_Foreign):
    state: str
    labels: dict[str, str] | None = None
    resources_total: dict[str, float] | None = None


class _Nodes(_Foreign):
    result: list[_Node]
    total: int


class _Data(_Foreign):
    result: _Nodes


class _Answer(_Foreign):
    result: bool
    msg: str
    data: _Data


class Node(NamedTuple):
    """Nodes of Ray with one label."""

    living: int  # one, where all is well
    resources: Mapping[str, float]  # of one that lives

    def gives(self, name: str, gpu: int) -> bool:
        """Say whether it has a GPU, once, as a resource of its own.

        Args:
            name: Of the node.
            gpu: Index of the GPU on it.
        """
        return self.resources.get(gpu_resource(name, gpu)) == 1.0


class View:
    """Ray's nodes by their label, as they were a second ago at most.

    Args:
        api: Ray's.
    """

    def __init__(self, api: Api) -> None:
        self._api = api
        self._read_s = -_OLD_S
        self._nodes: Mapping[str, Node] = {}

    def look(self) -> Mapping[str, Node]:
        """Return Ray's nodes by their label.

        Raises:
            BackendError: If it does not answer, or not all.
        """
        now_s = time.monotonic()
        if now_s >= self._read_s + _OLD_S:
            self._nodes, self._read_s = _by_label(_read(self._api)), now_s
        return self._nodes


def _read(api: Api) -> list[_Node]:
    answer = api.get(_NODES)
    try:
        told = _Answer.model_validate(answer)
    except ValidationError as error:
        first = error.errors()[0]
        raise BackendError(f"Ray tells of its nodes in unknown words: {first['loc']}: {first['msg']}") from error
    nodes = told.data.result
    if not told.result or len(nodes.result) != nodes.total:
        raise BackendError(f"Ray told of {len(nodes.result)} of its {nodes.total} nodes: {told.msg}")
    return nodes.result


def _by_label(nodes: list[_Node]) -> dict[str, Node]:
    found: dict[str, Node] = {}
    for node in nodes:
        label = (node.labels or {}).get(LABEL)
        if label is None:
            continue
        before = found.get(label, Node(0, {}))
        lives = node.state == "ALIVE"
        found[label] = Node(before.living + lives, (node.resources_total or {}) if lives else before.resources)
    return found
