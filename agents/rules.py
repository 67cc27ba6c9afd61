"""The rules of heuristics: which nodes they prefer, or which placement finishes first."""

import math
from collections.abc import Callable
from typing import NamedTuple

from ..cluster.candidates.node_sets import PATIENCE, TIE, best_set, gain_of_waiting_s, imagine_now
from ..cluster.candidates.offers import DRAWS, random_node
from ..cluster.kernels.compiled import kernel
from ..cluster.placing import picked_slowdown, safest_gpu, take_gpu, take_node, undo_picks
from ..cluster.queue.expected import expected_fault_loss_s
from ..cluster.queue.order import may_wait
from ..cluster.state.holding import class_of
from ..cluster.state.state import Simulation


class Rule(NamedTuple):
    """A heuristic.

    Args:
        pick: Compiled by `longshore.cluster.kernels.compiled.kernel`. It is given a simulation, a row in which a job is
            due, and the patience. It picks the GPUs of the job by `take_node` or `take_gpu`
            (`longshore.cluster.placing`) and returns True; or it returns False to wait, where `may_wait`
            (`longshore.cluster.queue.order`) allows that. What it has picked then is undone.
        about: One line for `longshore policy list`.
        patience: How much waiting a second of saved run time is worth; 0 never waits. Rules may leave it alone.
        waits: Whether it differs where waiting is allowed.
    """

    pick: Callable[[Simulation, int, float], bool]
    about: str
    patience: float = 0.0
    waits: bool = False


TRIES = 8  # placements that best-of-random compares


@kernel
def pick_at_random(sim: Simulation, row: int, first_draw: int) -> None:
    """Pick all GPUs of the current job from random nodes, by the draws from a number on."""
    draw = first_draw
    while sim.state.need[row] > 0:
        take_node(sim, row, random_node(sim, row, draw))
        draw += 1


@kernel
def pick_random(sim: Simulation, row: int, patience: float) -> bool:
    """Pick all GPUs of the current job from random nodes."""
    pick_at_random(sim, row, 0)
    return True


@kernel
def pick_best_of_random(sim: Simulation, row: int, patience: float) -> bool:
    """Pick the random placement with the smallest slowdown of several."""
    best, least = 0, math.inf
    for attempt in range(TRIES):
        pick_at_random(sim, row, attempt * DRAWS)
        slowdown = picked_slowdown(sim, row)
        if slowdown < least:
            best, least = attempt, slowdown
        undo_picks(sim, row)
    pick_at_random(sim, row, best * DRAWS)
    return True


RANDOM = Rule(pick_random, "random nodes with free GPUs")
BEST_OF_RANDOM = Rule(pick_best_of_random, "the fastest of 8 random placements")


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


FIRST_FIT = Rule(pick_first_fit, "the first nodes with free GPUs")


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


SPREAD = Rule(pick_spread, "worst fit: the node with most free GPUs")


@kernel
def fewest_nodes(sim: Simulation, gpus: int, kind: int) -> int:
    """Return how many nodes a job of so many GPUs and of a class of needs takes on an empty cluster."""
    first_gpu, suits = sim.cluster.first_gpu, sim.cluster.suits
    nodes, size = 0, sim.cluster.gpu_node.size
    while gpus > 0 and size > 0:
        smaller = 0  # the next size that a node has: to try all in between would take minutes beside a huge node
        for node in range(first_gpu.size - 1):
            own = (first_gpu[node + 1] - first_gpu[node]) * suits[kind, node]
            if own < size:
                smaller = max(smaller, own)
            elif own == size and gpus > 0:
                gpus -= size
                nodes += 1
        size = smaller
    return nodes


@kernel
def pick_consolidated(sim: Simulation, row: int, patience: float) -> bool:
    """Pick as `pack` does; False if that takes more nodes than needed and waiting is allowed."""
    pick_pack(sim, row, patience)
    if not may_wait(sim, row):
        return True
    job = sim.state.current[row]
    gpus = sim.scenarios.gpus[sim.state.scenario[row], job]
    return bool(sim.state.picked_nodes[row] <= fewest_nodes(sim, gpus, class_of(sim, row, job)))


CONSOLIDATE = Rule(pick_consolidated, "pack, but waits until the job fits on as few nodes as possible", waits=True)


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


FASTEST = Rule(pick_fastest, "the fastest nodes")


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


RELIABLE = Rule(pick_reliable, "the nodes of lowest hazard")


@kernel
def pick_by_finish(sim: Simulation, row: int, fault_loss_s: float, patience: float) -> bool:
    """Pick the GPUs of the set where the current job finishes first; False if waiting is better.

    Args:
        sim: The simulation.
        row: Row of the decision.
        fault_loss_s: What an expected fault costs; 0 leaves faults out of account.
        patience: Seconds of run time that a second of waiting must save, inverted; 0 never waits.
    """
    state = sim.state
    job = state.current[row]
    imagine_now(sim, row)
    run_s, _, count = best_set(sim, row, job, fault_loss_s)
    if patience > 0.0 and may_wait(sim, row):
        if gain_of_waiting_s(sim, row, job, run_s, fault_loss_s, patience) > TIE * run_s:
            return False
        imagine_now(sim, row)
        _, _, count = best_set(sim, row, job, fault_loss_s)
    for place in range(count):
        take_node(sim, row, sim.scratch.best_set[row, place])
    return True


@kernel
def pick_eft(sim: Simulation, row: int, patience: float) -> bool:
    """Pick where the job finishes first, faults left out of account."""
    return pick_by_finish(sim, row, 0.0, patience)


@kernel
def pick_eft_hazard(sim: Simulation, row: int, patience: float) -> bool:
    """Pick where the job finishes first, faults reckoned with; False if waiting is better by the patience."""
    return pick_by_finish(sim, row, expected_fault_loss_s(sim), patience)


EFT = Rule(pick_eft, "earliest expected finish of the job")
EFT_HAZARD = Rule(pick_eft_hazard, "the same, reckoning with faults, restarts and checkpoints")
EFT_WAIT = Rule(
    pick_eft_hazard, "eft-hazard now or after a running job's end, whichever finishes first", patience=1.0, waits=True
)
PATIENT = Rule(
    pick_eft_hazard, "eft-hazard that waits while the wait is short for what it saves", patience=PATIENCE, waits=True
)


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


REPLACEMENT = Rule(pick_stand_ins, "each GPU chosen as a faulty ring member's stand-in")
