"""What happens to jobs: they enter the queue and leave it, finish, and are stopped by faults or continue on other GPUs.

Of a job that holds on to its GPUs at a fault, what it did before its last switch is counted apart (`fresh_s`) until a
checkpoint holds it.
"""

import math

from ..files.errors import EndlessError
from ..kernels.compiled import kernel
from ..kernels.structures import push, remove
from ..placing import NO_RACK, SEVERAL_RACKS, common_divisor, slowdown_on_seats
from ..queue.expected import estimated_work_s, note_run_end, note_run_start, revise_end_s
from ..queue.index import index_enqueued_first, index_enqueued_last, unindex_dequeued
from ..queue.turns import enter_line, leave_line, line_of
from ..state.holding import add_usable_gpus, begin_run, give_up_gpu, held_gpus, is_slow, present_speed, release_gpu
from ..state.state import Simulation, has_turns, may_keep_gpus_after_fault, nodes_may_slow
from .event_log import FEWER_FAULTS, FINISH, MAX_STOPS, STOP, STOPPED_FOR_EVER, SWITCH, log_placement


@kernel
def _queued_gpu_s(sim: Simulation, row: int, job: int) -> float:
    return float(estimated_work_s(sim, row, job) * sim.scenarios.gpus[sim.state.scenario[row], job])


@kernel
def _begin_stay(sim: Simulation, row: int, job: int) -> None:
    """Begin a stay in the queue; the stays before it count as if they had led up to it."""
    state = sim.state
    state.entered_s[row, job] = state.now_s[row]
    state.queued_s[row, job] = state.now_s[row] - state.wait_s[row, job]
    state.queued[row] += 1
    state.queued_gpu_s[row] += _queued_gpu_s(sim, row, job)


@kernel
def link_in_queue(sim: Simulation, row: int, before: int, after: int) -> None:
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
    link_in_queue(sim, row, sim.state.tail[row], job)
    link_in_queue(sim, row, job, -1)
    _begin_stay(sim, row, job)
    if has_turns(sim):
        sim.state.came_back[row, job] = 0
        enter_line(sim, row, job, -1)
    index_enqueued_last(sim, row, job)


@kernel
def enqueue_first(sim: Simulation, row: int, job: int) -> None:
    """Put a job at the head of the queue."""
    link_in_queue(sim, row, job, sim.state.head[row])
    link_in_queue(sim, row, -1, job)
    _begin_stay(sim, row, job)
    if has_turns(sim):
        sim.state.came_back[row, job] = 1
        enter_line(sim, row, job, sim.state.line_head[row, line_of(sim, row, job)])
    index_enqueued_first(sim, row, job)


@kernel
def dequeue(sim: Simulation, row: int, job: int) -> None:
    """Take a job out of the queue, at the end of a stay there."""
    state = sim.state
    link_in_queue(sim, row, state.previous_job[row, job], state.next_job[row, job])
    # A sum of stays: now - queued_s would differ by rounding between jobs that waited equally long.
    state.wait_s[row, job] += state.now_s[row] - state.entered_s[row, job]
    state.queued[row] -= 1
    # Sums of floating numbers drift; an empty queue holds nothing.
    left_s = state.queued_gpu_s[row] - _queued_gpu_s(sim, row, job)
    state.queued_gpu_s[row] = left_s if state.queued[row] > 0 else 0.0
    if has_turns(sim):
        leave_line(sim, row, job)
    unindex_dequeued(sim, row, job)


@kernel
def _take_job_off_gpus(sim: Simulation, row: int, job: int) -> None:
    """Take a job off the running jobs, and its GPUs from it, of which those out of service stay unusable."""
    state, gpus = sim.state, 0
    if may_keep_gpus_after_fault(sim):
        _give_up_all_gpus(sim, row, job)
    gpu = state.first_gpu[row, job]
    while gpu >= 0:
        state.gpu_job[row, gpu] = -1
        if state.gpu_down[row, gpu] == 0:
            add_usable_gpus(sim, row, sim.cluster.gpu_node[gpu], 1)
        gpus += 1
        gpu = state.gpu_next[row, gpu]
    state.first_gpu[row, job] = -1
    state.busy[row] -= gpus
    remove(state.end_s, state.run_heap, state.run_place, state.running, row, job)
    note_run_end(sim, row, job)
    state.job_events[row] += 1


@kernel
def _give_up_all_gpus(sim: Simulation, row: int, job: int) -> None:
    """Take from a job the GPUs that it holds or keeps, where jobs hold on to their GPUs."""
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


@kernel
def finish(sim: Simulation, row: int, job: int) -> None:
    """End a running job."""
    state = sim.state
    log_placement(sim, row, FINISH, job)
    state.overhead_gpu_s[row] += state.overhead_s[row, job] * held_gpus(sim, row, job)
    _take_job_off_gpus(sim, row, job)
    state.finish_s[row, job] = state.now_s[row]
    state.finished[row] += 1
    state.quiet[row] = 0


@kernel
def checkpointed_run_s(sim: Simulation, row: int, job: int) -> float:
    """Return how much of the time that a running job has run its last checkpoint holds."""
    return max(0.0, last_checkpoint_s(sim, useful_run_s(sim, row, job, sim.state.now_s[row]), 0.0))


@kernel
def stop(sim: Simulation, row: int, job: int, kept_s: float) -> None:
    """Stop a running job, keep `kept_s` of the time that it has run, and put it at the head of the queue.

    Raises:
        EndlessError: If faults have stopped it so often that it will never end.

    Source: SPEC R11.
    """
    state = sim.state
    log_placement(sim, row, STOP, job)
    revise_end_s(sim, row, job)  # the estimate doubles here too, if it was outlived
    _take_job_off_gpus(sim, row, job)
    state.saved_s[row, job] += kept_s / state.slowdown[row, job]
    state.lost_s[row, job] += state.now_s[row] - state.start_s[row, job] - kept_s
    requeue_stopped(sim, row, job)


@kernel
def requeue_stopped(sim: Simulation, row: int, job: int) -> None:
    """Put a job that was stopped at the head of the queue.

    Raises:
        EndlessError: If faults have stopped it so often that it will never end.
    """
    state = sim.state
    state.stops[row, job] += 1
    if state.stops[row, job] > MAX_STOPS:
        raise EndlessError(STOPPED_FOR_EVER, FEWER_FAULTS)
    enqueue_first(sim, row, job)


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
    _take_job_off_gpus(sim, row, job)
    requeue_stopped(sim, row, job)


@kernel
def last_checkpoint_s(sim: Simulation, useful_s: float, since_s: float) -> float:
    """Return when the last checkpoint was written in `useful_s` of useful running, from its beginning; -1 if none was.

    It had run usefully for `since_s` since the checkpoint before.
    """
    checkpoint_s = sim.rules.checkpoint_s
    # 1e-9: a run of a whole number of intervals has saved the last of them also where rounding gives a little less
    intervals = math.floor((since_s + useful_s) / checkpoint_s + 1e-9) if checkpoint_s < math.inf else 0.0
    return max(0.0, min(useful_s, intervals * checkpoint_s - since_s)) if intervals > 0.0 else -1.0


@kernel
def useful_run_s(sim: Simulation, row: int, job: int, until_s: float) -> float:
    """Return how long a job has made progress since its last start or switch."""
    return float(max(0.0, until_s - sim.state.start_s[row, job] - sim.state.overhead_s[row, job]))


@kernel
def count_progress(sim: Simulation, row: int, job: int, until_s: float, gpus: int) -> None:
    """Count what a running job has done on `gpus` GPUs since its last start or switch, none of which it loses.

    It made progress until `until_s`; the time since then is lost.
    """
    revise_end_s(sim, row, job)  # the estimate doubles here too, if it was outlived
    state, slowdown = sim.state, sim.state.slowdown[row, job]
    useful_s = useful_run_s(sim, row, job, until_s)
    kept_s = last_checkpoint_s(sim, useful_s, state.since_s[row, job])
    if kept_s >= 0.0:
        state.saved_s[row, job] += state.fresh_s[row, job] + kept_s / slowdown
        state.fresh_s[row, job], state.fresh_gpu_s[row, job], state.since_s[row, job] = 0.0, 0.0, 0.0
    fresh_s = useful_s - max(0.0, kept_s)
    state.fresh_s[row, job] += fresh_s / slowdown
    state.fresh_gpu_s[row, job] += fresh_s * gpus
    state.since_s[row, job] += fresh_s
    lost_gpu_s = (state.now_s[row] - state.start_s[row, job] - useful_s) * gpus
    state.lost_s[row, job] += lost_gpu_s / sim.scenarios.gpus[state.scenario[row], job]


@kernel
def continue_after_switch(sim: Simulation, row: int, job: int) -> None:
    """Continue a job, whose progress is counted, on the GPUs that it holds now, after the time that a switch takes.

    Source: SPEC F8, F9.
    """
    continue_run(sim, row, job, sim.rules.switch_s)
    sim.state.switches[row] += 1
    sim.state.job_events[row] += 1
    log_placement(sim, row, SWITCH, job)


@kernel
def continue_run(sim: Simulation, row: int, job: int, pause_s: float) -> None:
    """Continue a job, whose progress is counted, as fast as its GPUs are now, after a pause."""
    state = sim.state
    remove(state.end_s, state.run_heap, state.run_place, state.running, row, job)
    note_run_end(sim, row, job)
    done_s = state.saved_s[row, job] + state.fresh_s[row, job]
    work_s = max(0.0, sim.scenarios.work_s[state.scenario[row], job] - done_s)
    state.struck_s[row, job] = -1.0
    state.overhead_s[row, job] = pause_s
    state.slowdown[row, job] = present_slowdown(sim, row, job)
    state.start_s[row, job] = state.now_s[row]
    state.end_s[row, job] = state.now_s[row] + (pause_s + work_s * state.slowdown[row, job])
    push(state.end_s, state.run_heap, state.run_place, state.running, row, job)
    note_run_start(sim, row, job)
    if nodes_may_slow(sim):
        note_slow_nodes(sim, row, job)


@kernel
def note_slow_nodes(sim: Simulation, row: int, job: int) -> None:
    """Note whether a running job has GPUs on slow nodes, relieved or not, and since when."""
    state, gpu = sim.state, sim.state.first_gpu[row, job]
    while gpu >= 0 and not is_slow(sim, row, sim.cluster.gpu_node[gpu]):
        gpu = state.gpu_next[row, gpu]
    if gpu < 0 and state.relieved_of[row, job] == 0:
        state.slowed_s[row, job] = -1.0
    elif state.slowed_s[row, job] < 0.0:
        state.slowed_s[row, job] = state.now_s[row]
        state.slowed[row] += 1


@kernel
def present_slowdown(sim: Simulation, row: int, job: int) -> float:
    """Return the slowdown of a running job on the GPUs that it holds."""
    state, cluster, scenario = sim.state, sim.cluster, sim.state.scenario[row]
    seats, nodes, rack, on_node, last, grain = 0, 0, NO_RACK, 0, -1, 0
    speed, intra, nic, uplink = math.inf, math.inf, math.inf, math.inf
    for gpu in range(cluster.gpu_node.size):
        if state.gpu_job[row, gpu] != job:
            continue
        seats += 1
        node = cluster.gpu_node[gpu]
        before, on_node = on_node, on_node + 1 if node == last else 1
        if on_node == 2:
            intra = min(intra, cluster.intra_bytes_per_s[node])
        if node == last:
            continue
        grain = common_divisor(grain, before)
        last = node
        nodes += 1
        speed = min(speed, present_speed(sim, row, node))
        nic = min(nic, cluster.nic_bytes_per_s[node])
        uplink = min(uplink, cluster.uplink_bytes_per_s[cluster.node_rack[node]])
        if rack == NO_RACK:
            rack = cluster.node_rack[node]
        elif rack != cluster.node_rack[node]:
            rack = SEVERAL_RACKS
    uplink, grain = uplink if rack == SEVERAL_RACKS else math.inf, common_divisor(grain, on_node)
    return slowdown_on_seats(sim, scenario, job, seats, nodes, speed, intra, nic, uplink, grain)
