"""Detectors of slow steps: each follows the step times of one attempt. A job file chooses one by its name.

The default, `cusum`, is a robust CUSUM of the logarithms of step times: small excesses add up, so that its delay grows
with the noise while its false alarms do not.

Source: SPEC K5; benchmarks/steps.py has the figures.
"""

import math
import statistics
from abc import ABC, abstractmethod
from array import array
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial

import numpy as np


class Detector(ABC):
    """Decides whether the steps of one attempt are slow, from their times alone: it reads no clock."""

    __slots__ = ("is_slow", "slow_steps")

    def __init__(self) -> None:
        self.is_slow = False
        self.slow_steps = 0  # last steps in a row that count as slow

    @property
    @abstractmethod
    def is_ready(self) -> bool:
        """Whether it has seen enough steps to decide."""

    @abstractmethod
    def update(self, step_s: float) -> bool:
        """Add the time of a step, above 0, and return whether steps are slow."""


WARM_UP, FIRST_REFERENCE, REFERENCE, RENEWED_AFTER = 20, 200, 1000, 200  # steps
DRIFT = math.log(1.3) / 2.0  # 1.3: how much slower a slow node is
STEP_CLIP = 0.5  # one checkpoint among the steps counts for no more than this
RARE = math.log(1e6)  # steps between two false alarms, about


class Cusum(Detector):
    """Whether steps have become slower for good than those of its reference.

    `slow_steps` counts the steps since the sum of excesses was last 0.
    """

    __slots__ = ("_calm", "_middle", "_new", "_seen", "_sum", "_threshold")

    def __init__(self) -> None:
        super().__init__()
        self._calm = array("f")  # logarithms of steps that were not slow, the last of them
        self._new = self._seen = 0
        self._middle = self._sum = 0.0
        self._threshold = math.inf  # until there is a reference

    @property
    def is_ready(self) -> bool:
        """Whether it has a reference."""
        return self._threshold < math.inf

    def update(self, step_s: float) -> bool:
        """Add the time of a step, above 0, and return whether steps are slow."""
        x = math.log(step_s)
        if self._threshold == math.inf:
            self._seen += 1
            if self._seen > WARM_UP:
                self._remember(x, FIRST_REFERENCE)
            return False
        excess = min(max(x - self._middle, -STEP_CLIP), STEP_CLIP) - DRIFT
        self._sum = min(max(0.0, self._sum + excess), 1.5 * self._threshold)
        self.slow_steps = self.slow_steps + 1 if self._sum > 0.0 else 0
        if self._sum < self._threshold / 2.0:
            self.is_slow = False
            self._remember(x, RENEWED_AFTER)
        elif self._sum > self._threshold:
            self.is_slow = True
        return self.is_slow

    def _remember(self, x: float, renewed_after: int) -> None:
        self._calm.append(x)
        self._new += 1
        if self._new >= renewed_after:
            self._new = 0
            del self._calm[:-REFERENCE]
            self._middle, self._threshold = reference_of(np.frombuffer(self._calm, dtype=np.float32).astype(np.float64))


def reference_of(x: np.ndarray[tuple[int], np.dtype[np.float64]]) -> tuple[float, float]:
    """Return the median of logarithms of step times, and the threshold h that follows from their noise.

    h = max(1, 1.3 ln(10^6) s^2 (1 + rho) / (1 - rho) / (2 k)), s the standard deviation by the median absolute
    deviation, rho the correlation of neighbours.
    """
    middle = float(np.median(x))
    off = x - middle
    s = 1.4826 * float(np.median(np.abs(off)))
    clipped = np.clip(off, -STEP_CLIP, STEP_CLIP)
    clipped -= clipped.mean()
    power = float(clipped @ clipped)
    rho = min(max(float(clipped[1:] @ clipped[:-1]) / power, 0.0), 0.9) if power > 0.0 else 0.0
    return middle, max(1.0, 1.3 * RARE * s * s * (1.0 + rho) / (1.0 - rho) / (2.0 * DRIFT))


class InARow(Detector):
    """Slow while at least N steps in a row were over a limit.

    Args:
        needed: N.
    """

    __slots__ = ("_needed",)

    def __init__(self, needed: int) -> None:
        super().__init__()
        self._needed = needed

    def count(self, *, over: bool) -> bool:
        """Count a step that was over the limit, or not, and return whether steps are slow."""
        self.slow_steps = self.slow_steps + 1 if over else 0
        self.is_slow = self.slow_steps >= self._needed
        return self.is_slow


class Window:
    """The last values and their median.

    Args:
        size: Number of values.
    """

    __slots__ = ("_inorder", "_last", "_size")

    def __init__(self, size: int) -> None:
        self._last: deque[float] = deque()
        self._inorder: list[float] = []
        self._size = size

    @property
    def is_full(self) -> bool:
        """Whether it holds `size` values."""
        return len(self._last) == self._size

    def add(self, value: float) -> None:
        """Add a value, and drop the oldest if there are too many."""
        if self.is_full:
            del self._inorder[bisect_left(self._inorder, self._last.popleft())]
        self._last.append(value)
        insort(self._inorder, value)

    def median(self) -> float:
        """Return the median."""
        half, odd = divmod(len(self._inorder), 2)
        return self._inorder[half] if odd else (self._inorder[half - 1] + self._inorder[half]) / 2.0

    def deviation(self, middle: float) -> float:
        """Return the standard deviation, estimated by the median absolute deviation."""
        return 1.4826 * statistics.median([abs(value - middle) for value in self._inorder])


class EwmaRule(InARow):
    """Slow while steps are longer than a moving mean by three moving deviations."""

    __slots__ = ("_mean", "_seen", "_variance")
    SMOOTHING, FIRST_STEPS = 0.1, 50

    def __init__(self) -> None:
        super().__init__(1)
        self._mean = self._variance = 0.0
        self._seen = 0

    @property
    def is_ready(self) -> bool:
        """Whether it has seen enough steps to decide."""
        return self._seen >= self.FIRST_STEPS

    def update(self, step_s: float) -> bool:
        """Add the time of a step, and return whether steps are slow."""
        off = step_s - self._mean if self._seen else 0.0
        over = self.is_ready and off > 3.0 * math.sqrt(self._variance)
        self._mean = self._mean + self.SMOOTHING * off if self._seen else step_s
        self._variance = (1.0 - self.SMOOTHING) * (self._variance + self.SMOOTHING * off * off)
        self._seen += 1
        return self.count(over=over)


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
        """Whether it has seen enough steps to decide."""
        return self._window.is_full

    def update(self, step_s: float) -> bool:
        """Add the time of a step, and return whether steps are slow."""
        over = False
        if self.is_ready:
            middle = self._window.median()
            over = step_s - middle > 3.0 * self._window.deviation(middle)
        self._window.add(step_s)
        return self.count(over=over)


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
        """Whether it has seen enough steps to decide."""
        return self._window.is_full

    def update(self, step_s: float) -> bool:
        """Add the time of a step, and return whether steps are slow."""
        over = self.is_ready and step_s > self._factor * self._window.median()
        self._window.add(step_s)
        return self.count(over=over)


class PatentRule(InARow):
    """The two readings of the threshold in the patent, which only its letter needs; docs/steps.md compares them.

    A step is slow if it is longer than twice the mean of all before; literally, than 2 n times their sum.

    Args:
        literal: Whether to take the patent's formula as it is written, under which no step is ever slow.
    """

    __slots__ = ("_literal", "_seen", "_total_s")

    def __init__(self, *, literal: bool) -> None:
        super().__init__(1)
        self._literal, self._seen, self._total_s = literal, 0, 0.0

    @property
    def is_ready(self) -> bool:
        """Whether it has seen enough steps to decide."""
        return self._seen > 0

    def update(self, step_s: float) -> bool:
        """Add the time of a step, and return whether steps are slow."""
        factor = 2.0 * (self._seen + 1) if self._literal else 2.0 / max(self._seen, 1)
        over = self.is_ready and step_s > factor * self._total_s
        self._seen += 1
        self._total_s += step_s
        return self.count(over=over)


DETECTORS: Mapping[str, Callable[[], Detector]] = {
    "cusum": Cusum,
    "ewma": EwmaRule,
    "in_a_row": partial(MedianRule, 1.2, 2),
    "mad": partial(MadRule, 2),
    "median_k": partial(MedianRule, 1.25, 1),
    # Two that only the letter of a patent needs.
    "patent_literal": partial(PatentRule, literal=True),
    "patent_mean": partial(PatentRule, literal=False),
}
