"""Heuristics as compiled code: one decision, or whole simulations."""

import numpy as np
from numpy.typing import NDArray

from ...cluster.candidates.random_placement import DRAWS
from ...cluster.dispatch.expected import expected_fault_loss_s
from ...cluster.dispatch.order import may_wait
from ...cluster.dispatch.placing import picked_slowdown, undo_picks
from ...cluster.kernels.compiled import kernel
from ...cluster.simulator.engine import advance, reset, start, wait
from ...cluster.state.state import Simulation
from ..parts import ALL
from .finish_rules import pick_by_finish
from .node_rules import PACK, RANDOM, pick_by_rule
from .ring_rule import pick_stand_ins

# Rules beyond those of node_rules, which are 0 to 6
BEST_OF_RANDOM, CONSOLIDATE, EFT, EFT_HAZARD, PATIENT, REPLACEMENT = range(7, 13)
TRIES = 8  # placements that best-of-random compares


@kernel
def pick_best_of_random(sim: Simulation, row: int) -> None:
    """Pick the random placement with the smallest slowdown of several."""
    best, least = 0, np.inf
    for attempt in range(TRIES):
        pick_by_rule(sim, row, RANDOM, attempt * DRAWS)
        slowdown = picked_slowdown(sim, row)
        if slowdown < least:
            best, least = attempt, slowdown
        undo_picks(sim, row)
    pick_by_rule(sim, row, RANDOM, best * DRAWS)


@kernel
def fewest_nodes(sim: Simulation, gpus: int) -> int:
    """Return how many nodes a job of so many GPUs needs on an empty cluster."""
    first_gpu = sim.cluster.first_gpu
    nodes, size = 0, sim.cluster.gpu_node.size
    while gpus > 0 and size > 0:
        smaller = 0  # the next size that a node has: to try all in between would take minutes beside a huge node
        for node in range(first_gpu.size - 1):
            own = first_gpu[node + 1] - first_gpu[node]
            if own < size:
                smaller = max(smaller, own)
            elif own == size and gpus > 0:
                gpus -= size
                nodes += 1
        size = smaller
    return nodes


@kernel
def pick_consolidated(sim: Simulation, row: int) -> bool:
    """Pick as `pack` does; False if that takes more nodes than needed and waiting is allowed."""
    pick_by_rule(sim, row, PACK, 0)
    if not may_wait(sim, row):
        return True
    gpus = sim.scenarios.gpus[sim.state.scenario[row], sim.state.current[row]]
    return bool(sim.state.picked_nodes[row] <= fewest_nodes(sim, gpus))


@kernel
def decide(sim: Simulation, row: int, rule: int, patience: float) -> bool:
    """Pick the GPUs of the current job by a rule; False if the rule would rather wait."""
    if rule < BEST_OF_RANDOM:
        pick_by_rule(sim, row, rule, 0)
    elif rule == BEST_OF_RANDOM:
        pick_best_of_random(sim, row)
    elif rule == CONSOLIDATE:
        return pick_consolidated(sim, row)
    elif rule == REPLACEMENT:
        pick_stand_ins(sim, row)
    else:
        return pick_by_finish(sim, row, 0.0 if rule == EFT else expected_fault_loss_s(sim), patience)
    return True


@kernel
def run_on(sim: Simulation, row: int, rule: int, patience: float, decisions: int) -> bool:
    """Run a row on for so many decisions by a rule; False if it has come to its end before."""
    for _ in range(decisions):
        if not advance(sim, row):
            return False
        if decide(sim, row, rule, patience):
            start(sim, row)
        else:
            wait(sim, row)
    return True


@kernel
def run(sim: Simulation, scenarios: NDArray[np.int64], rule: int, patience: float) -> None:
    """Run one scenario in each row, from its beginning to its end."""
    for row in range(scenarios.size):
        reset(sim, row, scenarios[row])
        run_on(sim, row, rule, patience, ALL)
