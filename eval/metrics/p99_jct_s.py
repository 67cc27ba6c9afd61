"""The 99th percentile of job completion times."""

import numpy as np
from numpy.typing import NDArray

from .metric import Metric, Result


def values(result: Result) -> NDArray[np.float64]:
    """Return it for each scenario, shape (scenarios,)."""
    return result.figures.p99_jct_s


METRIC = Metric(
    name="p99_jct_s",
    title="p99 JCT",
    quantity="time",
    better="lower",
    meaning="Job completion time that 99 % of a scenario's jobs stay below.",
    place=30,
    values=values,
)
