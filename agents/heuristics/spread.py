"""Worst fit."""

from ...cluster.dispatch.placing import take_node
from ...cluster.kernels.compiled import kernel
from ...cluster.state.state import Simulation
from .rule import Rule


@kernel
def spread_node(sim: Simulation, row: int) -> int:
    """Return the node with most free GPUs (worst fit)."""
    free = sim.state.free
    best = 0
    for node in range(1, free.shape[1]):
        if free[row, node] > free[row, best]:
            best = node
    return best


@kernel
def pick_spread(sim: Simulation, row: int, patience: float) -> bool:
    """Pick all GPUs of the current job node by node."""
    while sim.state.need[row] > 0:
        take_node(sim, row, spread_node(sim, row))
    return True


RULE = Rule(pick_spread, "worst fit: the node with most free GPUs")
