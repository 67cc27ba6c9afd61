"""What a reward says. Each stands in a file of its own, and is registered under `longshore.rewards`."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...cluster.state.state import Simulation


class Reward(NamedTuple):
    """How an episode is paid for: by the falls of its cost, decision by decision.

    Args:
        about: One line for people.
        cost_s: Compiled by `longshore.cluster.kernels.compiled.kernel`: of a simulation and a row, what the episode has
            cost until now.
        at_end: Whether all of it is paid at the end.
        against_s: Of a simulation, what the cost of each scenario is compared with, shape (scenarios,). It is paid
            back with the first reward, and it is the unit of rewards. Row 0 of the simulation may be run. If this is
            None, nothing is paid back, and the unit is the scenario's ideal time: its work over the speed of the
            whole cluster.
    """

    about: str
    cost_s: Callable[[Simulation, int], float]
    at_end: bool = False
    against_s: Callable[[Simulation], NDArray[np.float64]] | None = None
