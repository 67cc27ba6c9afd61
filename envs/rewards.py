"""Rewards, compiled. Each pays for the time that passed between two decisions; gamma is 1.

| name | pays | sums over an episode to |
| --- | --- | --- |
| `dt` | -time | -makespan |
| `potential` | -time + phi after - phi before, phi = -(GPU-time that running jobs have left) / GPUs | -makespan |
| `jct` | -time x jobs in the system / jobs | -mean JCT |

All are in units of the scenario's ideal time (work over the speed of the whole cluster), so that workloads of any
length weigh alike. Source: DESIGN 6; SPEC R5 for the relative scale.
"""

from ..cluster.compiled import kernel
from ..cluster.state import Simulation

REWARDS = {"dt": 0, "potential": 1, "jct": 2}
DT, POTENTIAL, JCT = REWARDS["dt"], REWARDS["potential"], REWARDS["jct"]


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
    """Return what an episode has cost until now; rewards are its falls.

    For `jct` this is the sum over jobs of the time since submission, up to now or to the finish, over all jobs.
    """
    state = sim.state
    if reward == DT:
        return float(state.now_s[row])
    if reward == POTENTIAL:
        return float(state.now_s[row] - potential_s(sim, row))
    return float(state.job_time_s[row] / sim.scenarios.jobs[state.scenario[row]])
