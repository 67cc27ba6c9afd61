"""Nodes that are slow for a while, in the plain reference simulator, and the pieces that a run then comes in."""

import math
from collections.abc import Iterator
from dataclasses import replace

from longshore.cluster.model.outcome import Event
from longshore.cluster.model.problem import Rules
from tests.reference_faults import plain_uniform
from tests.reference_state import Job, Pace, ReferenceState, renew_estimate, slowdown, switched_work_s


def note(state: ReferenceState, kind: str, job: int, gpus: list[int]) -> None:
    state.events.append(Event(state.now_s, kind, job, tuple(gpus)))


def pace_stream(sources: int, nodes: int, node: int) -> int:
    """Return the stream from which a node draws when it becomes slow, behind those by which nodes are lemons."""
    return sources + nodes + node


def first_pace(rules: Rules, seed: int, stream: int) -> Pace:
    turns = turns_of(rules, seed, stream)
    return Pace(turns, next(turns))


def turns_of(rules: Rules, seed: int, stream: int) -> Iterator[float]:
    """Yield when a node becomes slow, and well, by turns."""
    now_s, k = 0.0, 0
    while True:
        now_s -= math.log(plain_uniform(seed, stream, 2 * k)) / rules.slow_per_s
        yield now_s
        now_s -= math.log(plain_uniform(seed, stream, 2 * k + 1)) * rules.slow_mean_s
        yield now_s
        k += 1


def slow_nodes(state: ReferenceState) -> set[int]:
    return {node for node, pace in enumerate(state.paces) if pace.slow}


def paced(state: ReferenceState, index: int, gpus: list[int]) -> float:
    """Return the slowdown of a placement at the moment: GPUs of slow nodes are of a lower speed."""
    slow, factor = slow_nodes(state), state.rules.slow_factor
    speed = [speed / factor if node in slow else speed for node, speed in enumerate(state.speed)]
    return slowdown(replace(state, speed=speed), index, gpus)


def turn_paces(state: ReferenceState) -> None:
    for node, pace in enumerate(state.paces):
        while pace.next_s == state.now_s:
            pace.slow, pace.next_s = not pace.slow, next(pace.turns)
            note(state, "slow" if pace.slow else "well", -1, state.node_gpus[node])
            for index, job in enumerate(state.jobs):
                if set(job.placement) & set(state.node_gpus[node]):
                    change_pace(state, index)


def change_pace(state: ReferenceState, index: int) -> None:
    """Let a running job go on at the speed that its GPUs have now, with what is left of a pause."""
    job = state.jobs[index]
    if not math.isnan(job.struck_s):
        return
    note_slow_nodes(state, index)
    if paced(state, index, job.placement) != job.slowdown:
        pause_s = max(0.0, job.start_s + job.overhead_s - state.now_s)
        end_piece(state, job)
        run_from_here(state, index, pause_s)


def kept_by(state: ReferenceState, index: int) -> list[int]:
    """Return the relieved GPUs that a job keeps, ascending."""
    return sorted(gpu for gpu, kept in state.kept.items() if kept.job == index)


def note_slow_nodes(state: ReferenceState, index: int) -> None:
    """Note whether a running job has GPUs on slow nodes, relieved or not, and since when."""
    job = state.jobs[index]
    meets = bool(kept_by(state, index)) or bool({state.gpu_node[gpu] for gpu in job.placement} & slow_nodes(state))
    if meets and math.isnan(job.slowed_s):
        job.slowed_s = state.now_s
        state.slowed += 1
    if not meets:
        job.slowed_s = math.nan


def end_piece(state: ReferenceState, job: Job) -> None:
    """Keep what a job did since its last start or change, and count the rest of that time as lost."""
    renew_estimate(state, job)
    until_s = state.now_s if math.isnan(job.struck_s) else job.struck_s
    useful_s = max(0.0, until_s - job.start_s - job.overhead_s)
    job.lost_s += (state.now_s - job.start_s - useful_s) * len(job.placement) / job.gpus
    state.busy_gpu_s += len(job.placement) * (state.now_s - job.start_s)
    job.pieces.append((useful_s, job.slowdown, len(job.placement)))


def run_from_here(state: ReferenceState, index: int, pause_s: float) -> None:
    job = state.jobs[index]
    left_s = max(0.0, job.work_s - (job.saved_s + switched_work_s(job)))
    job.start_s, job.overhead_s = state.now_s, pause_s
    job.slowdown = paced(state, index, job.placement)
    job.end_s = state.now_s + (pause_s + left_s * job.slowdown)
    note_slow_nodes(state, index)
