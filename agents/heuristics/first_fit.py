"""The first nodes that have free GPUs."""

from ...cluster.dispatch.placing import take_node
from ...cluster.kernels.compiled import kernel
from ...cluster.state.state import Simulation
from .rule import Rule


@kernel
def first_fit_node(sim: Simulation, row: int) -> int:
    """Return the first node with free GPUs."""
    free = sim.state.free
    node = 0
    while free[row, node] == 0:
        node += 1
    return node


@kernel
def pick_first_fit(sim: Simulation, row: int, patience: float) -> bool:
    """Pick all GPUs of the current job node by node."""
    while sim.state.need[row] > 0:
        take_node(sim, row, first_fit_node(sim, row))
    return True


RULE = Rule(pick_first_fit, "the first nodes with free GPUs")
