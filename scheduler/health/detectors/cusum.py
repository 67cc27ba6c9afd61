"""The default: a robust CUSUM of the logarithms of step times.

Small excesses add up, so that its delay grows with the noise while its false alarms do not.

Source: SPEC K5; benchmarks/steps.py has the figures.
"""

import math
from array import array

import numpy as np

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
