"""Which ranks compute for far longer than the others of a job whose ranks all wait for each other.

Reads no clock, network or store. Source: SPEC F1, F3; docs/steps.md.
"""

from collections.abc import Collection, Sequence
from typing import NamedTuple

from ...failover.judging.slow import far_longer
from .iteration_times import RankTimes

LOOK_S, LOOKS = 60.0, 3  # between two looks, and in a row, before that counts


class Straggler(NamedTuple):
    """A rank that all others wait for."""

    rank: int
    compute_s: float  # mean of its last iterations
    others_s: float  # median of those of the others


def straggling(times: Sequence[RankTimes], going: Collection[int]) -> list[Straggler]:
    """Return the ranks that compute for far longer than the others.

    Args:
        times: Of all ranks.
        going: Ranks that tell of steps, and will tell of more.
    """
    told = {rank: compute_s for rank in going if (compute_s := times[rank].compute_s) is not None}
    return [Straggler(*it) for it in far_longer(told)]


class Stragglers:
    """Follows the stragglers of one attempt: each counts once, as long as it is one.

    Args:
        now_s: The present.
    """

    def __init__(self, now_s: float) -> None:
        self._look_at_s = now_s + LOOK_S
        self._looks: dict[int, int] = {}  # in a row, by rank

    def look(self, times: Sequence[RankTimes], going: Collection[int], now_s: float) -> list[Straggler]:
        """Return the ranks that have been stragglers for long enough now, once in each minute at most.

        Args:
            times: Of all ranks.
            going: Ranks that tell of steps, and will tell of more.
            now_s: The present.
        """
        if 0.0 < self._look_at_s - now_s <= LOOK_S:  # else the clock was set back
            return []
        self._look_at_s = now_s + LOOK_S
        found = straggling(times, going)
        self._looks = {it.rank: self._looks.get(it.rank, 0) + 1 for it in found}
        return [it for it in found if self._looks[it.rank] == LOOKS]
