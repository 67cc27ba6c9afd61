"""Warm processes of the nodes of this machine, lent to one round of checks at a time."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping

from ..context import NodeSetup
from .process import LocalNode, Node

MOST_KEPT = 16  # processes that stay between rounds


class WarmNodes:
    """The processes. Any thread may use it.

    Args:
        place_of: Returns what the process of a node is given when it begins.
        make: Makes a process.
    """

    def __init__(
        self, place_of: Callable[[str], NodeSetup], make: Callable[[NodeSetup], LocalNode] = LocalNode
    ) -> None:
        self._place_of, self._make = place_of, make
        self._kept: OrderedDict[str, LocalNode] = OrderedDict()  # that nobody has, the one not used for longest first
        self._lent: dict[str, LocalNode] = {}
        self._lock = threading.Lock()
        self._is_closed = False

    def take(self, names: Iterable[str]) -> Mapping[str, Node] | None:
        """Return the processes of some nodes, which need not run yet; None while another round has one of them."""
        wanted = set(names)
        with self._lock:
            if self._is_closed or wanted & self._lent.keys():
                return None
            found = {name: self._kept_or_new(name) for name in wanted}
            self._lent |= found
        return found

    def _kept_or_new(self, name: str) -> LocalNode:
        return self._kept.pop(name) if name in self._kept else self._make(self._place_of(name))

    def give_back(self, names: Iterable[str]) -> None:
        """Let others have the processes of some nodes."""
        with self._lock:
            for name in names:
                self._kept[name] = self._lent.pop(name)
            most = 0 if self._is_closed else MOST_KEPT
            surplus = [self._kept.popitem(last=False)[1] for _ in range(max(0, len(self._kept) - most))]
        for node in surplus:
            node.close()

    def kill(self, names: Iterable[str]) -> None:
        """End the processes of some nodes that a round has: it finds that they are gone."""
        with self._lock:
            nodes = [self._lent[name] for name in names if name in self._lent]
        for node in nodes:
            node.kill()

    def close(self) -> None:
        """End all processes."""
        with self._lock:
            self._is_closed = True
            kept, lent = list(self._kept.values()), list(self._lent.values())
            self._kept.clear()
        for node in kept:
            node.close()
        for node in lent:
            node.kill()  # the round that has it closes it
