"""Nodes become slow and recover, and backups take over seats of slow nodes (docs/simulator.md, Slow nodes).

Source: SPEC P3.
"""

import math

from ..kernels.compiled import kernel
from ..kernels.structures import uniform
from ..state.holding import (
    claim_gpu,
    held_gpus,
    is_slow,
    is_struck,
    present_speed,
    release_gpu,
    relieve_gpu,
    swap_spare_role,
    take_back_gpu,
)
from ..state.state import Simulation
from .event_log import SLOW, WELL, add_gpu_to_event, begin_event
from .jobs import continue_after_switch, continue_run, count_progress, note_slow_nodes, present_slowdown
from .seats import NO_GPU, find_replacement, held_ring_iteration_s, record_compute_times


@kernel
def next_relief_s(sim: Simulation, row: int) -> float:
    """Return when the next job is found to have slow nodes, inf for never."""
    state, time_s = sim.state, math.inf
    for i in range(state.running[row]):
        slowed_s = state.slowed_s[row, state.run_heap[row, i]]
        if slowed_s >= 0.0 and slowed_s + sim.rules.detection_s > state.now_s[row]:
            time_s = min(time_s, slowed_s + sim.rules.detection_s)
    return time_s


@kernel
def update_backups(sim: Simulation, row: int) -> None:
    """Let jobs with slow nodes give backups back and get others, lowest job first, before any job of the queue starts.

    That is the order of the live scheduler (scheduler/control/seating.py): empty seats, growth, backups, queue.
    """
    job = _next_slowed_job(sim, row, -1)
    while job >= 0:
        if not is_struck(sim, row, job):
            _update_backups_of(sim, row, job)
        job = _next_slowed_job(sim, row, job)


@kernel
def _next_slowed_job(sim: Simulation, row: int, after: int) -> int:
    """Return the lowest running job beyond another one that has slow nodes or backups, -1 if there is none."""
    state, lowest = sim.state, -1
    for i in range(state.running[row]):
        job = state.run_heap[row, i]
        if job > after and (lowest < 0 or job < lowest) and state.slowed_s[row, job] >= 0.0:
            lowest = job
    return lowest


@kernel
def _update_backups_of(sim: Simulation, row: int, job: int) -> None:
    """Let a job give backups back and get others; all that at once costs one switch."""
    state = sim.state
    keep_backups_of_failed(sim, row, job)
    changed = _give_seats_back(sim, row, job)
    if state.now_s[row] >= state.slowed_s[row, job] + sim.rules.detection_s:
        while _relieve_slowest(sim, row, job):
            changed = True
    if changed:
        count_progress(sim, row, job, state.now_s[row], held_gpus(sim, row, job))
        continue_after_switch(sim, row, job)
    else:
        note_slow_nodes(sim, row, job)


@kernel
def keep_backups_of_failed(sim: Simulation, row: int, job: int) -> None:
    """Let a job keep the backups of those relieved GPUs that have failed, and no longer these."""
    state = sim.state
    if state.relieved_of[row, job] == 0:
        return
    for gpu in range(sim.cluster.gpu_node.size):
        if state.kept_for[row, gpu] == job and state.gpu_down[row, gpu] > 1:
            swap_spare_role(sim, row, state.backup_of[row, gpu], gpu)
            release_gpu(sim, row, job, gpu)


@kernel
def gpu_relieved_by(sim: Simulation, row: int, job: int, backup: int) -> int:
    """Return the relieved GPU of a job whose seat another one has, -1 if that is no backup."""
    state = sim.state
    if state.relieved_of[row, job] > 0:
        for gpu in range(sim.cluster.gpu_node.size):
            if state.kept_for[row, gpu] == job and state.backup_of[row, gpu] == backup:
                return gpu
    return -1


@kernel
def _give_seats_back(sim: Simulation, row: int, job: int) -> bool:
    """Let relieved GPUs have their seats again whose nodes are well, or whose backups are on slow nodes themselves."""
    state, gpu_node, changed = sim.state, sim.cluster.gpu_node, False
    if state.relieved_of[row, job] == 0:
        return False
    for gpu in range(gpu_node.size):
        if state.kept_for[row, gpu] == job and (
            not is_slow(sim, row, gpu_node[gpu]) or is_slow(sim, row, gpu_node[state.backup_of[row, gpu]])
        ):
            take_back_gpu(sim, row, job, gpu)
            changed = True
    return changed


@kernel
def _slowest_speed(sim: Simulation, row: int, job: int) -> float:
    speed, gpu = math.inf, sim.state.first_gpu[row, job]
    while gpu >= 0:
        speed = min(speed, present_speed(sim, row, sim.cluster.gpu_node[gpu]))
        gpu = sim.state.gpu_next[row, gpu]
    return speed


@kernel
def _relieve_slowest(sim: Simulation, row: int, job: int) -> bool:
    """Give the slowest GPUs of a job backups if they are on slow nodes: all of them, or none if it is no faster then.

    All wait for the slowest, so that fewer would be of no use.
    """
    state, gpu_node, tried = sim.state, sim.cluster.gpu_node, sim.scratch.tried_gpu
    speed, before = _slowest_speed(sim, row, job), present_slowdown(sim, row, job)
    before_s, types = held_ring_iteration_s(sim, row, job), record_compute_times(sim, row, job)
    count, found = 0, 0
    for gpu in range(gpu_node.size):
        node = gpu_node[gpu]
        if state.gpu_job[row, gpu] != job or not is_slow(sim, row, node) or present_speed(sim, row, node) > speed:
            continue
        found = NO_GPU
        if state.relieved_of[row, job] < sim.rules.backups:
            found = find_replacement(sim, row, job, gpu, before_s, types)
        if found == NO_GPU:
            break
        claim_gpu(sim, row, job, found)
        relieve_gpu(sim, row, job, gpu, found)
        tried[row, count] = gpu
        count += 1
    if count > 0 and found != NO_GPU and present_slowdown(sim, row, job) < before:
        state.backups[row] += count
        return True
    for i in range(count):
        take_back_gpu(sim, row, job, tried[row, i])
    return False


@kernel
def next_toggle_s(sim: Simulation, row: int) -> float:
    """Return when a node becomes slow or well next, inf for never."""
    time_s = math.inf
    for node in range(sim.state.pace_s.shape[1]):
        time_s = min(time_s, sim.state.pace_s[row, node])
    return time_s


@kernel
def toggle_due_nodes(sim: Simulation, row: int) -> None:
    """Let the nodes whose time has come become slow, or well, lowest first; the jobs on them go on at another pace."""
    state, cluster = sim.state, sim.cluster
    for node in range(cluster.speed.size):
        while state.pace_s[row, node] <= state.now_s[row]:
            _toggle_slow(sim, row, node)
            for gpu in range(cluster.first_gpu[node], cluster.first_gpu[node + 1]):
                if state.gpu_job[row, gpu] >= 0:
                    _continue_at_present_pace(sim, row, state.gpu_job[row, gpu])


@kernel
def _toggle_slow(sim: Simulation, row: int, node: int) -> None:
    """Let a node become slow, or well if it is slow, and set when it changes next."""
    state, first_gpu = sim.state, sim.cluster.first_gpu
    state.pace_k[row, node] += state.node_slow[row, node]
    state.node_slow[row, node] = 1 - state.node_slow[row, node]
    state.pace_s[row, node] = node_toggle_s(sim, row, node)
    if begin_event(sim, row, SLOW if state.node_slow[row, node] == 1 else WELL, -1):
        for gpu in range(first_gpu[node], first_gpu[node + 1]):
            add_gpu_to_event(sim, gpu)


@kernel
def _continue_at_present_pace(sim: Simulation, row: int, job: int) -> None:
    """Let a running job go on as fast as its GPUs are now; what is left of a pause stays as it is.

    One that stands still after a fault does so when it goes on.
    """
    state = sim.state
    if is_struck(sim, row, job):
        return
    note_slow_nodes(sim, row, job)
    if present_slowdown(sim, row, job) == state.slowdown[row, job]:
        return
    pause_s = max(0.0, state.start_s[row, job] + state.overhead_s[row, job] - state.now_s[row])
    count_progress(sim, row, job, state.now_s[row], held_gpus(sim, row, job))
    continue_run(sim, row, job, pause_s)


@kernel
def node_toggle_s(sim: Simulation, row: int, node: int) -> float:
    """Return when a node becomes slow, or well if it is slow, given that it has just changed; inf for never.

    Both times are exponential. Nodes draw from the streams of random numbers behind those of all fault sources, and
    those by which nodes are lemons (faults/models.py).
    """
    state, rules = sim.state, sim.rules
    if rules.slow_per_s == 0.0:
        return math.inf
    slow = state.node_slow[row, node]
    stream = state.source_s.shape[1] + sim.cluster.speed.size + node
    u = uniform(sim.scenarios.fault_seed[state.scenario[row]], stream, 2 * state.pace_k[row, node] + slow)
    mean_s = rules.slow_mean_s if slow == 1 else 1.0 / rules.slow_per_s
    return float(state.now_s[row] - math.log(u) * mean_s)
