"""What a run costs so far, and the unit of what moves gain, compiled."""

from ...cluster.kernels.compiled import kernel
from ...cluster.state.state import Simulation
from ...envs.features import time_unit_s
from .schema import Goal


@kernel
def unit_of_goal_s(sim: Simulation, row: int, jct: int) -> float:
    """Return the unit of a goal, of mean JCT if `jct` is 1 and else of the makespan."""
    jobs = sim.state.queued[row] + sim.state.running[row] if jct else 1
    return float(time_unit_s(sim, row) * max(jobs, 1))


@kernel
def spent_on_goal_s(sim: Simulation, row: int, jct: int) -> float:
    """Return what a run has cost so far by one of the two goals."""
    return float(sim.state.job_time_s[row] if jct else sim.state.now_s[row])


def goal_unit_s(sim: Simulation, row: int, goal: Goal) -> float:
    """Return the unit of what a goal costs: that of the features' times, for each job in the system if `jct` counts."""
    return float(unit_of_goal_s(sim, row, int(goal == "jct")))


def spent_s(sim: Simulation, row: int, goal: Goal) -> float:
    """Return what a run has cost so far: the time, or for `jct` that of all jobs in the system together."""
    return float(spent_on_goal_s(sim, row, int(goal == "jct")))
