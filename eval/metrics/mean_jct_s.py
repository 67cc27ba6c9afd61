"""The mean job completion time."""

import numpy as np
from numpy.typing import NDArray

from .metric import Metric, Result


def values(result: Result) -> NDArray[np.float64]:
    """Return it for each scenario, shape (scenarios,)."""
    return result.figures.mean_jct_s


METRIC = Metric(
    name="mean_jct_s",
    title="mean JCT",
    quantity="time",
    better="lower",
    meaning="Finish minus submission, averaged over a scenario's jobs.",
    place=20,
    values=values,
)
