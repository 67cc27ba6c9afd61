"""A pipeline's schedule played through: how long an iteration takes where ranks share cores.

Each rank does its forward and backward passes in the order of the schedule, each as soon as what it needs has come. Its
work goes on at a speed that hangs on how many ranks are busy. All replicas of a stage do the same at the same time.

Where every rank has a machine of its own and stages are alike, this is the formula of `step_time`.

Source: SPEC P1.
"""

from collections.abc import Sequence
from enum import StrEnum
from math import inf
from typing import NamedTuple

ROUNDS = 3  # iterations that are played; the last is told: a stage may begin one before others have ended the last


class Schedule(StrEnum):
    """In which order a stage does its passes."""

    one_forward_one_backward = "1f1b"
    gpipe = "gpipe"


class Seconds(NamedTuple):
    """What a stage takes in an iteration: work for a rank that is alone, or time."""

    forward_s: float
    backward_s: float
    gradients_s: float  # sum over replicas
    optimizer_s: float

    @property
    def total_s(self) -> float:
        """All of it."""
        return sum(self)


class StageWork(NamedTuple):
    """What a stage has to do in an iteration; passes are for one micro-batch."""

    seconds: Seconds
    arrives_s: float  # time from the end of a pass to its arrival at the next stage, or back from it


class _Pass(NamedTuple):
    kind: int  # index in Seconds
    iteration: int
    micro_batch: int


def order(schedule: Schedule, stage: int, stages: int, micro_batches: int) -> list[tuple[int, int]]:
    """Return the passes of a stage, each as 0 for forward or 1 for backward and its micro-batch."""
    ahead = micro_batches if schedule is Schedule.gpipe else min(micro_batches, stages - stage)
    found = [(0, it) for it in range(ahead)]
    for done in range(micro_batches):
        found.append((1, done))
        found += [(0, ahead + done)] if ahead + done < micro_batches else []
    return found


def play(
    works: Sequence[StageWork], micro_batches: int, schedule: Schedule, replicas: int, speeds: Sequence[float]
) -> tuple[float, list[Seconds]]:
    """Return the time of an iteration, and what each stage spends of it on what; the rest it waits.

    Args:
        works: Of the stages.
        micro_batches: Of each replica, in an iteration.
        schedule: Order of the passes.
        replicas: Of each stage.
        speeds: Of a rank where one, two, three and so on are busy; beyond them, the last.
    """
    stages = len(works)
    queues = [_queue(order(schedule, k, stages, micro_batches)) for k in range(stages)]
    at, left = [0] * stages, [-1.0] * stages  # position in the queue; work left of a pass that has begun, else -1
    ended: dict[tuple[int, _Pass], float] = {}
    spent = [[0.0, 0.0, 0.0, 0.0] for _ in range(stages)]
    ends, now = [0.0] * ROUNDS, 0.0
    while any(at[k] < len(queues[k]) for k in range(stages)):
        comes = inf
        for k in range(stages):
            if left[k] < 0.0 and at[k] < len(queues[k]):
                ready = _ready_s(works, ended, k, queues[k][at[k]])
                if ready <= now:
                    left[k] = works[k].seconds[queues[k][at[k]].kind]
                else:
                    comes = min(comes, ready)
        busy = [k for k in range(stages) if left[k] >= 0.0]
        speed = speeds[min(len(speeds), len(busy) * replicas) - 1] if busy else 1.0
        step_s = min((left[k] / speed for k in busy), default=inf)
        step_s = min(step_s, comes - now)
        now += step_s
        for k in busy:
            doing = queues[k][at[k]]
            if doing.iteration == ROUNDS - 1:
                spent[k][doing.kind] += step_s
            left[k] -= step_s * speed
            if left[k] <= 1e-12:
                ended[k, doing], left[k] = now, -1.0
                at[k] += 1
                ends[doing.iteration] = now
    return ends[-1] - ends[-2], [Seconds(*it) for it in spent]


def _queue(passes: Sequence[tuple[int, int]]) -> list[_Pass]:
    once = [*passes, (2, 0), (3, 0)]
    return [_Pass(kind, iteration, it) for iteration in range(ROUNDS) for kind, it in once]


def _ready_s(works: Sequence[StageWork], ended: dict[tuple[int, _Pass], float], stage: int, it: _Pass) -> float:
    """Return when a stage may begin a pass; infinite while what it needs is not done."""
    if it.kind == 0 and stage > 0:
        return ended.get((stage - 1, it), inf) + works[stage - 1].arrives_s
    if it.kind == 1 and stage + 1 < len(works):
        return ended.get((stage + 1, it), inf) + works[stage].arrives_s
    return 0.0


def schedule_of(micro_batches: int, stages: int) -> Schedule:
    """Return the schedule that plans use: 1F1B, which keeps least; it needs as many micro-batches as stages."""
    return Schedule.one_forward_one_backward if micro_batches >= stages else Schedule.gpipe
