"""Faults that are detected late and rings that are formed anew, in the plain reference simulator.

Every idle GPU is looked at one by one, and the formulas are those of the specification.
"""

import math
from itertools import pairwise
from statistics import median
from typing import NamedTuple

from longshore.cluster.model.problem import Rules
from longshore.cluster.switching import SOURCE, TYPICAL_EFFICIENCY
from tests.reference_slow import end_piece, kept_by, note, paced, run_from_here, slow_nodes
from tests.reference_state import Job, Kept, ReferenceState, running

POOL, KEPT = -1, -2  # hold idle spares down, and GPUs that jobs keep, besides the fault sources


def holds_on(rules: Rules) -> bool:
    return rules.switching or rules.detection_s > 0 or rules.slow_per_s > 0


def fill_pool(state: ReferenceState) -> None:
    """Put the last GPUs of each type into the pool."""
    for kind in set(state.node_type):
        gpus = [gpu for node, of in enumerate(state.node_gpus) if state.node_type[node] == kind for gpu in of]
        spares = math.ceil(state.rules.spares * len(gpus) - 1e-9)
        for gpu in gpus[len(gpus) - spares :]:
            state.spares.add(gpu)
            hold_down(state, gpu)


def hold_down(state: ReferenceState, gpu: int, by: int = POOL) -> None:
    if not state.held_down_by[gpu]:
        state.down_since_s[gpu] = state.now_s
    state.held_down_by[gpu].add(by)


def let_up(state: ReferenceState, gpu: int, by: set[int]) -> None:
    if state.held_down_by[gpu] and state.held_down_by[gpu] <= by:
        state.down_gpu_s += state.now_s - state.down_since_s[gpu]
        state.down_since_s[gpu] = math.nan
    state.held_down_by[gpu] -= by


def relieve(state: ReferenceState, index: int, gpu: int, backup: int) -> None:
    """Take a slow GPU off the ring of a job, which keeps it."""
    state.jobs[index].placement.remove(gpu)
    leave(state, gpu)
    hold_down(state, gpu, KEPT)
    state.kept[gpu] = Kept(index, backup, state.now_s)


def take_back(state: ReferenceState, index: int, gpu: int) -> None:
    """Give a relieved GPU its seat back; its backup leaves."""
    backup = state.kept[gpu].backup
    release(state, gpu)
    take(state, index, gpu)
    state.jobs[index].placement.remove(backup)
    leave(state, backup)


def release(state: ReferenceState, gpu: int) -> None:
    """Keep a relieved GPU no longer."""
    state.backup_gpu_s += state.now_s - state.kept.pop(gpu).since_s
    let_up(state, gpu, {KEPT})


def drop_failed(state: ReferenceState, index: int) -> None:
    """Let the backups of relieved GPUs that have failed stay for good."""
    for gpu in kept_by(state, index):
        if state.held_down_by[gpu] - {POOL, KEPT}:
            swap_roles(state, state.kept[gpu].backup, gpu)
            release(state, gpu)


def swap_roles(state: ReferenceState, gpu: int, failed: int) -> None:
    """Let a GPU that failed be a spare in place of the one that took its seat."""
    if gpu in state.spares and failed not in state.spares and alike(state, gpu, failed):
        state.spares.remove(gpu)
        state.spares.add(failed)
        if state.gpu_job[failed] < 0:
            hold_down(state, failed)


def leave(state: ReferenceState, gpu: int) -> None:
    """Let a GPU serve no job; a spare goes back to the pool."""
    state.gpu_job[gpu] = -1
    state.dead.discard(gpu)
    if gpu in state.spares:
        hold_down(state, gpu)


def take(state: ReferenceState, index: int, gpu: int) -> None:
    """Give a running job one GPU more."""
    let_up(state, gpu, {POOL})
    state.gpu_job[gpu] = index
    state.jobs[index].placement = sorted([*state.jobs[index].placement, gpu])


def strike(state: ReferenceState, gpus: list[int]) -> None:
    """Let the processes on GPUs that failed die, and their jobs stand still."""
    for gpu in gpus:
        if state.gpu_job[gpu] < 0:
            continue
        state.dead.add(gpu)
        job = state.jobs[state.gpu_job[gpu]]
        if math.isnan(job.struck_s):
            job.struck_s = state.now_s
            job.end_s = state.now_s + state.rules.detection_s


def heed(state: ReferenceState, index: int) -> bool:
    """Act on the faults of a job; False if it has to be stopped."""
    job = state.jobs[index]
    if not state.rules.switching or set(job.placement) <= state.dead:
        return False
    drop_failed(state, index)
    end_piece(state, job)
    before = Before(ring_s(state, job, len(job.placement), job.placement), records_of(state, job))
    for gpu in [gpu for gpu in job.placement if gpu in state.dead]:
        state.dead.remove(gpu)
        if not state.held_down_by[gpu]:
            continue
        slow = [it for it in kept_by(state, index) if state.kept[it].backup == gpu]
        if slow:
            take_back(state, index, slow[0])
            continue
        others = [other for other in job.placement if other != gpu and not state.held_down_by[other]]
        found = newcomer(state, index, others, gpu, before)
        if found is not None:
            take(state, index, found)
            swap_roles(state, found, gpu)
        job.placement.remove(gpu)
        leave(state, gpu)
    go_on(state, index)
    return True


def alike(state: ReferenceState, gpu: int, other: int) -> bool:
    """Say whether two GPUs are of one type and suit the same jobs."""
    nodes = state.gpu_node[gpu], state.gpu_node[other]
    same_jobs = all((nodes[0] in suited) == (nodes[1] in suited) for suited in state.kinds)
    return state.node_type[nodes[0]] == state.node_type[nodes[1]] and same_jobs


def go_on(state: ReferenceState, index: int) -> None:
    job = state.jobs[index]
    job.struck_s = math.nan
    run_from_here(state, index, state.rules.switch_s)
    state.switches += 1
    note(state, "switch", index, job.placement)


def win_back(state: ReferenceState) -> None:
    """Let jobs that run on fewer GPUs than they ask for have idle ones."""
    for index, job in enumerate(state.jobs):
        if job not in running(state) or len(job.placement) == job.gpus or not math.isnan(job.struck_s):
            continue
        before, factor, records = list(job.placement), job.slowdown, records_of(state, job)
        while len(job.placement) < job.gpus:
            present_s = ring_s(state, job, len(job.placement), job.placement)
            found = newcomer(state, index, job.placement, None, Before(present_s, records))
            if found is None:
                break
            if not state.rules.ring and paced(state, index, sorted([*job.placement, found])) >= factor:
                break
            take(state, index, found)
            factor = paced(state, index, job.placement)
        if job.placement != before:
            won, job.placement = job.placement, before
            end_piece(state, job)
            job.placement = won
            go_on(state, index)


def gains(state: ReferenceState, job: Job, gpu: int, records: dict[int, tuple[float, float]]) -> bool:
    """Say whether a ring is to be faster with a GPU more, by what is known of that."""
    ring = job.placement
    seats, kind = len(ring) + 1, state.node_type[state.gpu_node[gpu]]
    demand = median([peak * time_s for time_s, peak in records.values()])
    own_s = records[kind][0] if kind in records else demand / state.peak_flops[state.gpu_node[gpu]]
    own_s *= job.gpus / seats
    slowest_s = max(compute_s(state, job, seats, it) for it in ring)
    if kind in [state.node_type[state.gpu_node[it]] for it in ring]:
        own_s = min(own_s, slowest_s)
    links = [link_bytes_per_s(state, one, other) for one, other in pairwise([*ring, gpu, ring[0]])]
    then_s = max(slowest_s, own_s) + 2 * (seats - 1) / seats * sent_bytes(state, job) / min(links)
    return then_s < ring_s(state, job, len(ring), ring)


class Before(NamedTuple):
    """What is known of a ring before anybody comes."""

    average_s: float  # its iteration time
    records: dict[int, tuple[float, float]]  # by node type: mean compute time where no seat is empty, and peak


def newcomer(state: ReferenceState, index: int, others: list[int], failed: int | None, was: Before) -> int | None:
    """Return the idle GPU that takes the seat of one that failed, or a new one behind all; None if there is none."""
    job, place = state.jobs[index], failed if failed is not None else len(state.gpu_job)
    seats = len(job.placement) + (failed is None)
    before = max([gpu for gpu in others if gpu < place] or others or [place])
    after = min([gpu for gpu in others if gpu > place] or others or [place])
    ring = ordered(others, after) if others else []
    ranked = []
    candidates = idle(state, job)
    if failed is None and state.rules.ring:
        candidates = [gpu for gpu in candidates if gains(state, job, gpu, was.records)]
    for gpu in candidates:
        usual_s, sure_s = (
            iteration_s(state, job, seats, ring, before, after, gpu, own_s * (job.gpus / seats))
            for own_s in compute_times_s(state, was.records, gpu)
        )
        peak, hazard = state.peak_flops[state.gpu_node[gpu]], state.hazard_per_s[gpu]
        keeps = sure_s <= was.average_s
        key = (0.0, peak, usual_s, hazard) if keeps else (1.0, usual_s, peak, hazard)
        ranked.append((key, gpu))
    return min(ranked, key=lambda it: it[0])[1] if ranked else None


def ordered(others: list[int], first: int) -> list[int]:
    """Return a ring without the link over the seat: from the neighbour after it to the one before it."""
    at = others.index(first)
    return others[at:] + others[:at]


def idle(state: ReferenceState, job: Job) -> list[int]:
    """Return the idle GPUs on which a job could go on; those of the pool last."""
    well = job.nodes - slow_nodes(state)
    suiting = [gpu for gpu, of in enumerate(state.gpu_job) if of < 0 and state.gpu_node[gpu] in well]
    free = [gpu for gpu in suiting if not state.held_down_by[gpu]]
    return free + [gpu for gpu in suiting if state.held_down_by[gpu] == {POOL}]


def whole_s(state: ReferenceState, job: Job, gpu: int) -> float:
    """Return the compute time of a job on a GPU where no seat is empty."""
    return job.compute_s / state.speed[state.gpu_node[gpu]]


def compute_s(state: ReferenceState, job: Job, seats: int, gpu: int) -> float:
    return whole_s(state, job, gpu) * (job.gpus / seats)


def records_of(state: ReferenceState, job: Job) -> dict[int, tuple[float, float]]:
    """Return the mean compute time of a job on each type in its ring, in the order of the GPUs."""
    kinds: dict[int, list[int]] = {}
    for member in job.placement:
        kinds.setdefault(state.node_type[state.gpu_node[member]], []).append(member)
    return {
        kind: (mean_of([whole_s(state, job, it) for it in members]), state.peak_flops[state.gpu_node[members[0]]])
        for kind, members in kinds.items()
    }


def compute_times_s(state: ReferenceState, records: dict[int, tuple[float, float]], gpu: int) -> tuple[float, float]:
    """Return the compute time of a candidate: that of its type in the ring, or what its peak lets expect."""
    kind = state.node_type[state.gpu_node[gpu]]
    if kind in records:
        return records[kind][0], records[kind][0]
    demands = [peak * time_s for time_s, peak in records.values()]
    peak = state.peak_flops[state.gpu_node[gpu]]
    if state.rules.replacement == SOURCE:
        return TYPICAL_EFFICIENCY * median(demands) / peak, TYPICAL_EFFICIENCY * median(demands) / peak
    return median(demands) / peak, max(demands) / peak


def mean_of(values: list[float]) -> float:
    return sum(values) / len(values)  # in the order of the GPUs


def link_bytes_per_s(state: ReferenceState, gpu: int, other: int) -> float:
    nodes = {state.gpu_node[gpu], state.gpu_node[other]}
    racks = {state.node_rack[node] for node in nodes}
    if len(nodes) == 1:
        return state.intra_bytes_per_s[state.gpu_node[gpu]]
    links = [state.nic_bytes_per_s[node] for node in nodes]
    return min([*links, *(state.uplink_bytes_per_s[rack] for rack in racks if len(racks) > 1)])


def sent_bytes(state: ReferenceState, job: Job) -> float:
    return job.parameter_bytes if state.rules.ring else 0.0


def ring_s(state: ReferenceState, job: Job, seats: int, ring: list[int]) -> float:
    """Return an iteration time of a closed ring: all wait for the slowest member and for the slowest link."""
    slowest_s = max(compute_s(state, job, seats, gpu) for gpu in ring)
    if seats < 2:
        return slowest_s
    link = min(link_bytes_per_s(state, one, other) for one, other in pairwise([*ring, ring[0]]))
    return slowest_s + 2 * (seats - 1) / seats * sent_bytes(state, job) / link


def iteration_s(
    state: ReferenceState, job: Job, seats: int, ring: list[int], before: int, after: int, gpu: int, own_s: float
) -> float:
    """Return the iteration time with a candidate on the seat, by the formula of the rules."""
    ends = [link_bytes_per_s(state, before, gpu), link_bytes_per_s(state, gpu, after)]
    if state.rules.replacement == SOURCE:
        return max(sent_bytes(state, job) / link for link in ends) + own_s
    slowest_s = max([own_s, *(compute_s(state, job, seats, it) for it in ring)])
    links = ends + [link_bytes_per_s(state, one, other) for one, other in pairwise(ring)]
    return slowest_s + 2 * (seats - 1) / seats * sent_bytes(state, job) / min(links)
