"""What happens to GPUs: fault sources take them out of service and bring them back."""

import math

from ..kernels.compiled import kernel
from ..kernels.heap import remove, sink
from ..state.beliefs import note_faults, observe
from ..state.holding import holds_on, pool_holds
from ..state.state import Simulation
from ..state.usable import count_by_class, count_in_service, has_classes
from .event_log import FAULT, REPAIR, begin_event, name_gpu
from .fault_process import next_fault_s, repaired_s
from .handling.detection import strike
from .job_changes import kept_s, stop


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
    state, learns, differ, holding = sim.state, sim.rules.estimated_hazards, has_classes(sim), holds_on(sim)
    opened = False
    for gpu in range(first, after):
        if learns and state.gpu_down[row, gpu] == 0:
            observe(sim, row, sim.cluster.gpu_node[gpu])
        state.gpu_down[row, gpu] += 1
        if state.gpu_down[row, gpu] == 1 + (pool_holds(sim, row, gpu) if holding else 0):
            if not opened:
                opened = True
                kept = begin_event(sim, row, FAULT, -1)
            if kept:
                name_gpu(sim, gpu)
        if state.gpu_down[row, gpu] == 1:
            state.down[row] += 1
            if differ:
                count_in_service(sim, row, sim.cluster.gpu_node[gpu], -1)
            if state.gpu_job[row, gpu] < 0:
                state.free[row, sim.cluster.gpu_node[gpu]] -= 1
                state.usable[row] -= 1
                if differ:
                    count_by_class(sim, row, sim.cluster.gpu_node[gpu], -1)


@kernel
def _lose_gpus(sim: Simulation, row: int, first: int, after: int) -> None:
    """Take GPUs out of service and stop the jobs on them, lowest index first, unless they hold on to their GPUs."""
    state = sim.state
    take_out(sim, row, first, after)
    note_faults(sim, row, first, after)
    if holds_on(sim):
        strike(sim, row, first, after)
        return
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
    state, learns, differ, holding = sim.state, sim.rules.estimated_hazards, has_classes(sim), holds_on(sim)
    opened = False
    for gpu in range(first, after):
        if learns and state.gpu_down[row, gpu] == 1:
            observe(sim, row, sim.cluster.gpu_node[gpu])
        state.gpu_down[row, gpu] -= 1
        if state.gpu_down[row, gpu] == 0:
            state.down[row] -= 1
            if differ:
                count_in_service(sim, row, sim.cluster.gpu_node[gpu], 1)
            if state.gpu_job[row, gpu] < 0:
                state.free[row, sim.cluster.gpu_node[gpu]] += 1
                state.usable[row] += 1
                if differ:
                    count_by_class(sim, row, sim.cluster.gpu_node[gpu], 1)
        if state.gpu_down[row, gpu] == (pool_holds(sim, row, gpu) if holding else 0):
            if not opened:
                opened = True
                kept = begin_event(sim, row, REPAIR, -1)
            if kept:
                name_gpu(sim, gpu)


@kernel
def change_source(sim: Simulation, row: int, source: int) -> None:
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
