"""Layers partitioned into stages: contiguous, the slowest stage as fast as possible, no stage over its memory.

Layers on stages: contiguous, the slowest stage as fast as can be, no stage over its memory.

A stage that starts at a layer takes as many layers as fit under a time and its memory. Whether all layers are placed
so says whether the time can be reached: part of what fits fits too, so taking fewer never helps those behind. There is
one exception. Where a stage cannot take even the next layer, it may help if those before it take fewer, as no stage may
be empty; there all ways are followed. The least time is found by halving, and is exact: in the end no time below it can
be reached.

Source: SPEC P1.
"""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from math import inf, nextafter
from typing import NamedTuple

Cuts = tuple[int, ...]  # (stages + 1,) stage k has layers cuts[k] to cuts[k + 1] - 1


class StageCosts(NamedTuple):
    """What the layers cost on one stage, as sums from the first layer on: both of length layers + 1."""

    time_s: Sequence[float]
    memory_bytes: Sequence[float]
    most_bytes: float  # that the stage may hold


def sums(values: Sequence[float]) -> list[float]:
    """Return the sums of the first 0, 1, 2 and so on of the values."""
    return [0.0, *accumulate(values)]


def partition(stages: Sequence[StageCosts]) -> Cuts | None:
    """Return the cuts with the least time of the slowest stage; None if the layers do not fit into memory.

    Every stage gets a layer at least.
    """
    cuts = _filled(stages, inf)
    if cuts is None:
        return None
    low, high = 0.0, slowest_s(stages, cuts)
    while True:
        # Halving first; below it ends at the greatest number under the time that was reached.
        middle = (low + high) / 2.0
        below = nextafter(high, -inf)
        middle = below if middle >= below or high - low < 1e-9 * high else middle
        found = _filled(stages, middle)
        if found is not None:
            cuts, high = found, slowest_s(stages, found)
        elif middle == below:
            return cuts
        else:
            low = middle


def slowest_s(stages: Sequence[StageCosts], cuts: Cuts) -> float:
    """Return the time of the slowest stage."""
    return max(stage.time_s[cuts[k + 1]] - stage.time_s[cuts[k]] for k, stage in enumerate(stages))


def _filled(stages: Sequence[StageCosts], most_s: float) -> Cuts | None:
    """Return the cuts of stages that each take what they can, in order; None if layers are left."""
    layers, count = len(stages[0].time_s) - 1, len(stages)
    cuts = [0]
    for k, stage in enumerate(stages):
        start = cuts[-1]
        end = min(_last_under(stage.time_s, start, most_s), _last_under(stage.memory_bytes, start, stage.most_bytes))
        end = min(end, layers - (count - 1 - k))  # those behind need a layer each
        if end <= start:
            return _followed(stages, most_s)
        cuts.append(end)
    return tuple(cuts) if cuts[-1] == layers else None


def _followed(stages: Sequence[StageCosts], most_s: float) -> Cuts | None:
    """Return the same as `_filled` by following every place where a stage may end."""
    layers = len(stages[0].time_s) - 1
    came_from: list[dict[int, int]] = [{0: 0}]  # for each stage, where it may end, and where it then began
    for stage in stages:
        ends, reached = dict[int, int](), 0
        for start in sorted(came_from[-1]):
            last = min(
                _last_under(stage.time_s, start, most_s), _last_under(stage.memory_bytes, start, stage.most_bytes)
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


def _last_under(total: Sequence[float], start: int, most: float) -> int:
    """Return the greatest end so that what is from start to it is at most so much."""
    end = bisect_right(total, total[start] + most) - 1
    # The sum of rounded numbers may be off by a bit: what counts is the difference, as it is told afterwards.
    while end + 1 < len(total) and total[end + 1] - total[start] <= most:
        end += 1
    while end > start and total[end] - total[start] > most:
        end -= 1
    return end
