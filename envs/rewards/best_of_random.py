"""Pays at the end, by how much several random runs of the scenario on the same faults are beaten. Source: SPEC R5."""

import numpy as np
from numpy.typing import NDArray

from ...cluster.candidates.random_placement import least_random_makespans_s
from ...cluster.state.state import Simulation
from .dt import time_s
from .reward import Reward

RANDOM_RUNS = 5  # if none are asked for
MOST_RANDOM_RUNS = 1000


def random_makespan_s(sim: Simulation, runs: int = RANDOM_RUNS) -> NDArray[np.float64]:
    """Return the smallest makespan of several random runs of every scenario, shape (scenarios,).

    Args:
        sim: A simulation, of which row 0 is run and left at an end.
        runs: Random runs of each scenario, from 1 to MOST_RANDOM_RUNS.
    """
    scenarios = sim.scenarios.jobs.size
    least_s = np.empty(scenarios)
    least_random_makespans_s(sim, np.arange(scenarios), runs, least_s)
    return np.maximum(least_s, 1e-9)


REWARD = Reward(
    "nothing before the end, then the least makespan of several random runs minus the makespan, over that least one",
    time_s, at_end=True, against_s=random_makespan_s,
)  # fmt: skip
