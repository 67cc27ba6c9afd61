"""Pays for the time that passes between two decisions."""

from ...cluster.kernels.compiled import kernel
from ...cluster.state.state import Simulation
from .reward import Reward


@kernel
def time_s(sim: Simulation, row: int) -> float:
    """Return the time since the beginning of the episode."""
    return float(sim.state.now_s[row])


REWARD = Reward("minus the time that passed; sums to minus the makespan", time_s)
