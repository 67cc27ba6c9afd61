"""Learning a blueprint from what is seen, and telling what was added, removed or changed since.

Source: SPEC C3.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from .blueprint import Blueprint, NodePlan


@dataclass(frozen=True, slots=True)
class Change:
    """A part that is not as it was; "" for one that is not there."""

    node: str
    part: str
    before: str
    now: str

    @property
    def words(self) -> str:
        """For people, in one line."""
        if not self.before:
            return f"{self.node} {self.part}: added, {self.now}"
        if not self.now:
            return f"{self.node} {self.part}: removed, it was {self.before}"
        return f"{self.node} {self.part}: {self.before} became {self.now}"


def learn(before: Blueprint, seen: Mapping[str, NodePlan]) -> tuple[Blueprint, list[Change]]:
    """Return a blueprint of what is seen, and what differs from the one before.

    Nodes that were not looked at stay as they were. What a port was expected to serve stays, too.

    Args:
        before: What was expected; an empty one at first.
        seen: By node.
    """
    nodes, changes = dict(before.nodes), list[Change]()
    for node, plan in seen.items():
        known = before.nodes.get(node, NodePlan())
        ports = {
            name: port.model_copy(update={"gpus": known.ports[name].gpus}) if name in known.ports else port
            for name, port in plan.ports.items()
        }
        nodes[node] = plan.model_copy(update={"ports": ports})
        changes += _changes(node, known, nodes[node])
    return before.model_copy(update={"nodes": nodes}), changes


def _changes(node: str, before: NodePlan, now: NodePlan) -> Iterator[Change]:
    was, has = _parts(before), _parts(now)
    for part in dict.fromkeys((*was, *has)):
        if was.get(part, "") != has.get(part, ""):
            yield Change(node, part, was.get(part, ""), has.get(part, ""))


def _parts(plan: NodePlan) -> dict[str, str]:
    """Return each part of a node in words."""
    ports = {}
    for name, port in plan.ports.items():
        told = {field: value for field, value in port.model_dump().items() if value and field != "gpus"}
        ports[f"port {name}"] = ", ".join(f"{field} {value}" for field, value in told.items()) or "a port"
    return {
        **{f"gpu {index}": uuid or "a GPU" for index, uuid in plan.gpus.items()},
        **{f"nvlink {name}": f"to {remote or 'nothing'}" for name, remote in plan.nvlinks.items()},
        **ports,
    }
