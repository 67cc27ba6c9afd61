"""A fault that takes GPUs from a job which holds on to them, from the fault until somebody acts on it."""

from ...kernels.compiled import kernel
from ...kernels.heap import push, remove
from ...state.holding import claim_gpu, give_up_gpu, held_gpus, is_struck, swap_roles, take_back_gpu
from ...state.state import Simulation
from .backups import drop_failed, relieved_by
from .ending import finish_held, stop_after_fault
from .progress import go_on, settle
from .seats import NOBODY, average_s, find_replacement, note_records


@kernel
def strike(sim: Simulation, row: int, first: int, after: int) -> None:
    """Let the members of rings on GPUs that have just failed die; their jobs stand still until that is detected.

    A job that stands still already does so no longer for that.
    """
    state = sim.state
    for gpu in range(first, after):
        job = state.gpu_job[row, gpu]
        if job < 0:
            continue
        state.died[row, gpu] = 1
        if state.struck_s[row, job] < 0.0:
            remove(state.end_s, state.run_heap, state.run_place, state.running, row, job)
            state.struck_s[row, job] = state.now_s[row]
            state.end_s[row, job] = state.now_s[row] + sim.rules.detection_s
            push(state.end_s, state.run_heap, state.run_place, state.running, row, job)


@kernel
def end_held(sim: Simulation, row: int) -> None:
    """End the runs that are over at this moment, and act on the faults that are detected now; lowest job first."""
    state = sim.state
    while state.running[row] > 0 and state.end_s[row, state.run_heap[row, 0]] <= state.now_s[row]:
        job = state.run_heap[row, 0]
        if is_struck(sim, row, job):
            heed(sim, row, job)
        else:
            finish_held(sim, row, job)


@kernel
def heed(sim: Simulation, row: int, job: int) -> None:
    """Act on the faults of a job: form its ring anew, or stop it where that is the rule or nobody in it lives.

    Source: SPEC F5 to F10.
    """
    if not sim.rules.switching or not has_living(sim, row, job):
        stop_after_fault(sim, row, job)
        return
    drop_failed(sim, row, job)
    before_s, types = average_s(sim, row, job), note_records(sim, row, job)
    settle(sim, row, job, sim.state.struck_s[row, job], held_gpus(sim, row, job))
    for gpu in range(sim.cluster.gpu_node.size):
        if sim.state.gpu_job[row, gpu] == job and sim.state.died[row, gpu] == 1:
            _mend(sim, row, job, gpu, before_s, types)
    go_on(sim, row, job)


@kernel
def has_living(sim: Simulation, row: int, job: int) -> bool:
    """Say whether a job has a member from which the others can get its state."""
    gpu = sim.state.first_gpu[row, job]
    while gpu >= 0:
        if sim.state.died[row, gpu] == 0:
            return True
        gpu = sim.state.gpu_next[row, gpu]
    return False


@kernel
def _mend(sim: Simulation, row: int, job: int, gpu: int, before_s: float, types: int) -> None:
    """Fill the seat of a member that died: on its own GPU if that is back, else on another; or give the seat up.

    The seat of a backup is that of the slow GPU once more.
    """
    state = sim.state
    state.died[row, gpu] = 0
    if state.gpu_down[row, gpu] == 0:
        return
    slow = relieved_by(sim, row, job, gpu)
    if slow >= 0:
        take_back_gpu(sim, row, job, slow)
        return
    found = find_replacement(sim, row, job, gpu, before_s, types)
    if found != NOBODY:
        claim_gpu(sim, row, job, found)
        swap_roles(sim, row, found, gpu)
    else:
        if state.short[row, job] == 0:
            state.shrunk[row] += 1
        state.short[row, job] += 1
    give_up_gpu(sim, row, job, gpu)
