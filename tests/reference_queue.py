"""The reference simulation's order regimes: who may start next."""

import math

from longshore.cluster.model.problem import ORDERS
from tests.reference_state import (
    Job,
    ReferenceState,
    estimated_run_s,
    estimated_work_s,
    expected_end_s,
    least_slowdown,
    running,
    suiting,
    usable_by,
)

LEADING, PASSING = range(2)
FIFO, EASY, SHORTEST = ORDERS["fifo"], ORDERS["easy"], ORDERS["shortest"]


def aged_s(state: ReferenceState, job: int) -> float:
    """Return when a waiting job ages, to be compared with the moment itself: a difference may be rounded."""
    return waits_since_s(state, job) + state.rules.ageing_s


def waits_since_s(state: ReferenceState, job: int) -> float:
    """Return when a waiting job would have come into the queue, had all its stays there been one."""
    return state.jobs[job].entered_s - state.jobs[job].wait_s


def binds(state: ReferenceState, job: int) -> bool:
    """Say whether nobody may overtake a waiting job: it has aged, and as many GPUs as it asks for are in service."""
    in_service = [gpu for gpu, sources in enumerate(state.held_down_by) if not sources]
    return state.now_s >= aged_s(state, job) and state.jobs[job].gpus <= len(suiting(state, job, in_service))


def bounded(state: ReferenceState) -> list[int]:
    """Return the waiting jobs that the ageing bound is for: under strict FIFO the one that leads only."""
    return [first_in_turn(state)] if state.rules.order == FIFO and state.queue else state.queue


def may_wait(state: ReferenceState, job: int) -> bool:
    """Say whether the policy may let the next event pass instead of placing the job."""
    return state.rules.waiting and not binds(state, job) and bool(running(state))


def offered(state: ReferenceState) -> int | None:
    """Return the job that may start now by the order regime, None if there is no more."""
    ready = [
        job
        for job in state.queue
        if state.jobs[job].gpus <= len(usable_by(state, job)) and job not in state.passed_over
    ]
    first = leader(state)
    if first is None or first in ready:
        return first
    if state.rules.order == FIFO:
        return None
    others = [job for job in followers(state, first) if job in ready]
    return next((job for job in others if might_pass(state, first, job)), None)


def leader(state: ReferenceState) -> int | None:
    """Return the job that no other may delay: the one that aged longest, else the first by the order regime."""
    if not state.queue:
        return None
    too_long = [job for job in bounded(state) if binds(state, job)]
    if too_long:
        return min(too_long, key=lambda job: waits_since_s(state, job))
    return first_in_turn(state)


def first_in_turn(state: ReferenceState) -> int:
    """Return the first waiting job by turns and the order regime."""
    head = state.queue[0]
    if state.jobs[head].came_back and state.rules.order != SHORTEST:
        return head
    jobs = in_turns(state, LEADING)[0]
    if state.rules.order == SHORTEST:
        return min(jobs, key=lambda job: (state.jobs[job].rank, estimated_work_s(state, job)))
    return jobs[0]


def in_turns(state: ReferenceState, rotation: int) -> list[list[int]]:
    """Return the waiting jobs by line, as the queue has them; the line first whose turn it is. Without turns, all."""
    if not state.rules.turns:
        return [state.queue]
    lines: dict[int, list[int]] = {}
    for job in state.queue:
        lines.setdefault(state.jobs[job].line, []).append(job)

    def turn(line: int) -> tuple[int, tuple[float, int], int]:
        came = [job for job in lines[line] if not state.jobs[job].came_back] or lines[line]
        entered_s, oldest = min((state.jobs[job].entered_s, job) for job in came)
        since = max((entered_s, 0), state.turns.get((rotation, line), (entered_s, 0)))
        return state.jobs[oldest].rank, since, oldest

    return [lines[line] for line in sorted(lines, key=turn)]


def take_turn(state: ReferenceState, job: int) -> None:
    """Note that a job starts, with its user's turn unless it leads for it was stopped: then it has had it before."""
    if state.jobs[job].came_back and job == leader(state) and state.rules.order != SHORTEST:
        return
    last = max((number for _, number in state.turns.values()), default=0)
    for rotation in (LEADING, PASSING):
        if rotation == PASSING or job == leader(state):
            state.turns[rotation, state.jobs[job].line] = (state.now_s, last + 1)


def followers(state: ReferenceState, first: int) -> list[int]:
    """Return the other jobs of the queue, in the order in which they may pass the first."""
    return [job for jobs in in_turns(state, PASSING) for job in followers_of(state, first, jobs)]


def followers_of(state: ReferenceState, first: int, jobs: list[int]) -> list[int]:
    """Return those of some jobs that stand in the queue as they do here."""
    others = [job for job in jobs if job != first][: state.rules.backfill_depth]
    if state.rules.order == EASY:
        return others
    return sorted(others, key=lambda job: (state.jobs[job].rank, estimated_work_s(state, job)))


def reservation(state: ReferenceState, first: int) -> tuple[float, int]:
    """Return the first expected end at which the first job fits, and how many GPUs that suit it are left over then.

    Of those, nobody may take one for any time if nobody may overtake it.
    """
    if binds(state, first):
        return -math.inf, 0
    spare = len(usable_by(state, first)) - state.jobs[first].gpus
    ends = sorted((expected_end_s(job), len(left_by(state, first, job))) for job in running(state))
    for shadow_s, _ in ends:
        extra = spare + sum(gpus for end_s, gpus in ends if end_s <= shadow_s)
        if extra >= 0:
            return shadow_s, extra
    return math.inf, 0


def left_by(state: ReferenceState, first: int, job: Job) -> list[int]:
    """Return the GPUs of a running job on which another may start afterwards; spares go back to the pool."""
    return [gpu for gpu in suiting(state, first, job.placement) if gpu not in state.spares]


def passes(state: ReferenceState, first: int, job: int, factor: float, held: int) -> bool:
    """Say whether a job delays the first one nowhere, of whose GPUs it would hold so many."""
    shadow_s, extra = reservation(state, first)
    return state.now_s + estimated_run_s(state, job, factor) <= shadow_s or held <= extra


def might_pass(state: ReferenceState, first: int, job: int) -> bool:
    """Say whether the fastest run of a job may pass, or one on as few GPUs of the first as there can be."""
    usable = usable_by(state, job)
    elsewhere = len(usable) - len(suiting(state, first, usable))
    held = max(0, state.jobs[job].gpus - elsewhere)
    return passes(state, first, job, least_slowdown(state, job), held)
