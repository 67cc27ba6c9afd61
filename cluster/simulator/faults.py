"""What happens to GPUs: fault sources take them out of service and bring them back, and faults are detected.

When a source fails and when it is back is a function of counters (docs/simulator.md, Faults).
"""

import math

from ..kernels.compiled import kernel
from ..kernels.structures import push, remove, sift_down, uniform
from ..state.beliefs import observe_faults
from ..state.holding import (
    add_in_service_gpus,
    add_usable_gpus,
    claim_gpu,
    give_up_gpu,
    held_gpus,
    held_while_idle,
    is_struck,
    swap_spare_role,
    take_back_gpu,
)
from ..state.state import Simulation, may_keep_gpus_after_fault
from .event_log import FAULT, REPAIR, add_gpu_to_event, begin_event
from .jobs import checkpointed_run_s, continue_after_switch, count_progress, finish, stop, stop_after_fault
from .seats import NO_GPU, find_replacement, held_ring_iteration_s, record_compute_times
from .slow_nodes import gpu_relieved_by, keep_backups_of_failed


@kernel
def up_time_s(seed: int, source: int, k: int, rate_per_s: float, shape: float) -> float:
    """Return the k-th up time of a source: Weibull with mean 1 / rate.

    Source: SPEC R11.
    """
    log_u = -math.log(uniform(seed, source, 4 * k))
    if shape == 1.0:
        return log_u / rate_per_s
    return log_u ** (1.0 / shape) / (rate_per_s * math.gamma(1.0 + 1.0 / shape))


@kernel
def repair_time_s(seed: int, source: int, k: int, mean_s: float, sigma: float, transient_probability: float) -> float:
    """Return the k-th repair time of a source; 0 for a transient fault."""
    if transient_probability > 0.0 and uniform(seed, source, 4 * k + 1) < transient_probability:
        return 0.0
    u = uniform(seed, source, 4 * k + 2)
    if sigma == 0.0:
        return -math.log(u) * mean_s
    z = math.sqrt(-2.0 * math.log(u)) * math.cos(2.0 * math.pi * uniform(seed, source, 4 * k + 3))
    return math.exp(sigma * z - 0.5 * sigma * sigma) * mean_s


@kernel
def next_fault_s(sim: Simulation, row: int, source: int, since_s: float) -> float:
    """Return when an up source fails next, inf for never."""
    scenario = sim.state.scenario[row]
    k = sim.state.source_k[row, source]
    rate = sim.scenarios.source_rate_per_s[scenario, source]
    if rate > 0.0:
        return since_s + up_time_s(sim.scenarios.fault_seed[scenario], source, k, rate, sim.process.shape)
    first = sim.process.outage_first
    if source + 1 < first.size and k < first[source + 1] - first[source]:
        return sim.process.outage_start_s[first[source] + k]
    return math.inf


@kernel
def repair_end_s(sim: Simulation, row: int, source: int) -> float:
    """Return when a source that fails at the present moment is back."""
    scenario = sim.state.scenario[row]
    k = sim.state.source_k[row, source]
    process = sim.process
    if sim.scenarios.source_rate_per_s[scenario, source] > 0.0:
        seed = sim.scenarios.fault_seed[scenario]
        return sim.state.now_s[row] + repair_time_s(
            seed, source, k, process.repair_mean_s, process.repair_sigma, process.transient_probability
        )
    return process.outage_end_s[process.outage_first[source] + k]


@kernel
def strike_ring_members(sim: Simulation, row: int, first: int, after: int) -> None:
    """Let the members of rings on GPUs that have just failed die; their jobs stand still until that is detected.

    A job that stands still already does so no longer for that.
    """
    state = sim.state
    for gpu in range(first, after):
        job = state.gpu_job[row, gpu]
        if job < 0:
            continue
        state.died[row, gpu] = 1
        if state.struck_s[row, job] < 0.0:
            remove(state.end_s, state.run_heap, state.run_place, state.running, row, job)
            state.struck_s[row, job] = state.now_s[row]
            state.end_s[row, job] = state.now_s[row] + sim.rules.detection_s
            push(state.end_s, state.run_heap, state.run_place, state.running, row, job)


@kernel
def end_due_runs(sim: Simulation, row: int) -> None:
    """End the runs that are over at this moment, and act on the faults that are detected now; lowest job first."""
    state = sim.state
    while state.running[row] > 0 and state.end_s[row, state.run_heap[row, 0]] <= state.now_s[row]:
        job = state.run_heap[row, 0]
        if is_struck(sim, row, job):
            act_on_faults(sim, row, job)
        else:
            finish(sim, row, job)


@kernel
def act_on_faults(sim: Simulation, row: int, job: int) -> None:
    """Act on the faults of a job: form its ring anew, or stop it where that is the rule or no member lives.

    Source: SPEC F5 to F10.
    """
    if not sim.rules.switching or not has_live_member(sim, row, job):
        stop_after_fault(sim, row, job)
        return
    keep_backups_of_failed(sim, row, job)
    before_s, types = held_ring_iteration_s(sim, row, job), record_compute_times(sim, row, job)
    count_progress(sim, row, job, sim.state.struck_s[row, job], held_gpus(sim, row, job))
    for gpu in range(sim.cluster.gpu_node.size):
        if sim.state.gpu_job[row, gpu] == job and sim.state.died[row, gpu] == 1:
            _fill_seat(sim, row, job, gpu, before_s, types)
    continue_after_switch(sim, row, job)


@kernel
def has_live_member(sim: Simulation, row: int, job: int) -> bool:
    """Return whether a job has a member from which the others can get its state."""
    gpu = sim.state.first_gpu[row, job]
    while gpu >= 0:
        if sim.state.died[row, gpu] == 0:
            return True
        gpu = sim.state.gpu_next[row, gpu]
    return False


@kernel
def _fill_seat(sim: Simulation, row: int, job: int, gpu: int, before_s: float, recorded_types: int) -> None:
    """Fill the seat of a member that died: on its own GPU if that is back, else on another; or give the seat up.

    The seat of a backup is that of the slow GPU once more.
    """
    state = sim.state
    state.died[row, gpu] = 0
    if state.gpu_down[row, gpu] == 0:
        return
    slow = gpu_relieved_by(sim, row, job, gpu)
    if slow >= 0:
        take_back_gpu(sim, row, job, slow)
        return
    found = find_replacement(sim, row, job, gpu, before_s, recorded_types)
    if found != NO_GPU:
        claim_gpu(sim, row, job, found)
        swap_spare_role(sim, row, found, gpu)
    else:
        if state.short[row, job] == 0:
            state.shrunk[row] += 1
        state.short[row, job] += 1
    give_up_gpu(sim, row, job, gpu)


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
def take_gpus_out(sim: Simulation, row: int, first: int, after: int) -> None:
    """Take GPUs out of service once more; jobs on them go on."""
    state, holding = sim.state, may_keep_gpus_after_fault(sim)
    opened = False
    for gpu in range(first, after):
        if state.gpu_down[row, gpu] == 0:
            add_in_service_gpus(sim, row, sim.cluster.gpu_node[gpu], -1)
            if state.gpu_job[row, gpu] < 0:
                add_usable_gpus(sim, row, sim.cluster.gpu_node[gpu], -1)
        state.gpu_down[row, gpu] += 1
        if state.gpu_down[row, gpu] == 1 + (held_while_idle(sim, row, gpu) if holding else 0):
            if not opened:
                opened = True
                kept = begin_event(sim, row, FAULT, -1)
            if kept:
                add_gpu_to_event(sim, gpu)


@kernel
def _lose_gpus(sim: Simulation, row: int, first: int, after: int) -> None:
    """Take GPUs out of service and stop the jobs on them, lowest index first, unless they hold on to their GPUs."""
    state = sim.state
    take_gpus_out(sim, row, first, after)
    observe_faults(sim, row, first, after)
    if may_keep_gpus_after_fault(sim):
        strike_ring_members(sim, row, first, after)
        return
    while True:
        lowest = -1
        for gpu in range(first, after):
            job = state.gpu_job[row, gpu]
            if job >= 0 and (lowest < 0 or job < lowest):
                lowest = job
        if lowest < 0:
            break
        stop(sim, row, lowest, checkpointed_run_s(sim, row, lowest))


@kernel
def bring_gpus_back(sim: Simulation, row: int, first: int, after: int) -> None:
    """Undo one `take_gpus_out` of GPUs."""
    state, holding = sim.state, may_keep_gpus_after_fault(sim)
    opened = False
    for gpu in range(first, after):
        if state.gpu_down[row, gpu] == 1:
            add_in_service_gpus(sim, row, sim.cluster.gpu_node[gpu], 1)
            if state.gpu_job[row, gpu] < 0:
                add_usable_gpus(sim, row, sim.cluster.gpu_node[gpu], 1)
        state.gpu_down[row, gpu] -= 1
        if state.gpu_down[row, gpu] == (held_while_idle(sim, row, gpu) if holding else 0):
            if not opened:
                opened = True
                kept = begin_event(sim, row, REPAIR, -1)
            if kept:
                add_gpu_to_event(sim, gpu)


@kernel
def toggle_source(sim: Simulation, row: int, source: int) -> None:
    """Let a fault source fail, or come back, and set when it changes next."""
    state = sim.state
    first, after = _source_gpus(sim, source)
    fails = state.source_failed[row, source] == 0
    state.source_since_s[row, source] = state.now_s[row]
    if fails:
        _lose_gpus(sim, row, first, after)
        state.source_s[row, source] = repair_end_s(sim, row, source)
        state.source_failed[row, source] = 1
    if not fails or state.source_s[row, source] <= state.now_s[row]:
        bring_gpus_back(sim, row, first, after)
        state.source_k[row, source] += 1
        state.source_failed[row, source] = 0
        state.source_s[row, source] = next_fault_s(sim, row, source, state.now_s[row])
    heap, place, count = state.source_heap, state.source_place, state.source_count
    if state.source_s[row, source] == math.inf:
        remove(state.source_s, heap, place, count, row, source)
    else:
        sift_down(state.source_s, heap, place, count, row, 0)
