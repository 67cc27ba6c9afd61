"""Steps against the median of the last ones: a single step, or two in a row.

Source: SPEC K5; benchmarks/steps.py has the figures.
"""

from .counting import InARow
from .window import Window


class MedianRule(InARow):
    """Slow while steps are longer than the median of the last 50, times a factor.

    Args:
        factor: The factor.
        needed: Steps in a row.
    """

    __slots__ = ("_factor", "_window")

    def __init__(self, factor: float, needed: int) -> None:
        super().__init__(needed)
        self._window, self._factor = Window(50), factor

    @property
    def is_ready(self) -> bool:
        """Whether it can say anything."""
        return self._window.is_full

    def tell(self, step_s: float) -> bool:
        """Take the time of a step, and return whether steps are slow."""
        over = self.is_ready and step_s > self._factor * self._window.median()
        self._window.add(step_s)
        return self.count(over=over)


def median_k() -> MedianRule:
    """Return the rule that one step over 1.25 medians is slow."""
    return MedianRule(1.25, 1)


def in_a_row() -> MedianRule:
    """Return the rule that two steps in a row over 1.2 medians are slow."""
    return MedianRule(1.2, 2)
