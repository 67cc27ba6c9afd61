"""Rewards: the contract of one, and ours."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..cluster.kernels.compiled import kernel
from ..cluster.placing import DRAWS_PER_PLACEMENT, pick_by_draws
from ..cluster.simulator.engine import advance, reset, start
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


@kernel
def write_random_makespans(sim: Simulation, runs: int, least_s: NDArray[np.float64]) -> None:
    """Write the smallest makespan of several random runs of each scenario, all on the scenario's own faults.

    Run a draws from the counters that placement a of `best-of-random` has, so the first is the policy `random`'s.

    Args:
        sim: A simulation, of which row 0 is run.
        runs: Random runs of each scenario.
        least_s: Takes the makespans, or the time at which runs were cut off, shape (scenarios,).

    Source: SPEC R5.
    """
    for scenario in range(least_s.size):
        least_s[scenario] = np.inf
        for run in range(runs):
            reset(sim, 0, scenario)
            while advance(sim, 0):
                pick_by_draws(sim, 0, run * DRAWS_PER_PLACEMENT)
                start(sim, 0)
            least_s[scenario] = min(least_s[scenario], sim.state.now_s[0])


def least_random_makespan_s(sim: Simulation, runs: int = RANDOM_RUNS) -> NDArray[np.float64]:
    """Return the smallest makespan of several random runs of every scenario, shape (scenarios,).

    Args:
        sim: A simulation, of which row 0 is run and left at an end.
        runs: Random runs of each scenario, from 1 to MAX_RANDOM_RUNS.
    """
    least_s = np.empty(sim.scenarios.jobs.size)
    write_random_makespans(sim, runs, least_s)
    return np.maximum(least_s, 1e-9)


BEST_OF_RANDOM = Reward(
    "nothing before the end, then the least makespan of several random runs minus the makespan, over that least one",
    elapsed_s, at_end=True, against_s=least_random_makespan_s,
)  # fmt: skip
