"""Pays for the time that jobs spend in the system."""

from ...cluster.kernels.compiled import kernel
from ...cluster.state.state import Simulation
from .reward import Reward


@kernel
def mean_time_s(sim: Simulation, row: int) -> float:
    """Return the sum over jobs of the time since submission, up to now or to the finish, over all jobs."""
    state = sim.state
    return float(state.job_time_s[row] / sim.scenarios.jobs[state.scenario[row]])


REWARD = Reward("minus the time that jobs spent in the system, over all jobs; sums to minus the mean JCT", mean_time_s)
