"""What a run costs so far, and the unit of what candidates gain, compiled."""

from ...cluster.kernels.compiled import kernel
from ...cluster.model.objective import Objective
from ...cluster.state.state import Simulation
from ...envs.common_features import time_unit_s


@kernel
def unit_of_objective_s(sim: Simulation, row: int, jct: int) -> float:
    """Return the unit of an objective, of mean JCT if `jct` is 1 and else of the makespan."""
    jobs = sim.state.queued[row] + sim.state.running[row] if jct else 1
    return float(time_unit_s(sim, row) * max(jobs, 1))


@kernel
def spent_on_objective_s(sim: Simulation, row: int, jct: int) -> float:
    """Return what a run has cost so far by one of the two objectives."""
    return float(sim.state.job_time_s[row] if jct else sim.state.now_s[row])


def objective_unit_s(sim: Simulation, row: int, objective: Objective) -> float:
    """Return the unit of an objective in seconds: that of the features' times, for `jct` once for each job present."""
    return float(unit_of_objective_s(sim, row, int(objective == "jct")))


def spent_s(sim: Simulation, row: int, objective: Objective) -> float:
    """Return what a run has cost so far: the time, or for `jct` that of all jobs in the system together."""
    return float(spent_on_objective_s(sim, row, int(objective == "jct")))
