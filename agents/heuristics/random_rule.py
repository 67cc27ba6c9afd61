"""Random nodes, and the fastest of several random placements."""

import math

from ...cluster.candidates.random_placement import DRAWS, random_node
from ...cluster.dispatch.placing import picked_slowdown, take_node, undo_picks
from ...cluster.kernels.compiled import kernel
from ...cluster.state.state import Simulation
from .rule import Rule

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
