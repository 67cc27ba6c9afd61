"""The GPU-time that faults cost."""

import numpy as np
from numpy.typing import NDArray

from .metric import Metric, Result


def values(result: Result) -> NDArray[np.float64]:
    """Return it for each scenario, shape (scenarios,)."""
    return result.figures.lost_gpu_s


METRIC = Metric(
    name="lost_gpu_s",
    title="lost to faults",
    quantity="GPU-time",
    better="lower",
    meaning="GPU-time of work that faults threw away: since the last checkpoint, restart included.",
    place=50,
    values=values,
)
