"""Backups for GPUs on slow nodes, in the plain reference simulator."""

import math

from tests.reference_slow import end_piece, kept_by, note_slow_nodes, paced, slow_nodes
from tests.reference_state import Job, ReferenceState, running
from tests.reference_switching import (
    Before,
    drop_failed,
    go_on,
    newcomer,
    records_of,
    relieve,
    ring_s,
    take,
    take_back,
)


def gives_backups(state: ReferenceState) -> bool:
    return bool(state.rules.backups and state.rules.switching and state.paces)


def reliefs_s(state: ReferenceState) -> list[float]:
    """Return when it is found out of running jobs that they have slow nodes."""
    if not gives_backups(state):
        return []
    found_s = [job.slowed_s + state.rules.detection_s for job in running(state)]
    return [time_s for time_s in found_s if time_s > state.now_s]


def back_up(state: ReferenceState) -> None:
    if not gives_backups(state):
        return
    for index, job in enumerate(state.jobs):
        if not job.placement or math.isnan(job.slowed_s) or not math.isnan(job.struck_s):
            continue
        drop_failed(state, index)
        before, slow = list(job.placement), slow_nodes(state)
        for gpu in kept_by(state, index):
            if not {state.gpu_node[gpu]} <= slow or state.gpu_node[state.kept[gpu].backup] in slow:
                take_back(state, index, gpu)
        if state.now_s >= job.slowed_s + state.rules.detection_s:
            while relieve_slowest(state, index):
                pass
        if job.placement != before:
            end_piece(state, job)
            go_on(state, index)
        else:
            note_slow_nodes(state, index)


def relieve_slowest(state: ReferenceState, index: int) -> bool:
    """Relieve all GPUs that a job waits for, if they are on slow nodes and it is faster then; else none."""
    job, tried = state.jobs[index], list[int]()
    slowest, before = min(present_speed(state, gpu) for gpu in job.placement), paced(state, index, job.placement)
    was = Before(ring_s(state, job, len(job.placement), job.placement), records_of(state, job))
    waited_for = [gpu for gpu in job.placement if is_slow(state, gpu) and present_speed(state, gpu) == slowest]
    for gpu in waited_for:
        found = backup_for(state, index, job, gpu, was)
        if found is None:
            break
        take(state, index, found)
        relieve(state, index, gpu, found)
        tried.append(gpu)
    if tried and tried == waited_for and paced(state, index, job.placement) < before:
        state.backups += len(tried)
        return True
    for gpu in tried:
        take_back(state, index, gpu)
    return False


def backup_for(state: ReferenceState, index: int, job: Job, gpu: int, was: Before) -> int | None:
    if len(kept_by(state, index)) >= state.rules.backups:
        return None
    return newcomer(state, index, [other for other in job.placement if other != gpu], gpu, was)


def is_slow(state: ReferenceState, gpu: int) -> bool:
    return state.gpu_node[gpu] in slow_nodes(state)


def present_speed(state: ReferenceState, gpu: int) -> float:
    speed = state.speed[state.gpu_node[gpu]]
    return speed / state.rules.slow_factor if is_slow(state, gpu) else speed
