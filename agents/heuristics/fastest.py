"""The fastest nodes first."""

from ...cluster.dispatch.placing import take_node
from ...cluster.kernels.compiled import kernel
from ...cluster.state.state import Simulation
from .rule import Rule


@kernel
def fastest_node(sim: Simulation, row: int) -> int:
    """Return the fastest node with free GPUs, among equals the one with most."""
    free = sim.state.free
    speed = sim.scenarios.speed[sim.state.scenario[row]]
    best = -1
    for node in range(free.shape[1]):
        if free[row, node] > 0 and (
            best < 0 or speed[node] > speed[best] or (speed[node] == speed[best] and free[row, node] > free[row, best])
        ):
            best = node
    return best


@kernel
def pick_fastest(sim: Simulation, row: int, patience: float) -> bool:
    """Pick all GPUs of the current job node by node."""
    while sim.state.need[row] > 0:
        take_node(sim, row, fastest_node(sim, row))
    return True


RULE = Rule(pick_fastest, "the fastest nodes")
