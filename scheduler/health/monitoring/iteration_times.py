"""How long the ranks of an attempt compute and step: the average iteration time, and the record by node type.

All ranks of a ring are as slow as the slowest one, so that one is found by its computing time.

Source: SPEC F1, F2, F3.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from itertools import islice
from statistics import fmean
from typing import NamedTuple

KEPT = 32  # steps that a mean is taken over
LEFT_OUT = 3  # first steps of an attempt: they compile and warm up


class Computed(NamedTuple):
    """How long iterations of a job computed on one type of node."""

    iterations: int
    mean_s: float
    last_s: tuple[float, ...]  # the last 32, the newest last

    def with_more(self, more: "Computed") -> "Computed":
        """Return both together, of which the other came later."""
        count = self.iterations + more.iterations
        mean_s = (self.iterations * self.mean_s + more.iterations * more.mean_s) / count if count else 0.0
        return Computed(count, mean_s, (self.last_s + more.last_s)[-KEPT:])


NOTHING = Computed(0, 0.0, ())


class Average(NamedTuple):
    """The average iteration time of a job."""

    iteration_s: float
    rank: int  # the slowest, by its computing time
    steps: int  # that the mean is taken over


class RankTimes:
    """The iterations of one rank."""

    __slots__ = ("_computed_s", "_new", "_seen", "_sum_s", "_took_s")

    def __init__(self) -> None:
        self._seen = 0
        self._took_s, self._computed_s = deque[float](maxlen=KEPT), deque[float](maxlen=KEPT)
        self._new, self._sum_s = 0, 0.0  # computing times since they were last recorded

    def tell(self, took_s: float, computed_s: float | None) -> None:
        """Take in an iteration; the first of them are left out.

        Args:
            took_s: From its begin to that of the next one.
            computed_s: Without what it waited for; None if that was not told.
        """
        self._seen += 1
        if self._seen <= LEFT_OUT:
            return
        self._took_s.append(took_s)
        if computed_s is not None:
            self._computed_s.append(computed_s)
            self._new, self._sum_s = self._new + 1, self._sum_s + computed_s

    @property
    def compute_s(self) -> float | None:
        """Mean of the last computing times, None if none was told."""
        return fmean(self._computed_s) if self._computed_s else None

    @property
    def step_s(self) -> float | None:
        """Mean of the last step times, None before there are any."""
        return fmean(self._took_s) if self._took_s else None

    @property
    def steps(self) -> int:
        """How many these are."""
        return len(self._took_s)

    def news(self) -> Computed:
        """Return the computing times that are not recorded yet."""
        last = tuple(islice(reversed(self._computed_s), min(self._new, KEPT)))[::-1]
        return Computed(self._new, self._sum_s / self._new, last) if self._new else NOTHING

    def recorded(self) -> None:
        """Forget which these were: they are recorded."""
        self._new, self._sum_s = 0, 0.0


def average_of(ranks: Sequence[RankTimes]) -> Average | None:
    """Return the mean of the last step times of the slowest rank, None before there are any.

    Where no rank tells how long it computes, the slowest is the one whose steps take longest.

    Source: SPEC F3.
    """
    told = [(rank.compute_s, number) for number, rank in enumerate(ranks) if rank.steps]
    if not told:
        return None
    computing = [(compute_s, number) for compute_s, number in told if compute_s is not None]
    stepping = [(ranks[number].step_s or 0.0, number) for _, number in told]
    _, slowest = max(computing or stepping, key=lambda it: (it[0], -it[1]))
    return Average(ranks[slowest].step_s or 0.0, slowest, ranks[slowest].steps)


def news_by_type(ranks: Sequence[RankTimes], types: Sequence[str]) -> Mapping[str, Computed]:
    """Return the computing times that are not recorded yet, by node type.

    Args:
        ranks: Of an attempt.
        types: Node type of each rank.
    """
    found: dict[str, Computed] = {}
    for rank, kind in zip(ranks, types, strict=True):
        news = rank.news()
        if news.iterations:
            found[kind] = found.get(kind, NOTHING).with_more(news)
    return found
