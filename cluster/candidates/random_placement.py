"""Random placements, as functions of counters (docs/policies.md, `random`), and the best of several random runs."""

import numpy as np
from numpy.typing import NDArray

from ..dispatch.placing import take_node
from ..kernels.compiled import kernel
from ..kernels.counter_random import uniform
from ..simulator.engine import advance, reset, start
from ..state.state import Simulation

RANDOM_STREAM = 1 << 28  # counters of random placements, apart from those of fault sources
DRAWS = 1 << 12  # counters that one placement may use


@kernel
def random_node(sim: Simulation, row: int, draw: int) -> int:
    """Return a node with free GPUs, all equally likely, as a function of the row's decision and the draw."""
    state = sim.state
    nodes = 0
    for node in range(state.free.shape[1]):
        nodes += state.free[row, node] > 0
    seed = sim.scenarios.fault_seed[state.scenario[row]]
    left = int(uniform(seed, RANDOM_STREAM + draw, state.decisions[row]) * nodes)
    for node in range(state.free.shape[1]):
        if state.free[row, node] > 0:
            if left == 0:
                return node
            left -= 1
    return -1


@kernel
def least_random_makespans_s(
    sim: Simulation, scenarios: NDArray[np.int64], runs: int, least_s: NDArray[np.float64]
) -> None:
    """Write the smallest makespan of several random runs of each scenario, all on the scenario's own faults.

    Run a draws from the counters that placement a of `best-of-random` has, so the first is the policy `random`'s.

    Args:
        sim: A simulation, of which row 0 is run.
        scenarios: Which, shape (some,).
        runs: Random runs of each.
        least_s: Takes the makespans, or the time at which runs were cut off, shape (some,).

    Source: SPEC R5.
    """
    for i in range(scenarios.size):
        least_s[i] = np.inf
        for run in range(runs):
            reset(sim, 0, scenarios[i])
            while advance(sim, 0):
                draw = run * DRAWS
                while sim.state.need[0] > 0:
                    take_node(sim, 0, random_node(sim, 0, draw))
                    draw += 1
                start(sim, 0)
            least_s[i] = min(least_s[i], sim.state.now_s[0])
