"""How runs end of jobs that hold on to their GPUs at a fault: as of all others, but on the GPUs that are left."""

import math

from ...dispatch.expected import note_leave, revise_end_s
from ...kernels.compiled import kernel
from ...kernels.heap import remove
from ...state.holding import begin_run, give_up_gpu, held_gpus, release_gpu
from ...state.state import Simulation
from ..event_log import FINISH, STOP, log_placement
from ..job_changes import come_back


@kernel
def _leave_held(sim: Simulation, row: int, job: int) -> None:
    """Take a job off the running jobs, and its GPUs from it."""
    state = sim.state
    if state.short[row, job] > 0:
        state.shrunk[row] -= 1
    begin_run(sim, row, job)
    if state.relieved_of[row, job] > 0:
        for gpu in range(sim.cluster.gpu_node.size):
            if state.kept_for[row, gpu] == job:
                release_gpu(sim, row, job, gpu)
    while state.first_gpu[row, job] >= 0:
        give_up_gpu(sim, row, job, state.first_gpu[row, job])
    remove(state.end_s, state.run_heap, state.run_place, state.running, row, job)
    note_leave(sim, row, job)
    state.job_events[row] += 1


@kernel
def finish_held(sim: Simulation, row: int, job: int) -> None:
    """End a running job, as `finish` does."""
    state = sim.state
    log_placement(sim, row, FINISH, job)
    state.overhead_gpu_s[row] += state.overhead_s[row, job] * held_gpus(sim, row, job)
    _leave_held(sim, row, job)
    state.finish_s[row, job] = state.now_s[row]
    state.finished[row] += 1
    state.quiet[row] = 0


@kernel
def stop_after_fault(sim: Simulation, row: int, job: int) -> None:
    """Stop a job that stands still after a fault, as `stop` does; what it did before its last switches counts too.

    Source: SPEC R11.
    """
    state = sim.state
    log_placement(sim, row, STOP, job)
    revise_end_s(sim, row, job)
    useful_s = useful_run_s(sim, row, job, state.struck_s[row, job])
    kept_s = last_checkpoint_s(sim, useful_s, state.since_s[row, job])
    lost_gpu_s = (state.now_s[row] - state.start_s[row, job] - max(0.0, kept_s)) * held_gpus(sim, row, job)
    if kept_s >= 0.0:
        state.saved_s[row, job] += state.fresh_s[row, job] + kept_s / state.slowdown[row, job]
    else:
        lost_gpu_s += state.fresh_gpu_s[row, job]
    state.lost_s[row, job] += lost_gpu_s / sim.scenarios.gpus[state.scenario[row], job]
    _leave_held(sim, row, job)
    come_back(sim, row, job)


@kernel
def last_checkpoint_s(sim: Simulation, useful_s: float, since_s: float) -> float:
    """Return when the last checkpoint was written in a time of useful running, from its beginning; -1 if none was.

    Args:
        sim: The simulation.
        useful_s: How long that time is.
        since_s: Time of useful running since the last checkpoint, before that.
    """
    checkpoint_s = sim.rules.checkpoint_s
    # 1e-9: as in `kept_s`
    intervals = math.floor((since_s + useful_s) / checkpoint_s + 1e-9) if checkpoint_s < math.inf else 0.0
    return max(0.0, min(useful_s, intervals * checkpoint_s - since_s)) if intervals > 0.0 else -1.0


@kernel
def useful_run_s(sim: Simulation, row: int, job: int, until_s: float) -> float:
    """Return how long a job has made progress since its last start or switch."""
    return float(max(0.0, until_s - sim.state.start_s[row, job] - sim.state.overhead_s[row, job]))
