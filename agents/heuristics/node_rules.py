"""Heuristics that take one node after the other (docs/policies.md, Node by node)."""

from ...cluster.candidates.random_placement import random_node
from ...cluster.dispatch.placing import take_node
from ...cluster.kernels.compiled import kernel
from ...cluster.state.state import Simulation

FIRST_FIT, RANDOM, SPREAD, FASTEST, RELIABLE, PACK, PACK_HAZARD = range(7)


@kernel
def first_fit_node(sim: Simulation, row: int) -> int:
    """Return the first node with free GPUs."""
    free = sim.state.free
    node = 0
    while free[row, node] == 0:
        node += 1
    return node


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
def reliable_node(sim: Simulation, row: int) -> int:
    """Return the node of lowest hazard that has free GPUs, among equals the one with most."""
    free = sim.state.free
    hazard = sim.traits.node_hazard_per_s[sim.state.scenario[row]]
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
    lemon = sim.traits.lemon[sim.state.scenario[row]]
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
def rule_node(sim: Simulation, row: int, rule: int, draw: int) -> int:
    """Return the node that a rule takes next for the current job, -1 if no GPU is free."""
    if sim.state.usable[row] == 0:
        return -1
    if rule == PACK:
        return pack_node(sim, row)
    if rule == FIRST_FIT:
        return first_fit_node(sim, row)
    if rule == SPREAD:
        return spread_node(sim, row)
    if rule == FASTEST:
        return fastest_node(sim, row)
    if rule == RELIABLE:
        return reliable_node(sim, row)
    if rule == PACK_HAZARD:
        return pack_hazard_node(sim, row)
    return random_node(sim, row, draw)


@kernel
def pick_by_rule(sim: Simulation, row: int, rule: int, first_draw: int) -> None:
    """Pick all GPUs of the current job node by node."""
    draw = first_draw
    while sim.state.need[row] > 0:
        take_node(sim, row, rule_node(sim, row, rule, draw))
        draw += 1
