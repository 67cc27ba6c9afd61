"""What happens to jobs: they come into the queue and leave it, end, and are stopped by faults."""

import math

from ..files.errors import EndlessError
from ..kernels.compiled import kernel
from ..kernels.structures import remove
from ..queue.expected import estimated_work_s, note_leave, revise_end_s
from ..queue.index import note_first, note_gone, note_last
from ..queue.turns import enter_line, has_turns, leave_line, line_of
from ..state.holding import count_by_class, has_classes
from ..state.state import Simulation
from .event_log import FEWER_FAULTS, FINISH, MAX_STOPS, STOP, STOPPED_FOR_EVER, log_placement


@kernel
def _queued_gpu_s(sim: Simulation, row: int, job: int) -> float:
    return float(estimated_work_s(sim, row, job) * sim.scenarios.gpus[sim.state.scenario[row], job])


@kernel
def _count_in(sim: Simulation, row: int, job: int) -> None:
    """Begin a stay in the queue; the stays before it count as if they had led up to it."""
    state = sim.state
    state.entered_s[row, job] = state.now_s[row]
    state.queued_s[row, job] = state.now_s[row] - state.wait_s[row, job]
    state.queued[row] += 1
    state.queued_gpu_s[row] += _queued_gpu_s(sim, row, job)


@kernel
def link(sim: Simulation, row: int, before: int, after: int) -> None:
    """Let one waiting job follow another; -1 for the ends of the queue."""
    state = sim.state
    if before < 0:
        state.head[row] = after
    else:
        state.next_job[row, before] = after
    if after < 0:
        state.tail[row] = before
    else:
        state.previous_job[row, after] = before


@kernel
def enqueue_last(sim: Simulation, row: int, job: int) -> None:
    """Put a job at the end of the queue."""
    link(sim, row, sim.state.tail[row], job)
    link(sim, row, job, -1)
    _count_in(sim, row, job)
    if has_turns(sim):
        sim.state.came_back[row, job] = 0
        enter_line(sim, row, job, -1)
    note_last(sim, row, job)


@kernel
def enqueue_first(sim: Simulation, row: int, job: int) -> None:
    """Put a job at the head of the queue."""
    link(sim, row, job, sim.state.head[row])
    link(sim, row, -1, job)
    _count_in(sim, row, job)
    if has_turns(sim):
        sim.state.came_back[row, job] = 1
        enter_line(sim, row, job, sim.state.line_head[row, line_of(sim, row, job)])
    note_first(sim, row, job)


@kernel
def dequeue(sim: Simulation, row: int, job: int) -> None:
    """Take a job out of the queue, at the end of a stay there."""
    state = sim.state
    link(sim, row, state.previous_job[row, job], state.next_job[row, job])
    # A sum of stays: now - queued_s would differ by rounding between jobs that waited equally long.
    state.wait_s[row, job] += state.now_s[row] - state.entered_s[row, job]
    state.queued[row] -= 1
    # Sums of floating numbers drift; an empty queue holds nothing.
    left_s = state.queued_gpu_s[row] - _queued_gpu_s(sim, row, job)
    state.queued_gpu_s[row] = left_s if state.queued[row] > 0 else 0.0
    if has_turns(sim):
        leave_line(sim, row, job)
    note_gone(sim, row, job)


@kernel
def _leave_gpus(sim: Simulation, row: int, job: int) -> None:
    """Free a running job's GPUs, of which those out of service stay unusable, and take it off the running jobs."""
    state, differ = sim.state, has_classes(sim)
    gpus = 0
    gpu = state.first_gpu[row, job]
    while gpu >= 0:
        state.gpu_job[row, gpu] = -1
        if state.gpu_down[row, gpu] == 0:
            state.free[row, sim.cluster.gpu_node[gpu]] += 1
            state.usable[row] += 1
            if differ:
                count_by_class(sim, row, sim.cluster.gpu_node[gpu], 1)
        gpus += 1
        gpu = state.gpu_next[row, gpu]
    state.first_gpu[row, job] = -1
    state.busy[row] -= gpus
    remove(state.end_s, state.run_heap, state.run_place, state.running, row, job)
    note_leave(sim, row, job)
    state.job_events[row] += 1


@kernel
def finish(sim: Simulation, row: int, job: int) -> None:
    """End a running job."""
    state = sim.state
    log_placement(sim, row, FINISH, job)
    _leave_gpus(sim, row, job)
    state.finish_s[row, job] = state.now_s[row]
    gpus = sim.scenarios.gpus[state.scenario[row], job]
    state.overhead_gpu_s[row] += state.overhead_s[row, job] * gpus
    state.finished[row] += 1
    state.quiet[row] = 0


@kernel
def kept_s(sim: Simulation, row: int, job: int) -> float:
    """Return how much of the time that a running job has run its last checkpoint holds."""
    state = sim.state
    useful_s = max(0.0, state.now_s[row] - state.start_s[row, job] - state.overhead_s[row, job])
    checkpoint_s = sim.rules.checkpoint_s
    # 1e-9: a run of a whole number of intervals has saved the last of them also where rounding gives a little less
    intervals = math.floor(useful_s / checkpoint_s + 1e-9) if checkpoint_s < math.inf else 0.0
    return min(useful_s, intervals * checkpoint_s) if intervals > 0.0 else 0.0


@kernel
def stop(sim: Simulation, row: int, job: int, kept_s: float) -> None:
    """Stop a running job, keep what its checkpoints hold, and put it at the head of the queue.

    Args:
        sim: The simulation.
        row: Its row.
        job: The job.
        kept_s: How much of the time that it has run is kept.

    Raises:
        EndlessError: If faults have stopped it so often that it will never end.

    Source: SPEC R11.
    """
    state = sim.state
    log_placement(sim, row, STOP, job)
    revise_end_s(sim, row, job)  # the estimate doubles here too, if it was outlived
    _leave_gpus(sim, row, job)
    state.saved_s[row, job] += kept_s / state.slowdown[row, job]
    state.lost_s[row, job] += state.now_s[row] - state.start_s[row, job] - kept_s
    requeue(sim, row, job)


@kernel
def requeue(sim: Simulation, row: int, job: int) -> None:
    """Put a job that was stopped at the head of the queue.

    Raises:
        EndlessError: If faults have stopped it so often that it will never end.
    """
    state = sim.state
    state.stops[row, job] += 1
    if state.stops[row, job] > MAX_STOPS:
        raise EndlessError(STOPPED_FOR_EVER, FEWER_FAULTS)
    enqueue_first(sim, row, job)
