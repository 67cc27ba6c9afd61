"""Who computes for far longer than others that wait for it.

Who waits says little: in a ring all wait but the slow one. So computing times are compared, without what a member waits
for others. A link that is slow makes all wait alike, and nobody is slow. Source: SPEC F3, P3.

The process that coordinates imports this module: standard library only.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

FAR: Final = 3.0  # times the median of the others: twice as long computes who has two shards in a ring that has shrunk
LEAST_S: Final = 0.01  # by which it computes longer: less is what a busy machine does


class Longer(NamedTuple):
    """Somebody who computes for far longer than the others."""

    number: int
    compute_s: float
    others_s: float  # median of the others


def far_longer(compute_s: Mapping[int, float]) -> list[Longer]:
    """Return those who compute for far longer than the others.

    Args:
        compute_s: How long each computes.
    """
    ordered = sorted(compute_s.values())
    if len(ordered) < 2:
        return []
    found = (Longer(number, time_s, _median_without(ordered, time_s)) for number, time_s in compute_s.items())
    return [it for it in found if it.compute_s > FAR * it.others_s and it.compute_s - it.others_s > LEAST_S]


def median(ordered: Sequence[float]) -> float:
    """Return the median of numbers that are in order."""
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2.0


def _median_without(ordered: Sequence[float], one: float) -> float:
    """Return the median of numbers that are in order, one of which is left out."""
    at, others = bisect_left(ordered, one), len(ordered) - 1
    low, high = (others - 1) // 2, others // 2
    return (ordered[low + (low >= at)] + ordered[high + (high >= at)]) / 2.0
