"""Rewards, compiled. All but the last pay for the time that passed between two decisions; gamma is 1.

| name | pays | sums over an episode to |
| --- | --- | --- |
| `dt` | -time | -makespan |
| `potential` | -time + phi after - phi before, phi = -(GPU-time that running jobs have left) / GPUs | -makespan |
| `jct` | -time x jobs in the system / jobs | -mean JCT |
| `best_of_random` | nothing before the end, then random makespan - makespan | random makespan - makespan |

They are in units of the scenario's ideal time (work over the speed of the whole cluster), so that workloads of any
length weigh alike; `best_of_random` in units of the random makespan, the smallest of 5 random runs of the scenario on
the same faults. Source: DESIGN 6; SPEC R5.
"""

import numpy as np
from numpy.typing import NDArray

from ..cluster.candidates.random_placement import least_random_makespans_s
from ..cluster.kernels.compiled import kernel
from ..cluster.state.state import Simulation

REWARDS = {"dt": 0, "potential": 1, "jct": 2, "best_of_random": 3}
DT, POTENTIAL, JCT, BEST_OF_RANDOM = REWARDS.values()
RANDOM_RUNS = 5


def random_makespan_s(sim: Simulation) -> NDArray[np.float64]:
    """Return the smallest makespan of RANDOM_RUNS random runs of every scenario, shape (scenarios,).

    Args:
        sim: A simulation, of which row 0 is run and left at an end.

    Source: SPEC R5.
    """
    scenarios = sim.scenarios.jobs.size
    least_s = np.empty(scenarios)
    least_random_makespans_s(sim, np.arange(scenarios), RANDOM_RUNS, least_s)
    return np.maximum(least_s, 1e-9)


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
def cost_so_far_s(sim: Simulation, row: int, reward: int) -> float:
    """Return what an episode has cost until now; rewards are its falls, `best_of_random`'s only at the end.

    For `jct` this is the sum over jobs of the time since submission, up to now or to the finish, over all jobs.
    """
    state = sim.state
    if reward in (DT, BEST_OF_RANDOM):
        return float(state.now_s[row])
    if reward == POTENTIAL:
        return float(state.now_s[row] - potential_s(sim, row))
    return float(state.job_time_s[row] / sim.scenarios.jobs[state.scenario[row]])
