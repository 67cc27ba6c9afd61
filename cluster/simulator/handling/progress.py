"""What a run keeps and loses where the ring of a job is formed anew."""

import math

from ...dispatch.expected import note_leave, note_start, revise_end_s
from ...dispatch.placing import NO_RACK, SEVERAL_RACKS, shrunk_slowdown, slowdown_of
from ...dispatch.planned import common_divisor
from ...kernels.compiled import kernel
from ...kernels.heap import push, remove
from ...state.slowness import is_slow, may_slow, present_speed
from ...state.state import Simulation
from ..event_log import SWITCH, log_placement
from .ending import last_checkpoint_s, useful_run_s


@kernel
def settle(sim: Simulation, row: int, job: int, until_s: float, held: int) -> None:
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
def go_on(sim: Simulation, row: int, job: int) -> None:
    """Let a job whose past is settled go on with the GPUs that it holds now, after the time that a switch takes.

    Source: SPEC F8, F9.
    """
    run_from_here(sim, row, job, sim.rules.switch_s)
    sim.state.switches[row] += 1
    sim.state.job_events[row] += 1
    log_placement(sim, row, SWITCH, job)


@kernel
def run_from_here(sim: Simulation, row: int, job: int, pause_s: float) -> None:
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
