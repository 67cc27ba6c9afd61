"""Pays a placement at once for the GPU-time that it takes."""

from ...cluster.kernels.compiled import kernel
from ...cluster.state.state import Simulation
from .reward import Reward


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
def time_less_potential_s(sim: Simulation, row: int) -> float:
    """Return the time since the beginning of the episode minus the potential."""
    return float(sim.state.now_s[row] - potential_s(sim, row))


REWARD = Reward(
    "minus the time that passed and the GPU-time that a placement takes, over all GPUs; sums to minus the makespan",
    time_less_potential_s,
)
