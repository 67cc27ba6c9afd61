"""Pays at the end, by how much several random runs of the scenario on the same faults are beaten. Source: SPEC R5."""

import numpy as np
from numpy.typing import NDArray

from ...cluster.candidates.random_placement import least_random_makespans_s
from ...cluster.state.state import Simulation
from .dt import time_s
from .reward import Reward

RANDOM_RUNS = 5


def random_makespan_s(sim: Simulation) -> NDArray[np.float64]:
    """Return the smallest makespan of RANDOM_RUNS random runs of every scenario, shape (scenarios,).

    Args:
        sim: A simulation, of which row 0 is run and left at an end.
    """
    scenarios = sim.scenarios.jobs.size
    least_s = np.empty(scenarios)
    least_random_makespans_s(sim, np.arange(scenarios), RANDOM_RUNS, least_s)
    return np.maximum(least_s, 1e-9)


REWARD = Reward(
    "nothing before the end, then the smallest makespan of 5 random runs minus the makespan, over that smallest one",
    time_s, at_end=True, against_s=random_makespan_s,
)  # fmt: skip
