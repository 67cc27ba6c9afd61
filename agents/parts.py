"""Runs that are run in parts, so that somebody can look at the clock in between."""

from collections.abc import Callable
from typing import Protocol, Self, TypeAlias, runtime_checkable

from ..cluster.state.state import Simulation

Look: TypeAlias = Callable[[], None]  # may raise, which ends the run where it stands
ALL = 1 << 62  # decisions


@runtime_checkable
class Watchable(Protocol):
    """A policy that can be watched while it runs on."""

    def watched(self, look: Look) -> Self:
        """Return the same policy, which calls `look` every few decisions while it runs on."""
        ...


def decisions_of_a_part(sim: Simulation, nodes: int) -> int:
    """Return after how many decisions somebody looks: so many that they look at that many nodes, at least one."""
    return max(1, nodes // int(sim.cluster.speed.size))
