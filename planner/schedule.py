"""The schedule of a pipeline: the order of the passes of each stage, and its simulation on ranks that share cores.

Several ranks of a machine without GPUs may share a core, so the speed of a rank depends on the number of busy ranks.
`simulate_schedule` takes that into account: each rank does its passes in the order of the schedule, each as soon as its
inputs have arrived. All replicas of a stage do the same at the same time. With a core for each rank and equal stages,
the result is the formula of planner/step_time.py.

Source: SPEC P1.
"""

from collections.abc import Sequence
from enum import StrEnum
from math import inf
from typing import NamedTuple

SIMULATED_ITERATIONS = 3  # the last counts: a stage may begin an iteration before others end the last


class Schedule(StrEnum):
    """The order of the passes of a stage."""

    one_forward_one_backward = "1f1b"
    gpipe = "gpipe"


class StageSeconds(NamedTuple):
    """The seconds of a stage in an iteration: work for a single busy rank, or time."""

    forward_s: float
    backward_s: float
    gradients_s: float  # sum over replicas
    optimizer_s: float

    @property
    def total_s(self) -> float:
        """The sum."""
        return sum(self)


class StageWork(NamedTuple):
    """The work of a stage in an iteration; passes are for one micro-batch."""

    seconds: StageSeconds
    arrives_s: float  # time that the output of a pass travels to the next stage, or back from it


class _SimulatedPass(NamedTuple):
    kind: int  # index in Seconds
    iteration: int
    micro_batch: int


def pass_order(schedule: Schedule, stage: int, stages: int, micro_batches: int) -> list[tuple[int, int]]:
    """Return the passes of a stage, each as 0 for forward or 1 for backward and its micro-batch."""
    ahead = micro_batches if schedule is Schedule.gpipe else min(micro_batches, stages - stage)
    found = [(0, micro_batch) for micro_batch in range(ahead)]
    for done in range(micro_batches):
        found.append((1, done))
        found += [(0, ahead + done)] if ahead + done < micro_batches else []
    return found


def simulate_schedule(
    works: Sequence[StageWork], micro_batches: int, schedule: Schedule, replicas: int, speeds: Sequence[float]
) -> tuple[float, list[StageSeconds]]:
    """Simulate a schedule; return the time of an iteration, and how each stage spends it; the rest it waits.

    Args:
        works: Of the stages.
        micro_batches: Of each replica, in an iteration.
        schedule: Order of the passes.
        replicas: Of each stage.
        speeds: Of a rank where one, two, three and so on are busy; beyond them, the last.
    """
    stages = len(works)
    queues = [_simulated_passes(pass_order(schedule, k, stages, micro_batches)) for k in range(stages)]
    at, left = [0] * stages, [-1.0] * stages  # position in the queue; remaining work of a running pass, else -1
    ended: dict[tuple[int, _SimulatedPass], float] = {}
    spent = [[0.0, 0.0, 0.0, 0.0] for _ in range(stages)]
    ends, now = [0.0] * SIMULATED_ITERATIONS, 0.0
    while any(at[k] < len(queues[k]) for k in range(stages)):
        next_arrival = inf
        for k in range(stages):
            if left[k] < 0.0 and at[k] < len(queues[k]):
                ready = _earliest_start_s(works, ended, k, queues[k][at[k]])
                if ready <= now:
                    left[k] = works[k].seconds[queues[k][at[k]].kind]
                else:
                    next_arrival = min(next_arrival, ready)
        busy = [k for k in range(stages) if left[k] >= 0.0]
        speed = speeds[min(len(speeds), len(busy) * replicas) - 1] if busy else 1.0
        step_s = min((left[k] / speed for k in busy), default=inf)
        step_s = min(step_s, next_arrival - now)
        now += step_s
        for k in busy:
            doing = queues[k][at[k]]
            if doing.iteration == SIMULATED_ITERATIONS - 1:
                spent[k][doing.kind] += step_s
            left[k] -= step_s * speed
            if left[k] <= 1e-12:
                ended[k, doing], left[k] = now, -1.0
                at[k] += 1
                ends[doing.iteration] = now
    return ends[-1] - ends[-2], [StageSeconds(*seconds) for seconds in spent]


def _simulated_passes(passes: Sequence[tuple[int, int]]) -> list[_SimulatedPass]:
    once = [*passes, (2, 0), (3, 0)]
    return [
        _SimulatedPass(kind, iteration, micro_batch)
        for iteration in range(SIMULATED_ITERATIONS)
        for kind, micro_batch in once
    ]


def _earliest_start_s(
    works: Sequence[StageWork], ended: dict[tuple[int, _SimulatedPass], float], stage: int, next_pass: _SimulatedPass
) -> float:
    """Return when a stage may begin a pass; infinite while its input is not computed."""
    if next_pass.kind == 0 and stage > 0:
        return ended.get((stage - 1, next_pass), inf) + works[stage - 1].arrives_s
    if next_pass.kind == 1 and stage + 1 < len(works):
        return ended.get((stage + 1, next_pass), inf) + works[stage].arrives_s
    return 0.0


def default_schedule(micro_batches: int, stages: int) -> Schedule:
    """Return the schedule of a plan: 1F1B, which needs least memory, if there is a micro-batch for each stage."""
    return Schedule.one_forward_one_backward if micro_batches >= stages else Schedule.gpipe
