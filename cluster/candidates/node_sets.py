"""Sets of nodes for a job, their run times, and what a wait would gain (docs/policies.md, By expected finish).

For each number of GPUs a row of bits marks the nodes that have that number free at an imagined moment, in words of 32
nodes, so that no search goes through every node. `trial_free` has the same by node. They change together, by
`set_trial_free` alone.
"""

import math
from typing import NamedTuple

import numpy as np

from ..kernels.compiled import kernel
from ..placing import common_divisor, is_planned, order_nodes_by_free, slowdown_of
from ..queue.expected import expected_run_s, sort_expected_ends
from ..state.holding import need_class_of, usable_on_node
from ..state.state import WORD_BITS, Simulation

# Places of a single bit by the product with a sequence of de Bruijn (Leiserson, Prokop and Randall, 1998).
DE_BRUIJN = 0x077CB531
BIT_OF = np.zeros(32, dtype=np.int64)
BIT_OF[[((DE_BRUIJN << bit) & 0xFFFFFFFF) >> 27 for bit in range(32)]] = range(32)


@kernel
def lowest_bit(bits: int) -> int:
    """Return the place of the lowest bit that is 1 of a word that has one."""
    return int(BIT_OF[(((bits & -bits) * DE_BRUIJN) & 0xFFFFFFFF) >> 27])


@kernel
def node_bit_words(sim: Simulation) -> int:
    """Return how many words hold a bit of each node."""
    return (int(sim.cluster.speed.size) + WORD_BITS - 1) // WORD_BITS


@kernel
def largest_free_gpus(sim: Simulation) -> int:
    """Return the most GPUs that a node can have free."""
    return int(sim.scratch.free_count.shape[1]) - 1


@kernel
def lowest_speed_level(sim: Simulation, row: int) -> int:
    """Return the number of the lowest speed that nodes have."""
    levels, level = sim.traits.levels[sim.state.scenario[row]], 0
    while levels[level + 1] > 0.0:
        level += 1
    return level


@kernel
def reset_trial_free(sim: Simulation, row: int) -> None:
    """Let `trial_free` be the GPUs that are usable at present, by jobs of any needs."""
    state, scratch = sim.state, sim.scratch
    nodes, words, sizes = state.free.shape[1], node_bit_words(sim), scratch.free_count.shape[1]
    levels, of_node = sim.traits.levels[state.scenario[row]], sim.traits.node_level[state.scenario[row]]
    for size in range(sizes):
        scratch.free_count[row, size] = 0
    for at in range(sizes * words):
        scratch.free_nodes[row, at] = 0
    level = 0
    while levels[level] > 0.0:
        for size in range(sizes):
            scratch.level_count[row, level * sizes + size] = 0
        scratch.level_free[row, level] = 0
        level += 1
    for node in range(nodes):
        free = usable_on_node(sim, row, node)
        scratch.trial_free[row, node] = free
        scratch.free_count[row, free] += 1
        scratch.free_nodes[row, free * words + node // WORD_BITS] |= 1 << node % WORD_BITS
        scratch.level_count[row, of_node[node] * sizes + free] += 1
        scratch.level_free[row, of_node[node]] += free


@kernel
def set_trial_free(sim: Simulation, row: int, node: int, free: int) -> None:
    """Set the number of GPUs that a node has free."""
    scratch, words = sim.scratch, node_bit_words(sim)
    before, bit, sizes = scratch.trial_free[row, node], 1 << int(node % WORD_BITS), scratch.free_count.shape[1]
    level = sim.traits.node_level[sim.state.scenario[row], node]
    scratch.trial_free[row, node] = free
    scratch.free_count[row, before] -= 1
    scratch.free_count[row, free] += 1
    scratch.free_nodes[row, before * words + node // WORD_BITS] ^= bit
    scratch.free_nodes[row, free * words + node // WORD_BITS] ^= bit
    scratch.level_count[row, level * sizes + before] -= 1
    scratch.level_count[row, level * sizes + free] += 1
    scratch.level_free[row, level] += free - before


@kernel
def first_node_with_free(
    sim: Simulation, row: int, free: int, level: int, first: int, after: int, lemons: int, need_class: int
) -> int:
    """Return the first of nodes `first` to `after` - 1 with `free` GPUs free, -1 if none is.

    Only nodes of at least the speed of number `level` count, which suit a class of needs, and lemons only if `lemons`
    is 1.
    """
    scratch = sim.scratch
    if scratch.free_count[row, free] == 0:
        return -1
    words, suits, fast = node_bit_words(sim), sim.cluster.suits, sim.traits.level_nodes[sim.state.scenario[row]]
    for word in range(first // WORD_BITS, (after + WORD_BITS - 1) // WORD_BITS):
        bits = scratch.free_nodes[row, free * words + word] & fast[level * words + word]
        while bits != 0:
            node = word * WORD_BITS + lowest_bit(bits)
            if node >= after:
                return -1
            may = node >= first and sim.state.lemon[row, node] <= lemons
            if may and (need_class == 0 or suits[need_class, node] == 1):
                return node
            bits &= bits - 1
    return -1


@kernel
def list_free_nodes(sim: Simulation, row: int, need_class: int) -> int:
    """Write the nodes that suit a class and have GPUs free into `trial_order`, most first; return their number."""
    scratch, words, suits = sim.scratch, node_bit_words(sim), sim.cluster.suits
    count = 0
    for free in range(largest_free_gpus(sim), 0, -1):
        if scratch.free_count[row, free] == 0:
            continue
        for word in range(words):
            bits = scratch.free_nodes[row, free * words + word]
            while bits != 0:
                node = word * WORD_BITS + lowest_bit(bits)
                bits &= bits - 1
                if need_class == 0 or suits[need_class, node] == 1:
                    scratch.trial_order[row, count] = node
                    count += 1
    return count


@kernel
def fewest_nodes_of_level(sim: Simulation, row: int, level: int, gpus: int) -> int:
    """Return the fewest nodes of at least the speed of number `level` that hold `gpus` GPUs; 0 if they do not."""
    scratch = sim.scratch
    sizes = scratch.free_count.shape[1]
    nodes, need = 0, gpus
    for free in range(sizes - 1, 0, -1):
        here = 0
        for at in range(level + 1):
            here += scratch.level_count[row, at * sizes + free]
        if here * free >= need:
            return nodes + (need + free - 1) // free
        nodes += here
        need -= here * free
    return 0


ALL_SETS = 8  # up to this number of nodes with free GPUs all sets are compared
WAIT_PATIENCE = 0.4  # field trials on `hetero64`: a second of waiting must save 2.5 s of run time
RUN_TIE = 1e-9  # run times that differ by less, relatively, are equal: they come out of different sums


@kernel
def node_set_cost(sim: Simulation, row: int, job: int, count: int, fault_loss_s: float) -> tuple[float, int]:
    """Return the expected run time of a job on the first `count` nodes of `trial_set`, and the hole that it leaves.

    The set must hold the job, and each node must give something. Each expected fault adds `fault_loss_s`, relatively
    to the run time; 0 gives the fault-free run time.
    """
    scratch = sim.scratch
    state, cluster = sim.state, sim.cluster
    scenario = state.scenario[row]
    need = sim.scenarios.gpus[scenario, job]
    speeds, hazards = sim.scenarios.speed, state.node_hazard_per_s
    hole, rack, several, planned, grain = 0, -1, False, is_planned(sim, scenario, job), 0
    speed, intra, nic, uplink, hazard = math.inf, math.inf, math.inf, math.inf, 0.0
    for place in range(count):
        node = scratch.trial_set[row, place]
        gives = min(need, scratch.trial_free[row, node])
        need -= gives
        hole = scratch.trial_free[row, node] - gives
        speed = min(speed, speeds[scenario, node])
        hazard += gives * hazards[row, node]
        if sim.rules.ring:
            if gives > 1:
                intra = min(intra, cluster.intra_bytes_per_s[node])
            nic = min(nic, cluster.nic_bytes_per_s[node])
            several = several or (rack >= 0 and rack != cluster.node_rack[node])
            rack = cluster.node_rack[node]
            uplink = min(uplink, cluster.uplink_bytes_per_s[rack])
        if planned:
            grain = common_divisor(grain, gives)
    if not several:
        uplink = math.inf
    slowdown = slowdown_of(sim, scenario, job, count, speed, intra, nic, uplink, grain)
    run_s = expected_run_s(sim, row, job, slowdown)
    return run_s * (1.0 + hazard * fault_loss_s), hole


class FoundSet(NamedTuple):
    """The set of nodes in `best_set` of the scratch, which give in that order."""

    run_s: float  # expected run time on it; inf if no set holds the job
    hole: int  # GPUs that its last node has left
    nodes: int


@kernel
def no_set() -> FoundSet:
    """Return what is found before any set is."""
    return FoundSet(math.inf, 0, 0)


@kernel
def keep_better_set(sim: Simulation, row: int, job: int, count: int, fault_loss_s: float, best: FoundSet) -> FoundSet:
    """Compare the set in `trial_set` with the best so far; the better goes to `best_set`."""
    run_s, hole = node_set_cost(sim, row, job, count, fault_loss_s)
    if run_s < best.run_s * (1.0 - RUN_TIE) or (run_s <= best.run_s * (1.0 + RUN_TIE) and hole < best.hole):
        for place in range(count):
            sim.scratch.best_set[row, place] = sim.scratch.trial_set[row, place]
        return FoundSet(run_s, hole, count)
    return best


@kernel
def _find_best_of_all_sets(sim: Simulation, row: int, job: int, nodes: int, fault_loss_s: float) -> FoundSet:
    """Compare every set of the nodes in `trial_order`; return the best."""
    state, scratch = sim.state, sim.scratch
    gpus = sim.scenarios.gpus[state.scenario[row], job]
    best = no_set()
    for chosen in range(1, 1 << nodes):
        count, total, last = 0, 0, 0
        for place in range(nodes):
            if (chosen >> scratch.trial_bit[row, place]) & 1:
                node = scratch.trial_order[row, place]
                scratch.trial_set[row, count] = node
                last = scratch.trial_free[row, node]
                total += last
                count += 1
        if total >= gpus and total - last < gpus:
            best = keep_better_set(sim, row, job, count, fault_loss_s, best)
    return best


@kernel
def find_tight_set(sim: Simulation, row: int, job: int, level: int, first: int, after: int, lemons: int) -> int:
    """Write into `trial_set` nodes of at least the speed of number `level`: most free first, the last of least hole.

    Only nodes `first` to `after` - 1 count, and lemons only if `lemons` is 1. Returns the number of nodes; 0 if they do
    not hold the job.
    """
    scratch, need_class = sim.scratch, need_class_of(sim, row, job)
    need = sim.scenarios.gpus[sim.state.scenario[row], job]
    # No node that is left has more than `most`, and those with as many are left from node `begin` on.
    count, most, begin = 0, largest_free_gpus(sim), first
    while most > 0:
        for free in range(need, most + 1):
            node = first_node_with_free(
                sim, row, free, level, begin if free == most else first, after, lemons, need_class
            )
            if node >= 0:
                scratch.trial_set[row, count] = node
                return count + 1
        if need <= most:
            most, begin = need - 1, first
            continue
        node = first_node_with_free(sim, row, most, level, begin, after, lemons, need_class)
        if node < 0:
            most, begin = most - 1, first
            continue
        scratch.trial_set[row, count] = node
        count += 1
        need -= most
        begin = node + 1
    return 0


@kernel
def _find_best_tight_set(sim: Simulation, row: int, job: int, fault_loss_s: float) -> FoundSet:
    """Compare the tight sets of each speed, with and without lemons, in the whole cluster and in each rack."""
    cluster = sim.cluster
    scenario = sim.state.scenario[row]
    levels, nodes = sim.traits.levels[scenario], sim.scenarios.speed.shape[1]
    racks = cluster.first_node.size - 1
    best = no_set()
    level = 0
    while levels[level] > 0.0:
        for lemons in (1, 0):
            for rack in range(-1, racks if racks > 1 else 0):
                first = 0 if rack < 0 else cluster.first_node[rack]
                after = nodes if rack < 0 else cluster.first_node[rack + 1]
                count = find_tight_set(sim, row, job, level, first, after, lemons)
                if count > 0:
                    best = keep_better_set(sim, row, job, count, fault_loss_s, best)
        level += 1
    return best


@kernel
def find_best_set(sim: Simulation, row: int, job: int, fault_loss_s: float) -> FoundSet:
    """Return the set of nodes where the job finishes first, given `trial_free`."""
    need_class = need_class_of(sim, row, job)
    if need_class > 0 or sim.state.free.shape[1] - sim.scratch.free_count[row, 0] <= ALL_SETS:
        nodes = order_nodes_by_free(sim, row, job)
        if nodes <= ALL_SETS:
            return _find_best_of_all_sets(sim, row, job, nodes, fault_loss_s)
    return _find_best_tight_set(sim, row, job, fault_loss_s)


@kernel
def add_job_gpus(sim: Simulation, row: int, job: int, sign: int) -> None:
    """Add the GPUs of a running job to `trial_free`, or take them away again if `sign` is -1."""
    state, gpu_node = sim.state, sim.cluster.gpu_node
    gpu = state.first_gpu[row, job]
    while gpu >= 0:
        node, gpus = gpu_node[gpu], 0
        while gpu >= 0 and gpu_node[gpu] == node:
            gpus += 1
            gpu = state.gpu_next[row, gpu]
        set_trial_free(sim, row, node, sim.scratch.trial_free[row, node] + sign * gpus)


@kernel
def imagine_ends(sim: Simulation, row: int, at: int, count: int) -> int:
    """Add to `trial_free` the GPUs of all jobs that are expected to end with number `at`; return the next number."""
    state = sim.state
    end_s = state.ends_s[row, at]
    while at < count and state.ends_s[row, at] == end_s:
        add_job_gpus(sim, row, state.ends_job[row, at], 1)
        at += 1
    return at


@kernel
def gain_of_waiting_s(sim: Simulation, row: int, job: int, run_s: float, fault_loss_s: float, patience: float) -> float:
    """Return the largest patience x (run time now - run time after an expected end) - wait, if it is above 0.

    A patience of 1 asks what finishes first; `patient` asks more of a wait.
    """
    count = sort_expected_ends(sim, row)
    reset_trial_free(sim, row)
    most_s = patience * (run_s - least_run_s(sim, row, job, sim.traits.levels[sim.state.scenario[row], 0]))
    largest_s = -math.inf
    at = 0
    while at < count:
        wait_s = sim.state.ends_s[row, at] - sim.state.now_s[row]
        at = imagine_ends(sim, row, at, count)
        if most_s - wait_s <= max(largest_s, 0.0):
            break  # no later end can gain more, even on the fastest GPUs
        if patience * (run_s - least_run_on_free_s(sim, row, job)) - wait_s > largest_s:
            later_s = find_best_set(sim, row, job, fault_loss_s).run_s
            largest_s = max(largest_s, patience * (run_s - later_s) - wait_s)
    return largest_s


@kernel
def least_run_s(sim: Simulation, row: int, job: int, speed: float) -> float:
    """Return a run time that no placement of a job can be below whose slowest GPU has at most a speed."""
    slowdown = slowdown_of(sim, sim.state.scenario[row], job, 1, speed, math.inf, math.inf, math.inf, 0)
    return expected_run_s(sim, row, job, slowdown)


@kernel
def least_run_on_free_s(sim: Simulation, row: int, job: int) -> float:
    """Return a run time that no set of nodes can be below, given `trial_free`; inf if none holds the job."""
    scenario, level, least_s = sim.state.scenario[row], 0, math.inf
    gpus, levels = sim.scenarios.gpus[scenario, job], sim.traits.levels[scenario]
    while levels[level] > 0.0 and least_run_s(sim, row, job, levels[level]) < least_s:
        nodes = fewest_nodes_of_level(sim, row, level, gpus)
        if nodes > 0:
            slowdown = slowdown_of(sim, scenario, job, nodes, levels[level], math.inf, math.inf, math.inf, 0)
            least_s = min(least_s, expected_run_s(sim, row, job, slowdown))
        level += 1
    return least_s


@kernel
def holding_speed_level(sim: Simulation, row: int, job: int) -> int:
    """Return the number of the highest speed in the cluster such that nodes of at least that speed hold a job.

    `trial_free` has what is usable, which must hold it.
    """
    scenario = sim.state.scenario[row]
    need_class = need_class_of(sim, row, job)
    if need_class > 0:
        return _holding_speed_level_of_class(sim, row, job, need_class)
    levels = sim.traits.levels[scenario]
    need, level = sim.scenarios.gpus[scenario, job] - sim.scratch.level_free[row, 0], 0
    while need > 0 and levels[level + 1] > 0.0:
        level += 1
        need -= sim.scratch.level_free[row, level]
    return level


@kernel
def _holding_speed_level_of_class(sim: Simulation, row: int, job: int, need_class: int) -> int:
    """Do what `holding_speed_level` does for a job that not every node suits."""
    scenario = sim.state.scenario[row]
    speeds, levels, suits = sim.scenarios.speed[scenario], sim.traits.levels[scenario], sim.cluster.suits
    level = 0
    while levels[level + 1] > 0.0:
        free = 0
        for node in range(speeds.size):
            if speeds[node] >= levels[level] and suits[need_class, node] == 1:
                free += sim.scratch.trial_free[row, node]
        if free >= sim.scenarios.gpus[scenario, job]:
            break
        level += 1
    return level


@kernel
def find_quick_set(sim: Simulation, row: int, job: int, level: int) -> FoundSet:
    """Return the best tight set of all nodes of at least each speed, given `trial_free`; faults do not count.

    `level` is the job's `holding_speed_level`.
    """
    levels, nodes = sim.traits.levels[sim.state.scenario[row]], sim.scenarios.speed.shape[1]
    best = keep_better_set(sim, row, job, find_tight_set(sim, row, job, level, 0, nodes, 1), 0.0, no_set())
    level += 1
    # The tight set of a lower speed takes a node of that very speed, or is the same again.
    while levels[level] > 0.0 and least_run_s(sim, row, job, levels[level]) <= best.run_s * (1.0 + RUN_TIE):
        best = keep_better_set(sim, row, job, find_tight_set(sim, row, job, level, 0, nodes, 1), 0.0, best)
        level += 1
    return best
