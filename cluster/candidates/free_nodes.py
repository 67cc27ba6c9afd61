"""Nodes by the GPUs that they have free at a moment that is imagined, so that no search looks at every node.

For each number of GPUs a row of bits says which nodes have so many free, in words of 32 nodes. `trial_free` says the
same by node. All three change together, by `set_free` alone.
"""

import numpy as np

from ..kernels.compiled import kernel
from ..state.shapes import WORD
from ..state.state import Simulation
from ..state.usable import usable_on

# Places of a single bit by the product with a sequence of de Bruijn (Leiserson, Prokop and Randall, 1998).
DE_BRUIJN = 0x077CB531
BIT_OF = np.zeros(32, dtype=np.int64)
BIT_OF[[((DE_BRUIJN << bit) & 0xFFFFFFFF) >> 27 for bit in range(32)]] = range(32)


@kernel
def lowest_bit(bits: int) -> int:
    """Return the place of the lowest bit that is 1 of a word that has one."""
    return int(BIT_OF[(((bits & -bits) * DE_BRUIJN) & 0xFFFFFFFF) >> 27])


@kernel
def words_of(sim: Simulation) -> int:
    """Return how many words hold a bit of each node."""
    return (int(sim.cluster.speed.size) + WORD - 1) // WORD


@kernel
def largest_free(sim: Simulation) -> int:
    """Return the most GPUs that a node can have free."""
    return int(sim.scratch.free_count.shape[1]) - 1


@kernel
def lowest_level(sim: Simulation, row: int) -> int:
    """Return the number of the lowest speed that nodes have."""
    levels, level = sim.traits.levels[sim.state.scenario[row]], 0
    while levels[level + 1] > 0.0:
        level += 1
    return level


@kernel
def imagine_now(sim: Simulation, row: int) -> None:
    """Let `trial_free` be the GPUs that are usable at present, by jobs of any needs."""
    state, scratch = sim.state, sim.scratch
    nodes, words, sizes = state.free.shape[1], words_of(sim), scratch.free_count.shape[1]
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
        free = usable_on(sim, row, node)
        scratch.trial_free[row, node] = free
        scratch.free_count[row, free] += 1
        scratch.free_nodes[row, free * words + node // WORD] |= 1 << node % WORD
        scratch.level_count[row, of_node[node] * sizes + free] += 1
        scratch.level_free[row, of_node[node]] += free


@kernel
def set_free(sim: Simulation, row: int, node: int, free: int) -> None:
    """Write down that a node has so many GPUs free."""
    scratch, words = sim.scratch, words_of(sim)
    before, bit, sizes = scratch.trial_free[row, node], 1 << int(node % WORD), scratch.free_count.shape[1]
    level = sim.traits.node_level[sim.state.scenario[row], node]
    scratch.trial_free[row, node] = free
    scratch.free_count[row, before] -= 1
    scratch.free_count[row, free] += 1
    scratch.free_nodes[row, before * words + node // WORD] ^= bit
    scratch.free_nodes[row, free * words + node // WORD] ^= bit
    scratch.level_count[row, level * sizes + before] -= 1
    scratch.level_count[row, level * sizes + free] += 1
    scratch.level_free[row, level] += free - before


@kernel
def first_node(sim: Simulation, row: int, free: int, level: int, first: int, after: int, lemons: int, kind: int) -> int:
    """Return the first of nodes `first` to `after` - 1 with so many GPUs free, -1 if none is.

    Only nodes of at least the speed of number `level` count, which suit a class of needs, and lemons only if `lemons`
    is 1.
    """
    scratch = sim.scratch
    if scratch.free_count[row, free] == 0:
        return -1
    words, suits, fast = words_of(sim), sim.cluster.suits, sim.traits.level_nodes[sim.state.scenario[row]]
    for word in range(first // WORD, (after + WORD - 1) // WORD):
        bits = scratch.free_nodes[row, free * words + word] & fast[level * words + word]
        while bits != 0:
            node = word * WORD + lowest_bit(bits)
            if node >= after:
                return -1
            may = node >= first and sim.state.lemon[row, node] <= lemons
            if may and (kind == 0 or suits[kind, node] == 1):
                return node
            bits &= bits - 1
    return -1


@kernel
def list_free(sim: Simulation, row: int, kind: int) -> int:
    """Write the nodes that suit a class and have GPUs free into `trial_order`, most first; return their number."""
    scratch, words, suits = sim.scratch, words_of(sim), sim.cluster.suits
    count = 0
    for free in range(largest_free(sim), 0, -1):
        if scratch.free_count[row, free] == 0:
            continue
        for word in range(words):
            bits = scratch.free_nodes[row, free * words + word]
            while bits != 0:
                node = word * WORD + lowest_bit(bits)
                bits &= bits - 1
                if kind == 0 or suits[kind, node] == 1:
                    scratch.trial_order[row, count] = node
                    count += 1
    return count


@kernel
def fewest_nodes(sim: Simulation, row: int, level: int, gpus: int) -> int:
    """Return how few nodes of at least a speed, that of number `level`, hold so many GPUs; 0 if they do not."""
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
