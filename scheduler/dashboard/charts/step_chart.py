"""The last step times of a running job, as a line in a box: no script, no inline style."""

import statistics
from collections.abc import Sequence
from typing import NamedTuple

WIDTH, HEIGHT = 1000.0, 60.0  # of the box, which is stretched to its place
MOST_STEPS = 240


class StepChart(NamedTuple):
    """The picture."""

    points: str  # of the line, x,y in the box; the upper edge is the longest step, the lower one is 0
    steps: int
    median_s: float
    longest_s: float


def step_chart(took_s: Sequence[float]) -> StepChart | None:
    """Return the picture of step times in seconds, in their order; None of fewer than two."""
    last_s = took_s[-MOST_STEPS:]
    if len(last_s) < 2:
        return None
    longest_s = max(last_s)
    apart = WIDTH / (len(last_s) - 1)
    points = (f"{at * apart:.1f},{HEIGHT * (1.0 - each / longest_s):.1f}" for at, each in enumerate(last_s))
    return StepChart(" ".join(points), len(last_s), statistics.median(last_s), longest_s)
