"""Best fit, and the same with lemons last."""

from ...cluster.dispatch.placing import take_node
from ...cluster.kernels.compiled import kernel
from ...cluster.state.state import Simulation
from .rule import Rule


@kernel
def pack_node(sim: Simulation, row: int) -> int:
    """Return the node where the GPUs still needed leave the smallest hole; else the one with most free."""
    free = sim.state.free
    need = sim.state.need[row]
    speed = sim.scenarios.speed[sim.state.scenario[row]]
    best = -1
    for node in range(free.shape[1]):
        here = free[row, node]
        if here <= 0:
            continue
        if best < 0:
            best = node
            continue
        there = free[row, best]
        if here == there:
            better = speed[node] > speed[best]
        elif here >= need and there >= need:
            better = here < there
        else:
            better = here > there
        if better:
            best = node
    return best


@kernel
def pack_hazard_node(sim: Simulation, row: int) -> int:
    """Return what `pack_node` would, lemons only when no other node has free GPUs."""
    free = sim.state.free
    lemon = sim.state.lemon[row]
    healthy = 0
    for node in range(free.shape[1]):
        if lemon[node] == 0:
            healthy += free[row, node]
    if healthy == 0:
        return pack_node(sim, row)
    # The lemons' free GPUs are hidden for one call, so that the rule itself stands once.
    for node in range(free.shape[1]):
        free[row, node] *= 1 - 2 * lemon[node]
    best = pack_node(sim, row)
    for node in range(free.shape[1]):
        free[row, node] *= 1 - 2 * lemon[node]
    return best


@kernel
def pick_pack(sim: Simulation, row: int, patience: float) -> bool:
    """Pick all GPUs of the current job node by node."""
    while sim.state.need[row] > 0:
        take_node(sim, row, pack_node(sim, row))
    return True


@kernel
def pick_pack_hazard(sim: Simulation, row: int, patience: float) -> bool:
    """Pick all GPUs of the current job node by node."""
    while sim.state.need[row] > 0:
        take_node(sim, row, pack_hazard_node(sim, row))
    return True


PACK = Rule(pick_pack, "best fit: the smallest hole on a node, else most free GPUs")
PACK_HAZARD = Rule(pick_pack_hazard, "pack, lemon nodes last")
