"""The event simulator: what happens between decisions (docs/simulator.md).

`reset` (reset.py) puts a cluster at its beginning, `advance` runs it until a job is due, and then one of `start`,
`pass_over` (after a wait or a refused placement) answers. Where a real cluster says what happens instead
(scheduler/mirror/cluster_mirror.py), it is told by `begin_moment` and then `finish`, `stop`, `take_out`, `bring_back`
and `submit`, and `is_due` asks for the next decision.
"""

import math

from ..dispatch.expected import note_start, start_overhead_s
from ..dispatch.order import keeps_reservation, next_ageing_s, next_job
from ..dispatch.placing import begin_picks, check_picks, picked_slowdown, undo_picks
from ..dispatch.queue_index import note_passed
from ..dispatch.turns import has_turns, take_turn
from ..files.errors import EndlessError
from ..kernels.compiled import kernel
from ..kernels.heap import push
from ..state.holding import begin_run, holds_on
from ..state.slowness import may_slow
from ..state.state import Simulation
from ..state.usable import has_classes, show_class
from .event_log import START, SUBMIT, begin_event, log_placement
from .fault_changes import change_source
from .handling.backups import back_up, gives_backups, next_relief_s
from .handling.detection import end_held
from .handling.growth import win_back
from .handling.pace import change_paces, next_change_s
from .handling.progress import note_slow_nodes, present_slowdown
from .job_changes import dequeue, enqueue_last, finish
from .limits import (
    FAILING_AT_ONCE,
    FEWER_FAULTS,
    MOST_CHANGES,
    MOST_QUIET,
    NO_ROW,
    NOTHING_ELSE,
)
from .reset import reset as reset  # what goes on from there is asked of this module
from .signals import look


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
    if may_slow(sim):
        time_s = min(time_s, next_change_s(sim, row))
    if gives_backups(sim):
        time_s = min(time_s, next_relief_s(sim, row))
    return time_s


@kernel
def begin_moment(sim: Simulation, row: int, time_s: float) -> None:
    """Let time pass until the next moment at which something happens."""
    state = sim.state
    passed_s = time_s - state.now_s[row]
    state.busy_gpu_s[row] += state.busy[row] * passed_s
    state.down_gpu_s[row] += state.down[row] * passed_s
    state.backup_gpu_s[row] += state.relieved[row] * passed_s
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
    """Let everything happen that happens at one moment: finishes, faults and repairs, slow nodes, submissions."""
    state = sim.state
    begin_moment(sim, row, time_s)
    holding = holds_on(sim)
    if holding:
        end_held(sim, row)
    else:
        while state.running[row] > 0 and state.end_s[row, state.run_heap[row, 0]] <= time_s:
            finish(sim, row, state.run_heap[row, 0])
    if state.finished[row] == sim.scenarios.jobs[state.scenario[row]]:
        return
    change_sources(sim, row)
    if may_slow(sim):
        change_paces(sim, row)
    if holding:
        end_held(sim, row)  # faults of this very moment, if they are detected at once
        win_back(sim, row)
    if gives_backups(sim):
        back_up(sim, row)
    submit_due(sim, row)


@kernel
def change_sources(sim: Simulation, row: int) -> None:
    """Let the fault sources whose time has come fail, or come back."""
    state, changes = sim.state, 0
    while state.source_count[row] > 0 and state.source_s[row, state.source_heap[row, 0]] <= state.now_s[row]:
        change_source(sim, row, state.source_heap[row, 0])
        look(sim, row, 1)
        changes += 1
        if changes > MOST_CHANGES + 4 * state.source_count[row]:
            raise EndlessError(FAILING_AT_ONCE, FEWER_FAULTS)


@kernel
def submit_due(sim: Simulation, row: int) -> None:
    """Submit the jobs whose time has come."""
    state, scenario = sim.state, sim.state.scenario[row]
    submit_s = sim.scenarios.submit_s[scenario]
    while state.submitted[row] < sim.scenarios.jobs[scenario] and submit_s[state.submitted[row]] <= state.now_s[row]:
        submit(sim, row)


@kernel
def is_due(sim: Simulation, row: int) -> bool:
    """Say whether a job is due at this moment, and make it the current one."""
    state = sim.state
    if has_classes(sim):
        show_class(sim, row, 0)
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
    """Start the current job on its picks; False if that would break a reservation, and the job is passed over.

    Raises:
        ValueError: If a pick is of a node that does not suit the job.
    """
    state = sim.state
    job = state.current[row]
    if has_classes(sim):
        check_picks(sim, row)
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
    if holds_on(sim):
        begin_run(sim, row, job)
    if may_slow(sim):
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
    note_start(sim, row, job)
    state.job_events[row] += 1
    state.quiet[row] = 0
    log_placement(sim, row, START, job)
    return True
