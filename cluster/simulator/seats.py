"""Which GPU takes an empty seat of a ring, and how jobs on fewer GPUs win seats back (docs/simulator.md, Switching).

Source: SPEC F5 to F7.
"""

import math
from typing import NamedTuple

from ..kernels.compiled import kernel
from ..kernels.structures import kth_smallest
from ..placing import safest_gpu
from ..state.holding import (
    claim_gpu,
    give_up_gpu,
    held_gpus,
    is_idle_spare,
    is_slow,
    is_struck,
    need_class_of,
    usable_on_node,
)
from ..state.state import Simulation
from ..switching import (
    SOURCE,
    TYPICAL_EFFICIENCY,
    Candidates,
    Vacancy,
    choose_replacement,
    is_faster_with,
    link_bytes_per_s,
    ring_iteration_s,
)
from .jobs import continue_after_switch, count_progress, present_slowdown

NO_GPU = -1


class Gap(NamedTuple):
    """The members of a ring beside one seat; that is at a GPU, or behind all members."""

    before: int  # the neighbour before the seat, a GPU
    after: int  # and the one after it
    compute_s: float  # the longest compute time of a member, of the share that it has if no seat is empty
    bytes_per_s: float  # the smallest bandwidth between neighbours, but for those around the seat


@kernel
def find_replacement(sim: Simulation, row: int, job: int, seat: int, before_s: float, recorded_types: int) -> int:
    """Return the idle GPU that takes a seat of a running job, NO_GPU if there is none.

    Args:
        sim: The simulation.
        row: Its row.
        job: The job.
        seat: The GPU that failed on the seat or is slow, which the job still holds; or the number of GPUs for one
            seat more.
        before_s: The iteration time of its ring before the fault, or before it has a seat more.
        recorded_types: What `record_compute_times` returned then.
    """
    grows = seat == sim.cluster.gpu_node.size
    seats = held_gpus(sim, row, job) + (1 if grows else 0)
    count, gap = _list_idle_gpus(sim, row, job), _gap_around_seat(sim, row, job, seat)
    if grows and sim.rules.ring:  # the simple model needs no estimate: `present_slowdown` decides
        count = _keep_faster_gpus(sim, row, job, gap, count, recorded_types)
    if count == 0:
        return NO_GPU
    share = _batch_share(sim, row, job, seats)
    _write_seat_candidates(sim, row, share, gap, count, recorded_types)
    vacancy = Vacancy(seats, _sent_bytes(sim, row, job), before_s, gap.compute_s * share, gap.bytes_per_s)
    scratch = sim.scratch
    candidates = Candidates(
        scratch.seat_compute_s[row, :count],
        scratch.seat_sure_s[row, :count],
        scratch.seat_flops[row, :count],
        scratch.seat_from[row, :count],
        scratch.seat_to[row, :count],
        scratch.seat_hazard[row, :count],
    )
    chosen = choose_replacement(vacancy, candidates, sim.rules.replacement)
    return int(scratch.seat_gpu[row, chosen]) if chosen >= 0 else NO_GPU


@kernel
def _list_idle_gpus(sim: Simulation, row: int, job: int) -> int:
    """List the idle GPUs on which a job could go on, the safest of each node; those of the pool last.

    The other GPUs of a node are no better. So equal candidates are taken from outside the pool first. A GPU is
    tried before it gets a seat, and found out if it is slow.
    """
    suits, listed, count = sim.cluster.suits[need_class_of(sim, row, job)], sim.scratch.seat_gpu, 0
    for node in range(suits.size):
        if suits[node] == 1 and usable_on_node(sim, row, node) > 0 and not is_slow(sim, row, node):
            listed[row, count] = safest_gpu(sim, row, node)
            count += 1
    if sim.rules.spares > 0.0:
        for node in range(suits.size):
            gpu = _safest_spare(sim, row, node) if suits[node] == 1 else NO_GPU
            if gpu != NO_GPU and not is_slow(sim, row, node):
                listed[row, count] = gpu
                count += 1
    return count


@kernel
def _safest_spare(sim: Simulation, row: int, node: int) -> int:
    """Return the node's idle spare of lowest hazard, then lowest index; NO_GPU if it has none."""
    hazard, best = sim.state.gpu_hazard_per_s, NO_GPU
    for gpu in range(sim.cluster.first_gpu[node], sim.cluster.first_gpu[node + 1]):
        if is_idle_spare(sim, row, gpu) and (best < 0 or hazard[row, gpu] < hazard[row, best]):
            best = gpu
    return best


@kernel
def _batch_share(sim: Simulation, row: int, job: int, seats: int) -> float:
    """Return the share of a batch that one of `seats` GPUs computes, relative to that where no seat is empty."""
    return float(sim.scenarios.gpus[sim.state.scenario[row], job] / seats)


@kernel
def compute_s(sim: Simulation, row: int, job: int, gpu: int) -> float:
    """Return the true compute time of a job in an iteration on a GPU of a node that is well, where no seat is empty."""
    scenario, node = sim.state.scenario[row], sim.cluster.gpu_node[gpu]
    return float(sim.scenarios.compute_s[scenario, job] / sim.scenarios.speed[scenario, node])


@kernel
def _sent_bytes(sim: Simulation, row: int, job: int) -> float:
    """Return what a job sends in an iteration; the simple model of run times knows no sending."""
    return float(sim.scenarios.parameter_bytes[sim.state.scenario[row], job]) if sim.rules.ring else 0.0


@kernel
def _link_bytes_per_s(sim: Simulation, gpu: int, other: int) -> float:
    return link_bytes_per_s(sim.cluster, sim.cluster.gpu_node[gpu], sim.cluster.gpu_node[other])


@kernel
def _gap_around_seat(sim: Simulation, row: int, job: int, seat: int) -> Gap:
    """Return the members beside a seat; a ring runs through its GPUs in their order."""
    state = sim.state
    first, last, before, after, longest_s, link = -1, -1, -1, -1, 0.0, math.inf
    for gpu in range(sim.cluster.gpu_node.size):
        if state.gpu_job[row, gpu] != job or state.gpu_down[row, gpu] > 0 or gpu == seat:
            continue
        longest_s = max(longest_s, compute_s(sim, row, job, gpu))
        if last >= 0 and not last < seat < gpu:
            link = min(link, _link_bytes_per_s(sim, last, gpu))
        if first < 0:
            first = gpu
        if gpu < seat:
            before = gpu
        elif after < 0:
            after = gpu
        last = gpu
    if last < 0:  # a slow GPU is the only member; its backup gets the state from it
        return Gap(seat, seat, 0.0, math.inf)
    if before >= 0 and after >= 0:  # else the seat lies between the last and the first
        link = min(link, _link_bytes_per_s(sim, last, first))
    return Gap(before if before >= 0 else last, after if after >= 0 else first, longest_s, link)


@kernel
def held_ring_iteration_s(sim: Simulation, row: int, job: int) -> float:
    """Return how long an iteration takes of the ring of all GPUs that a job holds, those too that have just failed.

    Source: SPEC F3.
    """
    first, last, longest_s, link = -1, -1, 0.0, math.inf
    for gpu in range(sim.cluster.gpu_node.size):
        if sim.state.gpu_job[row, gpu] != job:
            continue
        longest_s = max(longest_s, compute_s(sim, row, job, gpu))
        if last >= 0:
            link = min(link, _link_bytes_per_s(sim, last, gpu))
        else:
            first = gpu
        last = gpu
    seats = held_gpus(sim, row, job)
    longest_s *= _batch_share(sim, row, job, seats)
    closing = _link_bytes_per_s(sim, last, first)
    return ring_iteration_s(
        Vacancy(seats, _sent_bytes(sim, row, job), math.inf, longest_s, link), 0.0, closing, closing
    )


@kernel
def _keep_faster_gpus(sim: Simulation, row: int, job: int, gap: Gap, count: int, recorded_types: int) -> int:
    """Leave those idle GPUs in the list with which a ring that goes on without a seat would be faster; return how many.

    That is computed by what the scheduler knows.
    """
    listed, kept, alone = sim.scratch.seat_gpu, 0, held_gpus(sim, row, job)
    volume, demand = _sent_bytes(sim, row, job), _median_recorded_flops(sim, row, recorded_types)
    share, less = _batch_share(sim, row, job, alone + 1), _batch_share(sim, row, job, alone)
    joined = Vacancy(alone + 1, volume, 0.0, gap.compute_s * share, gap.bytes_per_s)
    without = Vacancy(alone, volume, 0.0, gap.compute_s * less, gap.bytes_per_s)
    closing = _link_bytes_per_s(sim, gap.before, gap.after)
    for i in range(count):
        gpu = listed[row, i]
        node = sim.cluster.gpu_node[gpu]
        at = _record_index(sim, row, recorded_types, sim.cluster.node_type[node])
        known_s = sim.scratch.record_s[row, at] if at < recorded_types else demand / sim.cluster.peak_flops[node]
        before, after = _link_bytes_per_s(sim, gap.before, gpu), _link_bytes_per_s(sim, gpu, gap.after)
        if is_faster_with(
            joined, without, known_s * share, _runs_on_type_of(sim, row, job, node), before, after, closing
        ):
            listed[row, kept] = gpu
            kept += 1
    return kept


@kernel
def _runs_on_type_of(sim: Simulation, row: int, job: int, node: int) -> bool:
    """Return whether a job runs on a GPU of the type of a node."""
    kind, gpu = sim.cluster.node_type[node], sim.state.first_gpu[row, job]
    while gpu >= 0:
        if sim.cluster.node_type[sim.cluster.gpu_node[gpu]] == kind:
            return True
        gpu = sim.state.gpu_next[row, gpu]
    return False


@kernel
def _write_seat_candidates(sim: Simulation, row: int, share: float, gap: Gap, count: int, recorded_types: int) -> None:
    """Write what `choose_replacement` asks of the candidates listed; compute times are those of `compute_times_s`."""
    usual, most = _unrecorded_flops(sim, row, recorded_types)
    scratch = sim.scratch
    for i in range(count):
        gpu = scratch.seat_gpu[row, i]
        node = sim.cluster.gpu_node[gpu]
        at = _record_index(sim, row, recorded_types, sim.cluster.node_type[node])
        peak = sim.cluster.peak_flops[node]
        scratch.seat_compute_s[row, i] = (scratch.record_s[row, at] if at < recorded_types else usual / peak) * share
        scratch.seat_sure_s[row, i] = (scratch.record_s[row, at] if at < recorded_types else most / peak) * share
        scratch.seat_flops[row, i] = peak
        scratch.seat_from[row, i] = _link_bytes_per_s(sim, gap.before, gpu)
        scratch.seat_to[row, i] = _link_bytes_per_s(sim, gpu, gap.after)
        scratch.seat_hazard[row, i] = sim.state.gpu_hazard_per_s[row, gpu]


@kernel
def _record_index(sim: Simulation, row: int, recorded_types: int, node_type: int) -> int:
    """Return the place of a node type among the `recorded_types` recorded ones; their number if it is none of them."""
    at = 0
    while at < recorded_types and sim.scratch.record_type[row, at] != node_type:
        at += 1
    return at


@kernel
def record_compute_times(sim: Simulation, row: int, job: int) -> int:
    """Note the mean compute time of a job on each node type in its ring; return how many these are.

    Call it before a GPU joins: of a GPU on which the job has not run yet nothing is recorded.
    """
    scratch, types = sim.scratch, 0
    for gpu in range(sim.cluster.gpu_node.size):
        if sim.state.gpu_job[row, gpu] != job:
            continue
        node = sim.cluster.gpu_node[gpu]
        at = _record_index(sim, row, types, sim.cluster.node_type[node])
        if at == types:
            types += 1
            scratch.record_type[row, at] = sim.cluster.node_type[node]
            scratch.record_gpus[row, at], scratch.record_s[row, at] = 0, 0.0
            scratch.record_flops[row, at] = sim.cluster.peak_flops[node]
        scratch.record_gpus[row, at] += 1
        scratch.record_s[row, at] += compute_s(sim, row, job, gpu)
    for at in range(types):
        scratch.record_s[row, at] /= scratch.record_gpus[row, at]
        scratch.record_flops[row, at] *= scratch.record_s[row, at]
    return types


@kernel
def _median_recorded_flops(sim: Simulation, row: int, recorded_types: int) -> float:
    """Return what a job asks of a type with a record, in the median of them."""
    flops, middle = sim.scratch.record_flops, recorded_types // 2
    median = kth_smallest(flops, row, recorded_types, middle)
    if recorded_types % 2 == 0:
        median = (kth_smallest(flops, row, recorded_types, middle - 1) + median) / 2.0
    return float(median)


@kernel
def _unrecorded_flops(sim: Simulation, row: int, recorded_types: int) -> tuple[float, float]:
    """Return what a job asks of a type without a record, in the median of those with one and at most.

    By the formula SOURCE it is the job's FLOPs. No trace has them: they are what training typically reaches of the
    peak of the recorded types.
    """
    median = _median_recorded_flops(sim, row, recorded_types)
    if sim.rules.replacement == SOURCE:
        return TYPICAL_EFFICIENCY * median, TYPICAL_EFFICIENCY * median
    return median, kth_smallest(sim.scratch.record_flops, row, recorded_types, recorded_types - 1)


@kernel
def win_seats_back(sim: Simulation, row: int) -> None:
    """Let shrunk jobs take idle GPUs, lowest job first, before any job of the queue may."""
    if sim.state.shrunk[row] == 0:
        return
    job = _next_shrunk_job(sim, row, -1)
    while job >= 0:
        _win_seats_back_for_job(sim, row, job)
        job = _next_shrunk_job(sim, row, job)


@kernel
def _next_shrunk_job(sim: Simulation, row: int, after: int) -> int:
    """Return the lowest job beyond another one that runs on fewer GPUs than it asks for, -1 if there is none."""
    lowest = -1
    for i in range(sim.state.running[row]):
        job = sim.state.run_heap[row, i]
        if job > after and (lowest < 0 or job < lowest) and sim.state.short[row, job] > 0:
            lowest = job
    return lowest


@kernel
def _win_seats_back_for_job(sim: Simulation, row: int, job: int) -> None:
    """Give a job seats back, one by one, while each is to make it faster."""
    state = sim.state
    if is_struck(sim, row, job):
        return
    held, won, slowdown = held_gpus(sim, row, job), 0, state.slowdown[row, job]
    types, behind = record_compute_times(sim, row, job), sim.cluster.gpu_node.size
    while state.short[row, job] > 0:
        gpu = find_replacement(sim, row, job, behind, held_ring_iteration_s(sim, row, job), types)
        if gpu == NO_GPU:
            break
        claim_gpu(sim, row, job, gpu)
        faster = present_slowdown(sim, row, job)
        if not sim.rules.ring and faster >= slowdown:
            give_up_gpu(sim, row, job, gpu)
            break
        slowdown = faster
        state.short[row, job] -= 1
        won += 1
    if won == 0:
        return
    if state.short[row, job] == 0:
        state.shrunk[row] -= 1
    count_progress(sim, row, job, state.now_s[row], held)
    continue_after_switch(sim, row, job)
