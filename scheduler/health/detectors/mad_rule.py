"""Steps against the median of the last ones and their median absolute deviation.

Source: SPEC K5; benchmarks/steps.py has the figures.
"""

from .counting import InARow
from .window import Window


class MadRule(InARow):
    """Slow while steps are three deviations longer than the median of the last 50.

    Args:
        needed: Steps in a row.
    """

    __slots__ = ("_window",)

    def __init__(self, needed: int) -> None:
        super().__init__(needed)
        self._window = Window(50)

    @property
    def is_ready(self) -> bool:
        """Whether it can say anything."""
        return self._window.is_full

    def tell(self, step_s: float) -> bool:
        """Take the time of a step, and return whether steps are slow."""
        over = False
        if self.is_ready:
            middle = self._window.median()
            over = step_s - middle > 3.0 * self._window.deviation(middle)
        self._window.add(step_s)
        return self.count(over=over)


def mad() -> MadRule:
    """Return the rule that two such steps in a row are slow."""
    return MadRule(2)
