"""By how much a policy differs from a rival, paired, in per cent with 95 % intervals."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from longshore.cluster.model.intervals import ratio_estimates

CONFIDENCE = 0.95


class Difference(NamedTuple):
    """A difference in per cent of the rival's figure, below 0 where a policy costs less."""

    percent: float
    low: float  # of the interval; nan where there is one pair
    high: float


def difference_of_means(mine: NDArray[np.float64], rival: NDArray[np.float64]) -> Difference:
    """Return by how much the mean of paired costs differs from the rival's, both of shape (scenarios,)."""
    found = ratio_estimates(100.0 * (mine - rival)[None], rival[None], confidence=CONFIDENCE)
    return Difference(*(float(end[0]) for end in found))


def geometric_mean(log_ratios: NDArray[np.float64]) -> Difference:
    """Return the geometric mean of ratios to the rival, less 1, by the ratios' logarithms, of shape (windows,)."""
    found = ratio_estimates(log_ratios[None], np.ones((1, log_ratios.size)), confidence=CONFIDENCE)
    return Difference(*(float(100.0 * np.expm1(end[0])) for end in found))
