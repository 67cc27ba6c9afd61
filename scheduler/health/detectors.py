"""Detectors of slow steps: what one is, ours, and those that other packages register.

The default: a robust CUSUM of the logarithms of step times.

Small excesses add up, so that its delay grows with the noise while its false alarms do not.

Source: SPEC K5; benchmarks/steps.py has the figures.
"""

import math
import statistics
from array import array
from bisect import bisect_left, insort
from collections import deque
from typing import Protocol, runtime_checkable

import numpy as np

from ...cluster.files.errors import PluginError
from ...cluster.files.plugins import load, registered


@runtime_checkable
class Detector(Protocol):
    """Follows the steps of one attempt."""

    @property
    def is_ready(self) -> bool:
        """Whether it has seen enough to say anything."""
        ...

    @property
    def is_slow(self) -> bool:
        """Whether steps are slow."""
        ...

    @property
    def slow_steps(self) -> int:
        """For how many steps they have looked slow, 0 if the last one did not."""
        ...

    def tell(self, step_s: float) -> bool:
        """Take the time of a step, above 0, and return whether steps are slow."""
        ...


class InARow:
    """Slow while so many steps in a row were over a limit.

    Args:
        needed: How many.
    """

    __slots__ = ("_needed", "slow_steps")

    def __init__(self, needed: int) -> None:
        self._needed, self.slow_steps = needed, 0

    @property
    def is_slow(self) -> bool:
        """Whether steps are slow."""
        return self.slow_steps >= self._needed

    def count(self, *, over: bool) -> bool:
        """Take in whether a step was over the limit, and return whether steps are slow."""
        self.slow_steps = self.slow_steps + 1 if over else 0
        return self.is_slow


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


WARM_UP, FIRST_REFERENCE, REFERENCE, RENEWED_AFTER = 20, 200, 1000, 200  # steps
FACTOR = 1.3  # of a slow node
DRIFT = math.log(FACTOR) / 2.0
CLIP = 0.5  # one checkpoint among the steps counts for no more than this
RARE = math.log(1e6)  # steps between two false alarms, about


class Cusum:
    """Says whether steps have become slower for good than those of its reference."""

    __slots__ = ("_calm", "_middle", "_new", "_seen", "_sum", "_threshold", "is_slow", "slow_steps")

    def __init__(self) -> None:
        self.is_slow = False
        self.slow_steps = 0  # for so long the sum has not been 0
        self._calm = array("f")  # logarithms of steps that were not slow, the last of them
        self._new = self._seen = 0
        self._middle = self._sum = 0.0
        self._threshold = math.inf  # until there is a reference

    @property
    def is_ready(self) -> bool:
        """Whether it has a reference."""
        return self._threshold < math.inf

    def tell(self, step_s: float) -> bool:
        """Take the time of a step, above 0, and return whether steps are slow."""
        x = math.log(step_s)
        if self._threshold == math.inf:
            self._seen += 1
            if self._seen > WARM_UP:
                self._remember(x, FIRST_REFERENCE)
            return False
        excess = min(max(x - self._middle, -CLIP), CLIP) - DRIFT
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
    """Return the median of logarithms of step times, and the threshold h that their noise asks for.

    h = max(1, 1.3 ln(10^6) s^2 (1 + rho) / (1 - rho) / (2 k)), s the standard deviation as the median absolute
    deviation tells it, rho the correlation of neighbours.
    """
    middle = float(np.median(x))
    off = x - middle
    s = 1.4826 * float(np.median(np.abs(off)))
    clipped = np.clip(off, -CLIP, CLIP)
    clipped -= clipped.mean()
    power = float(clipped @ clipped)
    rho = min(max(float(clipped[1:] @ clipped[:-1]) / power, 0.0), 0.9) if power > 0.0 else 0.0
    return middle, max(1.0, 1.3 * RARE * s * s * (1.0 + rho) / (1.0 - rho) / (2.0 * DRIFT))


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


class PatentRule(InARow):
    """Slow while a step is longer than twice the mean of all before; literally, than 2 n times their sum.

    Args:
        literal: Whether to take the patent's formula as it is written, under which no step is ever slow.
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
        return self.count(over=over)


def patent_mean() -> PatentRule:
    """Return the rule that a step over twice the mean of all before is slow."""
    return PatentRule(literal=False)


def patent_literal() -> PatentRule:
    """Return the rule as the patent writes it."""
    return PatentRule(literal=True)


def new_detector(name: str) -> Detector:
    """Return a new detector that has seen no step.

    Args:
        name: What it is registered under: anything that gives a detector when it is called.

    Raises:
        PluginError: If nothing of that name is registered, or what it gives is no detector.
    """
    make = load("detectors", name)
    try:
        made: object = make()
    except Exception as error:  # a stranger's code may fail in any way
        raise PluginError(f"{_where(name)} cannot be made: {error}") from error
    if not isinstance(made, Detector):
        missing = [part for part in ("is_ready", "is_slow", "slow_steps", "tell") if not hasattr(made, part)]
        raise PluginError(f"{_where(name)} lacks part of the detector protocol: {', '.join(missing)}")
    return made


def _where(name: str) -> str:
    return f"detector {name!r} ({registered('detectors')[name].value})"
