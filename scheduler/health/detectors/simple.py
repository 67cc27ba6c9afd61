"""Rules on single steps and on moving baselines, which others use: offered by name, and worse than the default.

Source: SPEC K5; benchmarks/steps.py has the figures.
"""

import math
import statistics
from bisect import bisect_left, insort
from collections import deque


class Window:
    """The last values and their median.

    Args:
        most: How many.
    """

    __slots__ = ("_inorder", "_last", "_most")

    def __init__(self, most: int) -> None:
        self._last: deque[float] = deque()
        self._inorder: list[float] = []
        self._most = most

    @property
    def is_full(self) -> bool:
        """Whether there are as many as there can be."""
        return len(self._last) == self._most

    def add(self, value: float) -> None:
        """Take a value in, and forget the oldest if there are too many."""
        if self.is_full:
            del self._inorder[bisect_left(self._inorder, self._last.popleft())]
        self._last.append(value)
        insort(self._inorder, value)

    def median(self) -> float:
        """Return the median."""
        half, odd = divmod(len(self._inorder), 2)
        return self._inorder[half] if odd else (self._inorder[half - 1] + self._inorder[half]) / 2.0

    def deviation(self, middle: float) -> float:
        """Return the standard deviation as the median absolute deviation tells it."""
        return 1.4826 * statistics.median([abs(value - middle) for value in self._inorder])


class _InARow:
    """Slow while so many steps in a row were over a limit."""

    __slots__ = ("_needed", "slow_steps")

    def __init__(self, needed: int) -> None:
        self._needed, self.slow_steps = needed, 0

    @property
    def is_slow(self) -> bool:
        """Whether steps are slow."""
        return self.slow_steps >= self._needed

    def _count(self, *, over: bool) -> bool:
        self.slow_steps = self.slow_steps + 1 if over else 0
        return self.is_slow


class MedianRule(_InARow):
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
        return self._count(over=over)


class MadRule(_InARow):
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
        return self._count(over=over)


class EwmaRule(_InARow):
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
        return self._count(over=over)


class SourceRule(_InARow):
    """Slow while a step is longer than twice the mean of all before; literally, than 2 n times their sum.

    Args:
        literal: Whether to take the formula of the source as it stands, under which no step is ever slow.
    """

    __slots__ = ("_literal", "_seen", "_total_s")

    def __init__(self, *, literal: bool) -> None:
        super().__init__(1)
        self._literal, self._seen, self._total_s = literal, 0, 0.0

    @property
    def is_ready(self) -> bool:
        """Whether it can say anything."""
        return self._seen > 0

    def tell(self, step_s: float) -> bool:
        """Take the time of a step, and return whether steps are slow."""
        factor = 2.0 * (self._seen + 1) if self._literal else 2.0 / max(self._seen, 1)
        over = self.is_ready and step_s > factor * self._total_s
        self._seen += 1
        self._total_s += step_s
        return self._count(over=over)
