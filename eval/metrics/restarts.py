"""How often faults stopped jobs."""

import numpy as np
from numpy.typing import NDArray

from .metric import Metric, Result


def values(result: Result) -> NDArray[np.float64]:
    """Return it for each scenario, shape (scenarios,)."""
    return result.figures.restarts


METRIC = Metric(
    name="restarts",
    title="restarts",
    quantity="count",
    better="lower",
    meaning="How often a fault stopped a job, which then started again.",
    place=60,
    values=values,
)
