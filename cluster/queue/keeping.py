"""Which nodes a job may take that must keep the reservation of another (order.py).

A node may give the next GPUs of such a job if some completion of the picks keeps the reservation. Run time depends on
the slowest speed, the number of nodes and the slowest link only, so for each speed it is enough to find the fewest
nodes of at least that speed, or enough GPUs on nodes whose links are fast enough. Of a job with a plan the links do not
count: nodes may be shown to it on which it would end too late, and its start is refused then.
"""

import math

from ..kernels.compiled import kernel
from ..placing import NO_RACK, is_planned, order_nodes_by_free, slowdown_of
from ..state.state import Simulation, has_need_classes
from .expected import expected_run_s
from .order import ends_in_time


@kernel
def has_reservation(sim: Simulation, row: int) -> bool:
    """Return whether a reservation bounds the run time of the job that is due."""
    state = sim.state
    gpus = sim.scenarios.gpus[state.scenario[row], state.current[row]]
    return bool(state.shadow_s[row] < math.inf and gpus > state.extra[row])


@kernel
def mark_nodes_keeping_reservation(sim: Simulation, row: int, whole_nodes: int) -> int:
    """Write 1 into `may_pick` of each node that may be picked next for the due job, else 0; return how many may.

    A node that is picked gives all the GPUs that it can if `whole_nodes` is 1, a single one if it is 0.
    """
    state = sim.state
    for node in range(state.free.shape[1]):
        sim.scratch.trial_free[row, node] = state.free[row, node]
    count = order_nodes_by_free(sim, row, state.current[row])
    marked = 0
    for node in range(state.free.shape[1]):
        may = state.free[row, node] > 0 and (
            _node_may_end_in_time(sim, row, node, count, whole_nodes)
            or _node_may_leave_enough(sim, row, node, whole_nodes)
        )
        sim.scratch.may_pick[row, node] = 1 if may else 0
        marked += may
    return marked


@kernel
def _node_may_leave_enough(sim: Simulation, row: int, node: int, whole_nodes: int) -> bool:
    """Return whether some placement with the picks and this node leaves the holder of the reservation enough GPUs.

    Only where jobs differ in needs: else the placement takes as many, whichever it is.
    """
    if not has_need_classes(sim):
        return False
    state = sim.state
    suits = sim.cluster.suits[state.reserved_class[row]]
    gives = min(state.free[row, node], state.need[row]) if whole_nodes else 1
    held, left = gives * suits[node], state.need[row] - gives
    for other in range(suits.size):
        held += state.taken[row, other] * suits[other]
        left -= (state.free[row, other] - (gives if other == node else 0)) * (1 - suits[other])
    return bool(held + max(left, 0) <= state.extra[row])


@kernel
def _current_ends_in_time(sim: Simulation, row: int, slowdown: float) -> bool:
    job = sim.state.current[row]
    return ends_in_time(sim, row, expected_run_s(sim, row, job, slowdown))


@kernel
def _node_may_end_in_time(sim: Simulation, row: int, node: int, count: int, whole_nodes: int) -> bool:
    """Return whether some placement with the picks and this node ends by the shadow time."""
    state, levels = sim.state, sim.traits.levels
    scenario = state.scenario[row]
    most = min(state.picked_speed[row], sim.scenarios.speed[scenario, node])
    if _one_node_ends_in_time(sim, row, node):
        return True
    level = 0
    while level < levels.shape[1] and levels[scenario, level] > 0.0:
        speed = levels[scenario, level]
        if speed <= most:
            if sim.rules.ring:
                rack = sim.cluster.node_rack[node]
                in_one = state.picked_rack[row] == NO_RACK or state.picked_rack[row] == rack
                if (in_one and _ring_nodes_hold_job(sim, row, node, whole_nodes, speed, rack)) or _ring_nodes_hold_job(
                    sim, row, node, whole_nodes, speed, -1
                ):
                    return True
            elif _fewest_nodes_end_in_time(sim, row, node, count, whole_nodes, speed):
                return True
        level += 1
    return False


@kernel
def _one_node_ends_in_time(sim: Simulation, row: int, node: int) -> bool:
    """Return whether the job may run on one node, this one, and end there by the shadow time."""
    state = sim.state
    scenario, job = state.scenario[row], state.current[row]
    others = state.picked_nodes[row] - (state.taken[row, node] > 0)
    if others > 0 or state.free[row, node] < state.need[row]:
        return False
    speed = sim.scenarios.speed[scenario, node]
    intra = sim.cluster.intra_bytes_per_s[node] if sim.scenarios.gpus[scenario, job] > 1 else math.inf
    slowdown = slowdown_of(sim, scenario, job, 1, speed, intra, sim.cluster.nic_bytes_per_s[node], math.inf, 0)
    return _current_ends_in_time(sim, row, slowdown)


@kernel
def _fewest_nodes_end_in_time(sim: Simulation, row: int, node: int, count: int, whole_nodes: int, speed: float) -> bool:
    """Return whether the job ends in time on the fewest nodes of at least a speed, this and picked ones included."""
    state = sim.state
    scenario = state.scenario[row]
    nodes = state.picked_nodes[row] + (state.taken[row, node] == 0)
    left = state.need[row] - state.free[row, node]
    if not whole_nodes:  # nodes that have given some GPUs may give more
        for other in range(state.free.shape[1]):
            if other != node and state.taken[row, other] > 0:
                left -= state.free[row, other]
    for place in range(count):
        other = sim.scratch.trial_order[row, place]
        if left <= 0:
            break
        if other != node and state.taken[row, other] == 0 and sim.scenarios.speed[scenario, other] >= speed:
            left -= state.free[row, other]
            nodes += 1
    if left > 0:
        return False
    slowdown = slowdown_of(sim, scenario, state.current[row], nodes, speed, math.inf, math.inf, math.inf, 0)
    return _current_ends_in_time(sim, row, slowdown)


@kernel
def _ring_ends_in_time(sim: Simulation, row: int, speed: float, link: float) -> bool:
    """Return whether the job ends in time in a ring over several nodes whose slowest GPU and link are these.

    Of a job with a plan only the GPU counts: which of its links run over the slowest depends on all nodes. `start`
    checks the whole placement.
    """
    state = sim.state
    if is_planned(sim, state.scenario[row], state.current[row]):
        link = math.inf
    slowdown = slowdown_of(sim, state.scenario[row], state.current[row], 2, speed, link, link, link, 0)
    return _current_ends_in_time(sim, row, slowdown)


@kernel
def _may_join_ring(sim: Simulation, row: int, node: int, speed: float, rack: int) -> bool:
    """Return whether a node is of at least a speed, in a rack if that is not -1, and links to it are fast enough."""
    cluster = sim.cluster
    if sim.scenarios.speed[sim.state.scenario[row], node] < speed or (rack >= 0 and cluster.node_rack[node] != rack):
        return False
    link = cluster.nic_bytes_per_s[node]
    if rack < 0:
        link = min(link, cluster.uplink_bytes_per_s[cluster.node_rack[node]])
    return _ring_ends_in_time(sim, row, speed, link)


@kernel
def _ring_nodes_hold_job(sim: Simulation, row: int, node: int, whole_nodes: int, speed: float, rack: int) -> bool:
    """Return whether nodes of at least a speed with fast enough links hold the job: the picked ones, this and others.

    All lie in one rack, or anywhere if `rack` is -1: then the links of racks count.
    """
    state, cluster = sim.state, sim.cluster
    need, own_rack = state.need[row], cluster.node_rack[node]
    picked = min(state.picked_nic[row], state.picked_intra[row], cluster.nic_bytes_per_s[node])
    if rack < 0:
        picked = min(picked, state.picked_uplink[row], cluster.uplink_bytes_per_s[own_rack])
    gives = min(state.free[row, node], need) if whole_nodes else 1
    if state.taken[row, node] + gives > 1:
        picked = min(picked, cluster.intra_bytes_per_s[node])
    if not _ring_ends_in_time(sim, row, speed, picked):
        return False
    left, spare = need - gives, 0
    for other in range(state.free.shape[1]):
        free = state.free[row, other] - (gives if other == node else 0)
        if free <= 0 or not _may_join_ring(sim, row, other, speed, rack):
            continue
        taken = state.taken[row, other] + (gives if other == node else 0)
        if (free == 1 and taken == 0) or _ring_ends_in_time(sim, row, speed, cluster.intra_bytes_per_s[other]):
            left -= free
        elif taken == 0 and whole_nodes:
            spare = 1  # a single GPU, if it is the last that is missing
        elif taken == 0:
            left -= 1
    return bool(left <= spare)
