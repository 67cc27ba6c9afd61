"""How GPUs were used along time, as lines in a box: no script, no inline style."""

from collections.abc import Sequence
from typing import NamedTuple

from ...health.usage import EVERY_S, Sample
from ..text import duration_text
from .gantt import STEPS_S

WIDTH, HEIGHT = 1000.0, 100.0  # of the box, which is stretched to its place
MOST_POINTS = 240
GAP_S = 4 * EVERY_S  # without samples: nothing is drawn between two points that are so far apart, and wider ones
MOST_TICKS = 4


class Mark(NamedTuple):
    """A mark of the time axis."""

    x: float  # percent
    label: str


class UseChart(NamedTuple):
    """The picture. Points are x,y in the box, with all GPUs at the upper edge."""

    held: Sequence[str]  # areas
    busy: Sequence[str]  # lines; none if no agent reports
    marks: Sequence[Mark]
    length_s: float
    held_now: float  # share, 0 to 1
    held_mean: float
    busy_now: float | None
    busy_mean: float | None


def use_chart(samples: Sequence[Sample]) -> UseChart | None:
    """Return the picture of samples in their order; None of fewer than two."""
    if len(samples) < 2:
        return None
    first_s, length_s = samples[0].at_s, samples[-1].at_s - samples[0].at_s
    gap_s = max(GAP_S, 2.0 * length_s / MOST_POINTS)
    points = _thinned(samples)
    scale = WIDTH / length_s
    told = [(it.at_s, it.busy) for it in points if it.busy is not None]
    busy = [it.busy for it in samples if it.busy is not None]
    return UseChart(
        [_area(each) for each in _pieces([(it.at_s, it.held) for it in points], first_s, scale, gap_s)],
        [_line(each) for each in _pieces(told, first_s, scale, gap_s)],
        _marks(length_s),
        length_s,
        samples[-1].held,
        sum(it.held for it in samples) / len(samples),
        samples[-1].busy,
        sum(busy) / len(busy) if busy else None,
    )


def _thinned(samples: Sequence[Sample]) -> list[Sample]:
    """Return at most so many samples as are seen: means of neighbours."""
    size = -(-len(samples) // MOST_POINTS)
    return [_mean(samples[first : first + size]) for first in range(0, len(samples), size)]


def _mean(samples: Sequence[Sample]) -> Sample:
    busy = [it.busy for it in samples if it.busy is not None]
    return Sample(
        samples[-1].at_s,
        sum(it.held for it in samples) / len(samples),
        sum(busy) / len(busy) if busy else None,
    )


_Point = tuple[float, float]


def _pieces(told: Sequence[_Point], first_s: float, scale: float, gap_s: float) -> list[list[_Point]]:
    """Return places in the box, cut where nothing was told for long; each piece has two at least."""
    pieces: list[list[_Point]] = []
    last_s = float("-inf")
    for at_s, share in told:
        if at_s - last_s > gap_s:
            pieces.append([])
        pieces[-1].append(((at_s - first_s) * scale, HEIGHT * (1.0 - share)))
        last_s = at_s
    return [piece for piece in pieces if len(piece) > 1]


def _line(points: Sequence[_Point]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def _area(points: Sequence[_Point]) -> str:
    """Return a line with the ground below it."""
    return _line([(points[0][0], HEIGHT), *points, (points[-1][0], HEIGHT)])


def _marks(length_s: float) -> list[Mark]:
    """Return times before the last sample, which is at the right end."""
    step_s = next((step for step in STEPS_S if length_s / step <= MOST_TICKS), STEPS_S[-1])
    ago = [step_s * index for index in range(1, int(length_s / step_s) + 1)]
    return [
        Mark(100.0 * (1.0 - it / length_s), f"{duration_text(it, exact=False)} ago") for it in reversed(ago)
    ]  # fmt: skip
