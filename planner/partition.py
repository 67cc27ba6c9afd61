"""The partition of layers into stages: contiguous, the slowest stage as fast as possible, no stage over its memory.

To test a time, each stage takes all layers that fit under the time and its memory. The time can be reached if that
places all layers: a part of what fits also fits, so taking fewer never helps later stages. There is one exception. If
a stage cannot take even the next layer, earlier stages may have to take fewer, as no stage may be empty; then all ways
are followed. Bisection finds the shortest time exactly: in the end no shorter time can be reached.

Source: SPEC P1.
"""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from math import inf, nextafter
from typing import NamedTuple

Cuts = tuple[int, ...]  # (stages + 1,) stage k has layers cuts[k] to cuts[k + 1] - 1


class StageCosts(NamedTuple):
    """The costs of the layers on one stage, as sums from the first layer on: both of length layers + 1."""

    time_s: Sequence[float]
    memory_bytes: Sequence[float]
    max_bytes: float  # that the stage may hold


def prefix_sums(values: Sequence[float]) -> list[float]:
    """Return the sums of the first 0, 1, 2 and so on of the values."""
    return [0.0, *accumulate(values)]


def partition(stages: Sequence[StageCosts]) -> Cuts | None:
    """Return the cuts with the shortest time of the slowest stage; None if the layers do not fit into memory.

    Every stage gets at least one layer.
    """
    cuts = _greedy_cuts(stages, inf)
    if cuts is None:
        return None
    low, high = 0.0, slowest_stage_s(stages, cuts)
    while True:
        # Bisection; it ends at the greatest number below the reached time.
        middle = (low + high) / 2.0
        below = nextafter(high, -inf)
        middle = below if middle >= below or high - low < 1e-9 * high else middle
        found = _greedy_cuts(stages, middle)
        if found is not None:
            cuts, high = found, slowest_stage_s(stages, found)
        elif middle == below:
            return cuts
        else:
            low = middle


def slowest_stage_s(stages: Sequence[StageCosts], cuts: Cuts) -> float:
    """Return the time of the slowest stage."""
    return max(stage.time_s[cuts[k + 1]] - stage.time_s[cuts[k]] for k, stage in enumerate(stages))


def _greedy_cuts(stages: Sequence[StageCosts], max_s: float) -> Cuts | None:
    """Return the cuts if each stage in order takes all that fits; None if layers remain."""
    layers, count = len(stages[0].time_s) - 1, len(stages)
    cuts = [0]
    for k, stage in enumerate(stages):
        start = cuts[-1]
        end = min(
            _last_end_within(stage.time_s, start, max_s), _last_end_within(stage.memory_bytes, start, stage.max_bytes)
        )
        end = min(end, layers - (count - 1 - k))  # later stages need a layer each
        if end <= start:
            return _exhaustive_cuts(stages, max_s)
        cuts.append(end)
    return tuple(cuts) if cuts[-1] == layers else None


def _exhaustive_cuts(stages: Sequence[StageCosts], max_s: float) -> Cuts | None:
    """Return the same as `_greedy_cuts`, by following every place where a stage may end."""
    layers = len(stages[0].time_s) - 1
    came_from: list[dict[int, int]] = [{0: 0}]  # for each stage, where it may end, and where it then began
    for stage in stages:
        ends, reached = dict[int, int](), 0
        for start in sorted(came_from[-1]):
            last = min(
                _last_end_within(stage.time_s, start, max_s),
                _last_end_within(stage.memory_bytes, start, stage.max_bytes),
            )
            # Places up to the last one of an earlier start are known already.
            ends.update(dict.fromkeys(range(max(start, reached) + 1, last + 1), start))
            reached = max(reached, last)
        came_from.append(ends)
    cuts, at = list[int](), layers
    for ends in reversed(came_from):
        if at not in ends:
            return None
        cuts.append(at)
        at = ends[at]
    return tuple(reversed(cuts))


def _last_end_within(sums: Sequence[float], start: int, limit: float) -> int:
    """Return the greatest end with at most the limit from start to it."""
    end = bisect_right(sums, sums[start] + limit) - 1
    # The sum of rounded numbers may be off by a bit: what counts is the difference.
    while end + 1 < len(sums) and sums[end + 1] - sums[start] <= limit:
        end += 1
    while end > start and sums[end] - sums[start] > limit:
        end -= 1
    return end
