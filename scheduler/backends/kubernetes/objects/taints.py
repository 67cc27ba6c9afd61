"""Taints of nodes, and which of them pods tolerate.

Source: the rules of kube-scheduler's plugin TaintToleration.
"""

from collections.abc import Iterable, Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel

from .objects import Taint

_STOPS = frozenset({"NoSchedule", "NoExecute"})  # PreferNoSchedule keeps nobody away


class Toleration(BaseModel):
    """Taints that a pod can bear, in Kubernetes' own words."""

    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel, populate_by_name=True)

    key: str = ""  # "" for any
    operator: Literal["Equal", "Exists"] = "Equal"
    value: str = ""
    effect: Literal["", "NoSchedule", "PreferNoSchedule", "NoExecute"] = ""  # "" for all
    toleration_seconds: int | None = None  # for which a taint of effect NoExecute is borne

    def bears(self, taint: Taint) -> bool:
        """Say whether a pod with it can be on a node with a taint, and stay there."""
        if self.effect not in ("", taint.effect) or self.key not in ("", taint.key):
            return False
        if taint.effect == "NoExecute" and self.toleration_seconds is not None:
            return False  # It would be evicted after that time.
        return self.operator == "Exists" or (self.key == taint.key and self.value == taint.value)


def unborne(taints: Iterable[Taint], tolerations: Sequence[Toleration]) -> Taint | None:
    """Return the first taint that keeps pods from a node, None if there is none."""
    return next(
        (it for it in taints if it.effect in _STOPS and not any(toleration.bears(it) for toleration in tolerations)),
        None,
    )
