"""How a row of a simulation begins."""

import math

from ..dispatch.queue_index import forget_index
from ..dispatch.turns import forget_turns
from ..kernels.compiled import kernel
from ..kernels.heap import heapify
from ..state.beliefs import begin_beliefs
from ..state.holding import begin_run, fill_pool, holds_on
from ..state.state import Simulation
from ..state.usable import reset_usable
from .fault_process import next_fault_s, next_pace_s
from .limits import (
    NO_ROW,
)
from .signals import check_signals


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
        state.pace_s[row, node] = next_pace_s(sim, row, node)
    if sim.rules.switching and sim.rules.spares > 0.0:
        fill_pool(sim, row)


@kernel
def _reset_gpus(sim: Simulation, row: int) -> None:
    state, cluster = sim.state, sim.cluster
    for gpu in range(cluster.gpu_node.size):
        state.gpu_job[row, gpu] = -1
        state.gpu_down[row, gpu] = 0
    for node in range(cluster.speed.size):
        state.taken[row, node] = 0
    reset_usable(sim, row)
    if holds_on(sim):
        _reset_holding(sim, row)


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
    forget_turns(sim, row)
    state.leads[row] = 0
    state.reserved_for[row] = 0
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
    begin_beliefs(sim, row)
    _reset_jobs(sim, row, scenario)
    _reset_sources(sim, row)
