"""Nodes that did not take a pod in time: left alone for a while, longer each time, and then forgotten."""

from typing import NamedTuple

FIRST_S, LONGEST_S = 300.0, 3600.0  # for which a node is left alone, doubled each time


class _Left(NamedTuple):
    times: int
    until_s: float


class Unbound:
    """What is remembered of nodes; times are of a clock that nobody sets.

    Args:
        nodes: How many the cluster has.
    """

    def __init__(self, nodes: int) -> None:
        self._most = nodes // 2
        self._left: dict[str, _Left] = {}

    def note(self, node: str, now_s: float) -> None:
        """Note that a node did not take a pod."""
        times = self._left[node].times + 1 if node in self._left else 1
        self._left[node] = _Left(times, now_s + min(FIRST_S * 2.0 ** min(times - 1, 32), LONGEST_S))

    def forget(self, node: str) -> None:
        """Note that a node has taken a pod."""
        self._left.pop(node, None)

    def now(self, now_s: float) -> frozenset[str]:
        """Return the nodes to be left alone; none while they are more than half: then it is hardly their fault."""
        self._left = {node: it for node, it in self._left.items() if now_s < it.until_s + LONGEST_S}
        nodes = frozenset(node for node, it in self._left.items() if now_s < it.until_s)
        return nodes if len(nodes) <= self._most else frozenset()
