"""Rewards: the contract of one, and ours."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..cluster.kernels.compiled import kernel
from ..cluster.simulator.engine import write_least_random_makespans_s
from ..cluster.state.state import Simulation


class Reward(NamedTuple):
    """How an episode is paid for: by the falls of its cost, decision by decision.

    Args:
        about: One line of description.
        cost_s: Compiled by `longshore.cluster.kernels.compiled.kernel`: from a simulation and a row to the cost of the
            episode so far.
        at_end: Whether all of it is paid at the end.
        against_s: From a simulation to the costs with which those of scenarios are compared, shape (scenarios,). They
            are paid back with the first reward, and are the unit of rewards. Row 0 of the simulation may be run. If
            this is None, nothing is paid back, and the unit is the scenario's ideal time: its work over the speed of
            the whole cluster.
    """

    about: str
    cost_s: Callable[[Simulation, int], float]
    at_end: bool = False
    against_s: Callable[[Simulation], NDArray[np.float64]] | None = None


@kernel
def elapsed_s(sim: Simulation, row: int) -> float:
    """Return the time since the beginning of the episode."""
    return float(sim.state.now_s[row])


DT = Reward("minus the time that passed; sums to minus the makespan", elapsed_s)


@kernel
def mean_jct_so_far_s(sim: Simulation, row: int) -> float:
    """Return the sum over jobs of the time since submission, up to now or to the finish, over all jobs."""
    state = sim.state
    return float(state.job_time_s[row] / sim.scenarios.jobs[state.scenario[row]])


JCT = Reward(
    "minus the time that jobs spent in the system, over all jobs; sums to minus the mean JCT", mean_jct_so_far_s
)


@kernel
def potential_s(sim: Simulation, row: int) -> float:
    """Return minus the GPU-time that running jobs have left (faults aside), over all GPUs."""
    state = sim.state
    gpus = sim.scenarios.gpus[state.scenario[row]]
    left_gpu_s = 0.0
    for i in range(state.running[row]):
        job = state.run_heap[row, i]
        left_gpu_s += gpus[job] * (state.end_s[row, job] - state.now_s[row])
    return float(-left_gpu_s / state.gpu_job.shape[1])


@kernel
def elapsed_less_potential_s(sim: Simulation, row: int) -> float:
    """Return the time since the beginning of the episode minus the potential."""
    return float(sim.state.now_s[row] - potential_s(sim, row))


POTENTIAL = Reward(
    "minus the time that passed and the GPU-time that a placement takes, over all GPUs; sums to minus the makespan",
    elapsed_less_potential_s,
)


RANDOM_RUNS = 5  # by default
MAX_RANDOM_RUNS = 1000


def least_random_makespan_s(sim: Simulation, runs: int = RANDOM_RUNS) -> NDArray[np.float64]:
    """Return the smallest makespan of several random runs of every scenario, shape (scenarios,).

    Args:
        sim: A simulation, of which row 0 is run and left at an end.
        runs: Random runs of each scenario, from 1 to MAX_RANDOM_RUNS.
    """
    scenarios = sim.scenarios.jobs.size
    least_s = np.empty(scenarios)
    write_least_random_makespans_s(sim, np.arange(scenarios), runs, least_s)
    return np.maximum(least_s, 1e-9)


BEST_OF_RANDOM = Reward(
    "nothing before the end, then the least makespan of several random runs minus the makespan, over that least one",
    elapsed_s, at_end=True, against_s=least_random_makespan_s,
)  # fmt: skip
