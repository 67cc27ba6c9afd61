"""What the page on the policy shows: how fast it decides, how often it was heard, and where the heuristic differs."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from ..policy_host.misses import Miss
from ..store.rows.decisions import DecisionRow

PER_DECADE = 5  # bars
DECADES = (-5, 1)  # 10 µs to 10 s


class Column(NamedTuple):
    """A bar of the histogram."""

    x: float  # percent of the width
    width: float
    height: float  # percent of the height
    decisions: int
    from_s: float
    to_s: float


class MissLine(NamedTuple):
    """Misses of one kind."""

    kind: Miss
    decisions: int
    last_s: float
    text: str  # of the last


class PolicyView(NamedTuple):
    """The last decisions as a whole."""

    decisions: Sequence[DecisionRow]  # the last first
    took_s: Sequence[tuple[str, float]]  # percentiles by name
    columns: Sequence[Column]
    marks: Sequence[tuple[float, str]]  # of the axis: percent and label
    deadline_x: float  # percent
    by: Sequence[tuple[str, int]]
    misses: Sequence[MissLine]
    heard: int  # decisions at which the policy said something of use
    agreed: int  # of these, where the heuristic said the same


def policy_view(decisions: Sequence[DecisionRow], deadline_s: float) -> PolicyView:
    """Return what the page shows.

    Args:
        decisions: The last ones, the last first.
        deadline_s: Of the policy.
    """
    took = sorted(row.took_s for row in decisions)
    by = Counter(str(row.explanation.get("obeyed") or "?") for row in decisions)
    said = [row.explanation["agrees"] for row in decisions if row.explanation.get("agrees") is not None]
    return PolicyView(
        decisions, _percentiles(took), _columns(took), _marks(), _x(deadline_s), by.most_common(), _misses(decisions),
        len(said), sum(map(bool, said)),
    )  # fmt: skip


def _percentiles(took: Sequence[float]) -> list[tuple[str, float]]:
    if not took:
        return []
    return [(name, took[min(len(took) - 1, math.ceil(share * len(took)) - 1)])
            for name, share in (("median", 0.5), ("95 %", 0.95), ("99 %", 0.99), ("longest", 1.0))]  # fmt: skip


def _x(took_s: float) -> float:
    low, high = DECADES
    return 100.0 * (min(max(math.log10(max(took_s, 1e-12)), low), high) - low) / (high - low)


def _columns(took: Sequence[float]) -> list[Column]:
    low, high = DECADES
    bars = (high - low) * PER_DECADE
    counts = Counter(min(bars - 1, int(_x(each) * bars / 100.0)) for each in took)
    most, width = max(counts.values(), default=1), 100.0 / bars
    return [
        Column(width * bar, width, 100.0 * counts[bar] / most, counts[bar],
               10.0 ** (low + bar / PER_DECADE), 10.0 ** (low + (bar + 1) / PER_DECADE))
        for bar in sorted(counts)
    ]  # fmt: skip


def _marks() -> list[tuple[float, str]]:
    labels = ("10 µs", "0.1 ms", "1 ms", "10 ms", "100 ms", "1 s", "10 s")
    return [(_x(10.0**power), label) for power, label in zip(range(DECADES[0], DECADES[1] + 1), labels, strict=True)]


def _misses(decisions: Sequence[DecisionRow]) -> list[MissLine]:
    counts: Counter[Miss] = Counter()
    last: dict[Miss, tuple[float, str]] = {}
    for row in decisions:
        if row.explanation.get("kind"):
            kind = Miss(str(row.explanation["kind"]))
            counts[kind] += 1
            last.setdefault(kind, (row.at_s, str(row.explanation.get("missed", ""))))
    return [MissLine(kind, count, *last[kind]) for kind, count in counts.most_common()]
