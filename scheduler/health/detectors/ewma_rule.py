"""Steps against an exponentially weighted moving mean and variance.

Source: SPEC K5; benchmarks/steps.py has the figures.
"""

import math

from .counting import InARow


class EwmaRule(InARow):
    """Slow while steps are longer than a moving mean by three moving deviations."""

    __slots__ = ("_mean", "_seen", "_variance")
    WEIGHT, WARM_UP = 0.1, 50

    def __init__(self) -> None:
        super().__init__(1)
        self._mean = self._variance = 0.0
        self._seen = 0

    @property
    def is_ready(self) -> bool:
        """Whether it can say anything."""
        return self._seen >= self.WARM_UP

    def tell(self, step_s: float) -> bool:
        """Take the time of a step, and return whether steps are slow."""
        off = step_s - self._mean if self._seen else 0.0
        over = self.is_ready and off > 3.0 * math.sqrt(self._variance)
        self._mean = self._mean + self.WEIGHT * off if self._seen else step_s
        self._variance = (1.0 - self.WEIGHT) * (self._variance + self.WEIGHT * off * off)
        self._seen += 1
        return self.count(over=over)
