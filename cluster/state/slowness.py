"""Nodes that are slow for a while: how fast their GPUs are at a moment (docs/simulator.md, Slow nodes).

Policies do not know of it: they go by the speeds of the scenario.
"""

from ..kernels.compiled import kernel
from .state import Simulation


@kernel
def may_slow(sim: Simulation) -> bool:
    """Say whether nodes become slow for a while."""
    return bool(sim.rules.slow_per_s > 0.0)


@kernel
def is_slow(sim: Simulation, row: int, node: int) -> bool:
    """Say whether a node is slow at the moment."""
    return may_slow(sim) and sim.state.node_slow[row, node] == 1


@kernel
def present_speed(sim: Simulation, row: int, node: int) -> float:
    """Return the speed of a node's GPUs at the moment."""
    speed = float(sim.scenarios.speed[sim.state.scenario[row], node])
    return speed / sim.rules.slow_factor if is_slow(sim, row, node) else speed
