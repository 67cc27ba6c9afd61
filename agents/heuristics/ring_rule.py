"""The heuristic `replacement`: each GPU is chosen as a faulty node's stand-in would be (SPEC F6, F7)."""

import math

from ...cluster.dispatch.placing import safest_gpu, take_gpu
from ...cluster.kernels.compiled import kernel
from ...cluster.state.state import Simulation
from .rule import Rule


@kernel
def link_bytes_per_s(sim: Simulation, a: int, b: int) -> float:
    """Return the bandwidth between a GPU of node a and another of node b."""
    cluster = sim.cluster
    if a == b:
        return cluster.intra_bytes_per_s[a]
    link = min(cluster.nic_bytes_per_s[a], cluster.nic_bytes_per_s[b])
    if cluster.node_rack[a] != cluster.node_rack[b]:
        uplink = cluster.uplink_bytes_per_s
        link = min(link, uplink[cluster.node_rack[a]], uplink[cluster.node_rack[b]])
    return link


@kernel
def average_iteration_s(sim: Simulation, row: int, job: int) -> float:
    """Return a job's iteration time on the reference placement, which stands for F3's measured one."""
    scenario = sim.state.scenario[row]
    compute_s = sim.scenarios.compute_s[scenario, job]
    gpus = sim.scenarios.gpus[scenario, job]
    if gpus == 1:
        return compute_s
    link = sim.rules.reference_intra_bytes_per_s
    if gpus > sim.rules.reference_gpus:
        link = sim.rules.reference_nic_bytes_per_s
    return compute_s + 2.0 * (gpus - 1) / gpus * sim.scenarios.parameter_bytes[scenario, job] / link


@kernel
def stand_in_node(sim: Simulation, row: int, first: int, last: int) -> int:
    """Return the node that gives the next GPU of a ring from node `last` to node `first` (both -1 for the first GPU).

    Among nodes with T(x) at most the job's average iteration time the slowest, then the one of least T; if there is
    none, the one of least T. A node's peak FLOP/s is its speed.

    Source: SPEC F6, F7.
    """
    state = sim.state
    scenario, job = state.scenario[row], state.current[row]
    speed = sim.scenarios.speed
    allowed_s = average_iteration_s(sim, row, job)
    volume = sim.scenarios.parameter_bytes[scenario, job]
    best, best_s, best_allowed = -1, math.inf, False
    for node in range(state.free.shape[1]):
        if state.free[row, node] == 0:
            continue
        time_s = sim.scenarios.compute_s[scenario, job] / speed[scenario, node]
        if first >= 0:
            link = min(link_bytes_per_s(sim, last, node), link_bytes_per_s(sim, node, first))
            time_s += volume / link
        allowed = time_s <= allowed_s
        better = time_s < best_s
        if allowed and best_allowed:
            slower = speed[scenario, node] < speed[scenario, best]
            better = slower or (speed[scenario, node] == speed[scenario, best] and better)
        elif allowed != best_allowed:
            better = allowed
        if best < 0 or better:
            best, best_s, best_allowed = node, time_s, allowed
    return best


@kernel
def pick_stand_ins(sim: Simulation, row: int, patience: float) -> bool:
    """Pick the GPUs of the current job one by one, each as a ring's stand-in."""
    first, last = -1, -1
    while sim.state.need[row] > 0:
        node = stand_in_node(sim, row, first, last)
        take_gpu(sim, row, safest_gpu(sim, row, node))
        first = node if first < 0 else first
        last = node
    return True


RULE = Rule(pick_stand_ins, "each GPU chosen as a faulty ring member's stand-in")
