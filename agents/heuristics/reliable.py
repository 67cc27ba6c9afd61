"""The nodes of lowest hazard first."""

from ...cluster.dispatch.placing import take_node
from ...cluster.kernels.compiled import kernel
from ...cluster.state.state import Simulation
from .rule import Rule


@kernel
def reliable_node(sim: Simulation, row: int) -> int:
    """Return the node of lowest hazard that has free GPUs, among equals the one with most."""
    free = sim.state.free
    hazard = sim.state.node_hazard_per_s[row]
    best = -1
    for node in range(free.shape[1]):
        if free[row, node] > 0 and (
            best < 0
            or hazard[node] < hazard[best]
            or (hazard[node] == hazard[best] and free[row, node] > free[row, best])
        ):
            best = node
    return best


@kernel
def pick_reliable(sim: Simulation, row: int, patience: float) -> bool:
    """Pick all GPUs of the current job node by node."""
    while sim.state.need[row] > 0:
        take_node(sim, row, reliable_node(sim, row))
    return True


RULE = Rule(pick_reliable, "the nodes of lowest hazard")
