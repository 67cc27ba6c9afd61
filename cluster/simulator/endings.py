"""How runs end of jobs that hold on to their GPUs at a fault, and what each keeps of its progress."""

import math

from ..kernels.compiled import kernel
from ..kernels.structures import push, remove
from ..placing import NO_RACK, SEVERAL_RACKS, common_divisor, shrunk_slowdown, slowdown_of
from ..queue.expected import note_leave, note_start, revise_end_s
from ..state.holding import begin_run, give_up_gpu, held_gpus, is_slow, may_slow, present_speed, release_gpu
from ..state.state import Simulation
from .event_log import FINISH, STOP, SWITCH, log_placement
from .jobs import requeue


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
    requeue(sim, row, job)


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


@kernel
def count_progress(sim: Simulation, row: int, job: int, until_s: float, held: int) -> None:
    """Count what a job has done since its last start or switch, none of which it loses; the rest of the time is lost.

    Args:
        sim: The simulation.
        row: Its row.
        job: The job, which runs.
        until_s: Until when it made progress.
        held: GPUs that it held.
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
    state.fresh_gpu_s[row, job] += fresh_s * held
    state.since_s[row, job] += fresh_s
    lost_gpu_s = (state.now_s[row] - state.start_s[row, job] - useful_s) * held
    state.lost_s[row, job] += lost_gpu_s / sim.scenarios.gpus[state.scenario[row], job]


@kernel
def continue_after_switch(sim: Simulation, row: int, job: int) -> None:
    """Let a job whose past is settled go on with the GPUs that it holds now, after the time that a switch takes.

    Source: SPEC F8, F9.
    """
    continue_run(sim, row, job, sim.rules.switch_s)
    sim.state.switches[row] += 1
    sim.state.job_events[row] += 1
    log_placement(sim, row, SWITCH, job)


@kernel
def continue_run(sim: Simulation, row: int, job: int, pause_s: float) -> None:
    """Let a job whose past is settled run on as fast as its GPUs are now, after a pause."""
    state = sim.state
    remove(state.end_s, state.run_heap, state.run_place, state.running, row, job)
    note_leave(sim, row, job)
    done_s = state.saved_s[row, job] + state.fresh_s[row, job]
    work_s = max(0.0, sim.scenarios.work_s[state.scenario[row], job] - done_s)
    state.struck_s[row, job] = -1.0
    state.overhead_s[row, job] = pause_s
    state.slowdown[row, job] = present_slowdown(sim, row, job)
    state.start_s[row, job] = state.now_s[row]
    state.end_s[row, job] = state.now_s[row] + (pause_s + work_s * state.slowdown[row, job])
    push(state.end_s, state.run_heap, state.run_place, state.running, row, job)
    note_start(sim, row, job)
    if may_slow(sim):
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
    if seats == sim.scenarios.gpus[scenario, job]:
        return slowdown_of(sim, scenario, job, nodes, speed, intra, nic, uplink, grain)
    return shrunk_slowdown(sim, scenario, job, seats, nodes, speed, intra, nic, uplink, grain)
