"""Jobs that run on fewer GPUs than they ask for win seats back."""

from ...kernels.compiled import kernel
from ...state.holding import claim_gpu, give_up_gpu, held_gpus, is_struck
from ...state.state import Simulation
from .progress import go_on, present_slowdown, settle
from .seats import NOBODY, average_s, find_replacement, note_records


@kernel
def win_back(sim: Simulation, row: int) -> None:
    """Let shrunk jobs take idle GPUs, lowest job first, before any job of the queue may."""
    if sim.state.shrunk[row] == 0:
        return
    job = _next_shrunk(sim, row, -1)
    while job >= 0:
        _grow(sim, row, job)
        job = _next_shrunk(sim, row, job)


@kernel
def _next_shrunk(sim: Simulation, row: int, after: int) -> int:
    """Return the lowest job beyond another one that runs on fewer GPUs than it asks for, -1 if there is none."""
    lowest = -1
    for i in range(sim.state.running[row]):
        job = sim.state.run_heap[row, i]
        if job > after and (lowest < 0 or job < lowest) and sim.state.short[row, job] > 0:
            lowest = job
    return lowest


@kernel
def _grow(sim: Simulation, row: int, job: int) -> None:
    """Give a job seats back, one by one, while each is to make it faster."""
    state = sim.state
    if is_struck(sim, row, job):
        return
    held, won, slowdown = held_gpus(sim, row, job), 0, state.slowdown[row, job]
    types, behind = note_records(sim, row, job), sim.cluster.gpu_node.size
    while state.short[row, job] > 0:
        gpu = find_replacement(sim, row, job, behind, average_s(sim, row, job), types)
        if gpu == NOBODY:
            break
        claim_gpu(sim, row, job, gpu)
        faster = present_slowdown(sim, row, job)
        if not sim.rules.ring and faster >= slowdown:
            give_up_gpu(sim, row, job, gpu)
            break
        slowdown = faster
        state.short[row, job] -= 1
        won += 1
    if won == 0:
        return
    if state.short[row, job] == 0:
        state.shrunk[row] -= 1
    settle(sim, row, job, state.now_s[row], held)
    go_on(sim, row, job)
