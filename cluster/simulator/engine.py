"""The event simulator: what happens between decisions (docs/simulator.md).

`reset` puts a cluster at its beginning, `advance` runs it until a job is due, and then one of `start`, `pass_over`
(after a wait or a refused placement) answers. Where a real cluster says what happens instead
(scheduler/mirror/cluster_mirror.py), it is told by `begin_moment` and then `finish`, `stop`, `take_out`, `bring_back`
and `submit`, and `is_due` asks for the next decision.
"""

import math

from ..dispatch.expected import estimated_work_s, expected_end_s, note_leave, note_start
from ..dispatch.order import keeps_reservation, next_ageing_s, next_job
from ..dispatch.placing import begin_picks, picked_slowdown, undo_picks
from ..dispatch.queue_index import forget_index, note_first, note_gone, note_last, note_passed
from ..files.errors import EndlessError
from ..kernels.compiled import kernel
from ..kernels.heap import heapify, push, remove, sink
from ..state.state import Simulation
from .event_log import FAULT, FINISH, REPAIR, START, STOP, SUBMIT, begin_event, log_placement, name_gpu
from .fault_process import next_fault_s, repaired_s
from .signals import check_signals, look

NO_ROW = "there is no such row of the simulation, or no such scenario, or the row was not reset"
# Where more than so much happens, faults come faster than anything could be done.
MOST_STOPS = 100_000  # of one job
MOST_CHANGES = 1_000_000  # faults and repairs at one moment
MOST_QUIET = 5_000_000  # moments without a submission, a start or an end of a job, whatever else is decided at them
STOPPED_FOR_EVER = "hazard_per_s: faults stopped a job 100,000 times before it could end"
FAILING_AT_ONCE = "hazard_per_s: a million faults came at one moment, so that time stands still"
NOTHING_ELSE = "hazard_per_s: faults and repairs filled five million moments in which no job could start or end"
FEWER_FAULTS = "lower the hazards, checkpoint_s or repair_mean_s of the cluster file, or let jobs ask fewer GPUs"


@kernel
def _reset_sources(sim: Simulation, row: int) -> None:
    state = sim.state
    count = 0
    for source in range(state.source_s.shape[1]):
        state.source_since_s[row, source] = 0.0
        state.source_k[row, source] = 0
        state.source_failed[row, source] = 0
        state.source_place[row, source] = -1
        state.source_s[row, source] = next_fault_s(sim, row, source, 0.0)
        if state.source_s[row, source] < math.inf:
            state.source_heap[row, count] = source
            count += 1
    state.source_count[row] = count
    heapify(state.source_s, state.source_heap, state.source_place, state.source_count, row)


@kernel
def _reset_jobs(sim: Simulation, row: int, scenario: int) -> None:
    state = sim.state
    # All columns: what a longer workload left in the row must not show up in the outcome of a shorter one.
    for job in range(state.guess_s.shape[1]):
        state.guess_s[row, job] = sim.scenarios.estimate_s[scenario, job]
        state.saved_s[row, job] = 0.0
        state.first_start_s[row, job] = -1.0 if job < sim.scenarios.jobs[scenario] else 0.0
        state.finish_s[row, job] = 0.0
        state.lost_s[row, job] = 0.0
        state.wait_s[row, job] = 0.0
        state.stops[row, job] = 0
        state.passed[row, job] = -1
        state.first_gpu[row, job] = -1
        state.run_place[row, job] = -1


@kernel
def _reset_gpus(sim: Simulation, row: int) -> None:
    state, cluster = sim.state, sim.cluster
    state.usable[row] = cluster.gpu_node.size
    for gpu in range(cluster.gpu_node.size):
        state.gpu_job[row, gpu] = -1
        state.gpu_down[row, gpu] = 0
    for node in range(cluster.speed.size):
        state.free[row, node] = cluster.first_gpu[node + 1] - cluster.first_gpu[node]
        state.taken[row, node] = 0


@kernel
def reset(sim: Simulation, row: int, scenario: int) -> None:
    """Put a row at time 0 of a scenario, with nothing submitted.

    Raises:
        ValueError: If there is no such row or scenario.
    """
    state = sim.state
    if not (0 <= row < state.scenario.size and 0 <= scenario < sim.scenarios.jobs.size):
        raise ValueError(NO_ROW)
    check_signals()
    state.scenario[row] = scenario
    state.now_s[row] = 0.0
    state.moment[row] = -1
    state.finished[row] = 0
    state.submitted[row] = 0
    state.estimated[row] = 0
    state.estimates_s[row] = 0.0
    state.quiet[row] = 0
    state.unlooked[row] = 0
    state.head[row] = -1
    state.tail[row] = -1
    state.queued[row] = 0
    state.queued_gpu_s[row] = 0.0
    state.busy[row] = 0
    state.down[row] = 0
    state.waited[row] = -2
    state.rested[row] = -2
    state.current[row] = -1
    state.running[row] = 0
    state.ends_kept[row] = 0
    forget_index(sim, row)
    state.reserved_for[row] = 0
    state.busy_gpu_s[row] = 0.0
    state.down_gpu_s[row] = 0.0
    state.overhead_gpu_s[row] = 0.0
    state.job_time_s[row] = 0.0
    state.job_events[row] = 0
    state.decisions[row] = 0
    _reset_gpus(sim, row)
    _reset_jobs(sim, row, scenario)
    _reset_sources(sim, row)


@kernel
def _queued_gpu_s(sim: Simulation, row: int, job: int) -> float:
    return estimated_work_s(sim, row, job) * sim.scenarios.gpus[sim.state.scenario[row], job]


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
    note_last(sim, row, job)


@kernel
def enqueue_first(sim: Simulation, row: int, job: int) -> None:
    """Put a job at the head of the queue."""
    link(sim, row, job, sim.state.head[row])
    link(sim, row, -1, job)
    _count_in(sim, row, job)
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
    note_gone(sim, row, job)


@kernel
def _leave_gpus(sim: Simulation, row: int, job: int) -> None:
    """Free a running job's GPUs, of which those out of service stay unusable, and take it off the running jobs."""
    state = sim.state
    gpus = 0
    gpu = state.first_gpu[row, job]
    while gpu >= 0:
        state.gpu_job[row, gpu] = -1
        if state.gpu_down[row, gpu] == 0:
            state.free[row, sim.cluster.gpu_node[gpu]] += 1
            state.usable[row] += 1
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
    # 1e-9: a run of a whole number of intervals has saved the last of them also where rounding says a little less
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
    expected_end_s(sim, row, job)  # the estimate doubles here too, if it was outlived
    _leave_gpus(sim, row, job)
    state.saved_s[row, job] += kept_s / state.slowdown[row, job]
    state.lost_s[row, job] += state.now_s[row] - state.start_s[row, job] - kept_s
    state.stops[row, job] += 1
    if state.stops[row, job] > MOST_STOPS:
        raise EndlessError(STOPPED_FOR_EVER, FEWER_FAULTS)
    enqueue_first(sim, row, job)


@kernel
def _source_gpus(sim: Simulation, source: int) -> tuple[int, int]:
    """Return the first GPU of a fault source and the one after its last."""
    cluster = sim.cluster
    gpus, nodes = cluster.gpu_node.size, cluster.speed.size
    if source < gpus:
        return source, source + 1
    if source < gpus + nodes:
        node = source - gpus
        return cluster.first_gpu[node], cluster.first_gpu[node + 1]
    rack = source - gpus - nodes
    return cluster.first_gpu[cluster.first_node[rack]], cluster.first_gpu[cluster.first_node[rack + 1]]


@kernel
def take_out(sim: Simulation, row: int, first: int, after: int) -> None:
    """Take GPUs out of service once more; jobs on them go on."""
    state = sim.state
    opened = False
    for gpu in range(first, after):
        state.gpu_down[row, gpu] += 1
        if state.gpu_down[row, gpu] == 1:
            state.down[row] += 1
            if not opened:
                opened = True
                kept = begin_event(sim, row, FAULT, -1)
            if kept:
                name_gpu(sim, gpu)
            if state.gpu_job[row, gpu] < 0:
                state.free[row, sim.cluster.gpu_node[gpu]] -= 1
                state.usable[row] -= 1


@kernel
def _lose_gpus(sim: Simulation, row: int, first: int, after: int) -> None:
    """Take GPUs out of service and stop the jobs on them, lowest index first."""
    state = sim.state
    take_out(sim, row, first, after)
    while True:
        lowest = -1
        for gpu in range(first, after):
            job = state.gpu_job[row, gpu]
            if job >= 0 and (lowest < 0 or job < lowest):
                lowest = job
        if lowest < 0:
            break
        stop(sim, row, lowest, kept_s(sim, row, lowest))


@kernel
def bring_back(sim: Simulation, row: int, first: int, after: int) -> None:
    """Undo one `take_out` of GPUs."""
    state = sim.state
    opened = False
    for gpu in range(first, after):
        state.gpu_down[row, gpu] -= 1
        if state.gpu_down[row, gpu] == 0:
            state.down[row] -= 1
            if state.gpu_job[row, gpu] < 0:
                state.free[row, sim.cluster.gpu_node[gpu]] += 1
                state.usable[row] += 1
            if not opened:
                opened = True
                kept = begin_event(sim, row, REPAIR, -1)
            if kept:
                name_gpu(sim, gpu)


@kernel
def _change_source(sim: Simulation, row: int, source: int) -> None:
    """Let a fault source fail, or come back, and set when it changes next."""
    state = sim.state
    first, after = _source_gpus(sim, source)
    fails = state.source_failed[row, source] == 0
    state.source_since_s[row, source] = state.now_s[row]
    if fails:
        _lose_gpus(sim, row, first, after)
        state.source_s[row, source] = repaired_s(sim, row, source)
        state.source_failed[row, source] = 1
    if not fails or state.source_s[row, source] <= state.now_s[row]:
        bring_back(sim, row, first, after)
        state.source_k[row, source] += 1
        state.source_failed[row, source] = 0
        state.source_s[row, source] = next_fault_s(sim, row, source, state.now_s[row])
    heap, place, count = state.source_heap, state.source_place, state.source_count
    if state.source_s[row, source] == math.inf:
        remove(state.source_s, heap, place, count, row, source)
    else:
        sink(state.source_s, heap, place, count, row, 0)


@kernel
def next_time_s(sim: Simulation, row: int) -> float:
    """Return when something happens next, inf for never."""
    state = sim.state
    time_s = next_ageing_s(sim, row)
    if state.running[row] > 0:
        time_s = min(time_s, state.end_s[row, state.run_heap[row, 0]])
    if state.source_count[row] > 0:
        time_s = min(time_s, state.source_s[row, state.source_heap[row, 0]])
    if state.submitted[row] < sim.scenarios.jobs[state.scenario[row]]:
        time_s = min(time_s, sim.scenarios.submit_s[state.scenario[row], state.submitted[row]])
    return time_s


@kernel
def begin_moment(sim: Simulation, row: int, time_s: float) -> None:
    """Let time pass until the next moment at which something happens."""
    state = sim.state
    passed_s = time_s - state.now_s[row]
    state.busy_gpu_s[row] += state.busy[row] * passed_s
    state.down_gpu_s[row] += state.down[row] * passed_s
    state.job_time_s[row] += (state.submitted[row] - state.finished[row]) * passed_s
    state.now_s[row] = time_s
    state.moment[row] += 1


@kernel
def submit(sim: Simulation, row: int) -> None:
    """Put the next job of the scenario at the end of the queue."""
    state = sim.state
    job = state.submitted[row]
    begin_event(sim, row, SUBMIT, job)
    enqueue_last(sim, row, job)
    state.submitted[row] += 1
    state.quiet[row] = 0
    state.estimated[row] += 1
    state.estimates_s[row] += sim.scenarios.estimate_s[state.scenario[row], job]
    state.job_events[row] += 1


@kernel
def live_through(sim: Simulation, row: int, time_s: float) -> None:
    """Let everything happen that happens at one moment: finishes, faults and repairs, submissions."""
    state = sim.state
    begin_moment(sim, row, time_s)
    while state.running[row] > 0 and state.end_s[row, state.run_heap[row, 0]] <= time_s:
        finish(sim, row, state.run_heap[row, 0])
    jobs = sim.scenarios.jobs[state.scenario[row]]
    if state.finished[row] == jobs:
        return
    changes = 0
    while state.source_count[row] > 0 and state.source_s[row, state.source_heap[row, 0]] <= time_s:
        _change_source(sim, row, state.source_heap[row, 0])
        look(sim, row, 1)
        changes += 1
        if changes > MOST_CHANGES + 4 * state.source_count[row]:
            raise EndlessError(FAILING_AT_ONCE, FEWER_FAULTS)
    submit_s = sim.scenarios.submit_s[state.scenario[row]]
    while state.submitted[row] < jobs and submit_s[state.submitted[row]] <= time_s:
        submit(sim, row)


@kernel
def is_due(sim: Simulation, row: int) -> bool:
    """Say whether a job is due at this moment, and make it the current one."""
    state = sim.state
    if state.queued[row] > 0 and state.usable[row] > 0:
        job = next_job(sim, row)
        if job >= 0:
            begin_picks(sim, row, job)
            return True
    state.current[row] = -1
    return False


@kernel
def advance(sim: Simulation, row: int) -> bool:
    """Run a row until a job is due; False when the last job has ended or the simulation is cut off.

    Raises:
        ValueError: If there is no such row, or it was not reset.
        EndlessError: If faults are so frequent that the jobs will never end.
    """
    state = sim.state
    if not 0 <= row < state.scenario.size or state.scenario[row] < 0:
        raise ValueError(NO_ROW)
    jobs = sim.scenarios.jobs[state.scenario[row]]
    while True:
        look(sim, row, sim.cluster.speed.size)
        if is_due(sim, row):
            return True
        if state.finished[row] == jobs:
            return False
        time_s = next_time_s(sim, row)
        if time_s > sim.rules.limit_s or time_s == math.inf:
            return False
        state.quiet[row] += 1
        live_through(sim, row, time_s)
        if state.quiet[row] > MOST_QUIET:
            raise EndlessError(NOTHING_ELSE, FEWER_FAULTS)


@kernel
def pass_over(sim: Simulation, row: int) -> None:
    """Give the current job's picks back and pass it over until the next event."""
    state = sim.state
    undo_picks(sim, row)
    state.passed[row, state.current[row]] = state.moment[row]
    note_passed(sim, row, state.current[row])


@kernel
def wait(sim: Simulation, row: int) -> None:
    """Let the next event pass instead of placing the current job; the order regime may offer others before that."""
    sim.state.decisions[row] += 1
    sim.state.waited[row] = sim.state.moment[row]
    pass_over(sim, row)


@kernel
def start(sim: Simulation, row: int) -> bool:
    """Start the current job on its picks; False if that would break a reservation, and the job is passed over."""
    state = sim.state
    job = state.current[row]
    slowdown = picked_slowdown(sim, row)
    state.decisions[row] += 1
    if not keeps_reservation(sim, row, slowdown):
        pass_over(sim, row)
        return False
    dequeue(sim, row, job)
    now_s = state.now_s[row]
    gpus = 0
    gpu = state.first_gpu[row, job]
    while gpu >= 0:
        state.taken[row, sim.cluster.gpu_node[gpu]] = 0
        gpus += 1
        gpu = state.gpu_next[row, gpu]
    overhead_s = sim.rules.restart_s if state.stops[row, job] > 0 else 0.0
    work_s = sim.scenarios.work_s[state.scenario[row], job] - state.saved_s[row, job]
    state.overhead_s[row, job] = overhead_s
    state.slowdown[row, job] = slowdown
    state.start_s[row, job] = now_s
    state.end_s[row, job] = now_s + (overhead_s + work_s * slowdown)
    if state.first_start_s[row, job] < 0.0:
        state.first_start_s[row, job] = now_s
    state.busy[row] += gpus
    push(state.end_s, state.run_heap, state.run_place, state.running, row, job)
    note_start(sim, row, job)
    state.job_events[row] += 1
    state.quiet[row] = 0
    log_placement(sim, row, START, job)
    return True
