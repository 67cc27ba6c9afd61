"""The event simulator: from one decision to the next (docs/simulator.md).

`reset` puts a cluster at time 0. `advance` runs it until a job may start. The policy then picks GPUs for that job
(cluster/placing.py) and calls `start`, or `wait`; and `advance` goes on.

The live scheduler has real events in place of imagined ones (scheduler/mirror/cluster_mirror.py): it calls
`move_clock`, then `finish`, `stop`, `take_gpus_out`, `bring_gpus_back` and `submit_next_job`, and `find_due_job`.
"""

import math

from ..files.errors import EndlessError
from ..kernels.compiled import kernel
from ..kernels.structures import heapify, push
from ..placing import (
    make_job_due,
    picked_slowdown,
    refuse_unsuited_picks,
    undo_picks,
)
from ..queue.expected import note_run_start, start_overhead_s
from ..queue.index import forget_index, hide_passed_over
from ..queue.order import choose_due_job, keeps_reservation, next_ageing_s
from ..queue.turns import forget_turns, take_turn
from ..state.beliefs import reset_beliefs
from ..state.holding import begin_run, fill_pool, reset_usable, show_only_class
from ..state.state import (
    Simulation,
    gives_backups,
    has_need_classes,
    has_turns,
    may_keep_gpus_after_fault,
    nodes_may_slow,
)
from .event_log import (
    FAILING_AT_ONCE,
    FEWER_FAULTS,
    FEWER_SLOW,
    MAX_CHANGES,
    MAX_QUIET,
    NO_ROW,
    NOTHING_BUT_SLOW,
    NOTHING_ELSE,
    START,
    SUBMIT,
    begin_event,
    check_signals,
    log_placement,
    poll_signals,
)
from .faults import end_due_runs, next_fault_s, toggle_source
from .jobs import dequeue, enqueue_last, finish, note_slow_nodes, present_slowdown
from .seats import win_seats_back
from .slow_nodes import next_relief_s, next_toggle_s, node_toggle_s, toggle_due_nodes, update_backups


@kernel
def advance(sim: Simulation, row: int) -> bool:
    """Advance a row to its next decision; False at the end of the simulation, where no job is due any more.

    1. If a job may start at this moment, make it the current one and return: a policy decides (`find_due_job`).
    2. If all jobs have finished, the simulation has ended.
    3. Find the time of the next event (`next_event_s`). If there is none, or it lies beyond the limit of the rules,
       the simulation has ended.
    4. Move the clock there and handle all events of that moment (`handle_events`).
    5. Continue with step 1.

    Raises:
        ValueError: If there is no such row, or it was not reset.
        EndlessError: If faults are so frequent that the jobs will never end.
    """
    state = sim.state
    if not 0 <= row < state.scenario.size or state.scenario[row] < 0:
        raise ValueError(NO_ROW)
    jobs = sim.scenarios.jobs[state.scenario[row]]
    while True:
        poll_signals(sim, row, sim.cluster.speed.size)
        if find_due_job(sim, row):
            return True
        if state.finished[row] == jobs:
            return False
        time_s = next_event_s(sim, row)
        if time_s > sim.rules.limit_s or time_s == math.inf:
            return False
        state.quiet[row] += 1
        handle_events(sim, row, time_s)
        if state.quiet[row] > MAX_QUIET:
            if sim.rules.slow_per_s > 0.0:
                raise EndlessError(NOTHING_BUT_SLOW, FEWER_SLOW)
            raise EndlessError(NOTHING_ELSE, FEWER_FAULTS)


@kernel
def find_due_job(sim: Simulation, row: int) -> bool:
    """Make the job that may start at this moment the current one; False if none may."""
    state = sim.state
    if has_need_classes(sim):
        show_only_class(sim, row, 0)
    if state.queued[row] > 0 and state.usable[row] > 0:
        job = choose_due_job(sim, row)
        if job >= 0:
            make_job_due(sim, row, job)
            return True
    state.current[row] = -1
    return False


@kernel
def next_event_s(sim: Simulation, row: int) -> float:
    """Return the time of the next event: of ageing, jobs, fault sources, submissions or slow nodes; inf for none."""
    state = sim.state
    time_s = next_ageing_s(sim, row)
    if state.running[row] > 0:
        time_s = min(time_s, state.end_s[row, state.run_heap[row, 0]])
    if state.source_count[row] > 0:
        time_s = min(time_s, state.source_s[row, state.source_heap[row, 0]])
    if state.submitted[row] < sim.scenarios.jobs[state.scenario[row]]:
        time_s = min(time_s, sim.scenarios.submit_s[state.scenario[row], state.submitted[row]])
    if nodes_may_slow(sim):
        time_s = min(time_s, next_toggle_s(sim, row))
    if gives_backups(sim):
        time_s = min(time_s, next_relief_s(sim, row))
    return time_s


@kernel
def handle_events(sim: Simulation, row: int, time_s: float) -> None:
    """Move the clock and handle all events of that moment.

    1. Move the clock (`move_clock`).
    2. End the runs that are over (`finish`). Where jobs hold their GPUs beyond a fault, also act on the faults that are
       detected now (`end_due_runs`). If that was the last job, nothing else matters.
    3. Let fault sources fail or recover (`toggle_due_sources`).
    4. Let nodes become slow or well (`toggle_due_nodes`).
    5. Act on faults of this very moment, if they are detected at once; let shrunk jobs win seats back.
    6. Give jobs on slow nodes backups, and take backups back (`update_backups`).
    7. Submit the jobs whose time has come (`submit_due`).
    """
    state = sim.state
    move_clock(sim, row, time_s)
    holding = may_keep_gpus_after_fault(sim)
    if holding:
        end_due_runs(sim, row)
    else:
        while state.running[row] > 0 and state.end_s[row, state.run_heap[row, 0]] <= time_s:
            finish(sim, row, state.run_heap[row, 0])
    if state.finished[row] == sim.scenarios.jobs[state.scenario[row]]:
        return
    toggle_due_sources(sim, row)
    if nodes_may_slow(sim):
        toggle_due_nodes(sim, row)
    if holding:
        end_due_runs(sim, row)
        win_seats_back(sim, row)
    if gives_backups(sim):
        update_backups(sim, row)
    submit_due(sim, row)


@kernel
def move_clock(sim: Simulation, row: int, time_s: float) -> None:
    """Move the clock to the next moment, and add what GPUs and jobs spent until then to the sums of the row."""
    state = sim.state
    passed_s = time_s - state.now_s[row]
    state.busy_gpu_s[row] += state.busy[row] * passed_s
    state.down_gpu_s[row] += state.down[row] * passed_s
    state.backup_gpu_s[row] += state.relieved[row] * passed_s
    state.job_time_s[row] += (state.submitted[row] - state.finished[row]) * passed_s
    state.now_s[row] = time_s
    state.moment[row] += 1


@kernel
def toggle_due_sources(sim: Simulation, row: int) -> None:
    """Let the fault sources whose time has come fail, or recover."""
    state, changes = sim.state, 0
    while state.source_count[row] > 0 and state.source_s[row, state.source_heap[row, 0]] <= state.now_s[row]:
        toggle_source(sim, row, state.source_heap[row, 0])
        poll_signals(sim, row, 1)
        changes += 1
        if changes > MAX_CHANGES + 4 * state.source_count[row]:
            raise EndlessError(FAILING_AT_ONCE, FEWER_FAULTS)


@kernel
def submit_due(sim: Simulation, row: int) -> None:
    """Submit the jobs whose time has come."""
    state, scenario = sim.state, sim.state.scenario[row]
    submit_s = sim.scenarios.submit_s[scenario]
    while state.submitted[row] < sim.scenarios.jobs[scenario] and submit_s[state.submitted[row]] <= state.now_s[row]:
        submit_next_job(sim, row)


@kernel
def submit_next_job(sim: Simulation, row: int) -> None:
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
def start(sim: Simulation, row: int) -> bool:
    """Start the current job on its picks; False if that would break a reservation: the job is passed over.

    1. Find the slowdown of the placement; pass the job over if it then breaks the reservation (`keeps_reservation`).
    2. Count the turn of its user, and take the job out of the queue.
    3. Compute the end of the run: the overhead of a start, then the work that is left, times the slowdown.
    4. Add it to the running jobs.

    Raises:
        ValueError: If a pick is of a node that does not suit the job.
    """
    state = sim.state
    job = state.current[row]
    if has_need_classes(sim):
        refuse_unsuited_picks(sim, row)
    slowdown = picked_slowdown(sim, row)
    state.decisions[row] += 1
    if not keeps_reservation(sim, row, slowdown):
        pass_over(sim, row)
        return False
    if has_turns(sim):
        take_turn(sim, row, job)
    dequeue(sim, row, job)
    now_s = state.now_s[row]
    gpus = 0
    gpu = state.first_gpu[row, job]
    while gpu >= 0:
        state.taken[row, sim.cluster.gpu_node[gpu]] = 0
        gpus += 1
        gpu = state.gpu_next[row, gpu]
    overhead_s = start_overhead_s(sim, row, job)
    if may_keep_gpus_after_fault(sim):
        begin_run(sim, row, job)
    if nodes_may_slow(sim):
        note_slow_nodes(sim, row, job)
        if state.slowed_s[row, job] >= 0.0:
            slowdown = present_slowdown(sim, row, job)
    work_s = sim.scenarios.work_s[state.scenario[row], job] - state.saved_s[row, job]
    state.overhead_s[row, job] = overhead_s
    state.slowdown[row, job] = slowdown
    state.start_s[row, job] = now_s
    state.end_s[row, job] = now_s + (overhead_s + work_s * slowdown)
    if state.first_start_s[row, job] < 0.0:
        state.first_start_s[row, job] = now_s
    state.busy[row] += gpus
    push(state.end_s, state.run_heap, state.run_place, state.running, row, job)
    note_run_start(sim, row, job)
    state.job_events[row] += 1
    state.quiet[row] = 0
    log_placement(sim, row, START, job)
    return True


@kernel
def wait(sim: Simulation, row: int) -> None:
    """Let the next event pass instead of placing the current job; the order regime may offer others before that."""
    sim.state.decisions[row] += 1
    sim.state.waited[row] = sim.state.moment[row]
    pass_over(sim, row)


@kernel
def pass_over(sim: Simulation, row: int) -> None:
    """Give the current job's picks back and pass it over until the next event."""
    state = sim.state
    undo_picks(sim, row)
    state.passed[row, state.current[row]] = state.moment[row]
    hide_passed_over(sim, row, state.current[row])


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
    state.unpolled[row] = 0
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
    state.turns[row] = 0
    if has_turns(sim):
        forget_turns(sim, row)
    state.leads[row] = 0
    state.reserved_for[row] = 0
    state.resized[row] = 0
    state.busy_gpu_s[row] = 0.0
    state.down_gpu_s[row] = 0.0
    state.overhead_gpu_s[row] = 0.0
    state.job_time_s[row] = 0.0
    state.job_events[row] = 0
    state.decisions[row] = 0
    state.switches[row] = 0
    state.shrunk[row] = 0
    state.slowed[row] = 0
    state.relieved[row] = 0
    state.backups[row] = 0
    state.backup_gpu_s[row] = 0.0
    _reset_gpus(sim, row)
    reset_beliefs(sim, row)
    _reset_jobs(sim, row, scenario)
    _reset_sources(sim, row)


@kernel
def _reset_gpus(sim: Simulation, row: int) -> None:
    state, cluster = sim.state, sim.cluster
    for gpu in range(cluster.gpu_node.size):
        state.gpu_job[row, gpu] = -1
        state.gpu_down[row, gpu] = 0
    for node in range(cluster.speed.size):
        state.taken[row, node] = 0
    reset_usable(sim, row)
    if may_keep_gpus_after_fault(sim):
        _reset_holding(sim, row)


@kernel
def _reset_holding(sim: Simulation, row: int) -> None:
    state = sim.state
    for gpu in range(state.died.shape[1]):
        state.died[row, gpu] = 0
        state.spare[row, gpu] = 0
        state.kept_for[row, gpu], state.backup_of[row, gpu] = -1, -1
    for job in range(state.short.shape[1]):
        begin_run(sim, row, job)
        state.relieved_of[row, job] = 0
    for node in range(state.node_slow.shape[1]):
        state.node_slow[row, node] = 0
        state.pace_k[row, node] = 0
        state.pace_s[row, node] = node_toggle_s(sim, row, node)
    if sim.rules.switching and sim.rules.spares > 0.0:
        fill_pool(sim, row)


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
