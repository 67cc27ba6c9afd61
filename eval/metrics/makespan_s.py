"""When the last job of a workload is done."""

import numpy as np
from numpy.typing import NDArray

from .metric import Metric, Result


def values(result: Result) -> NDArray[np.float64]:
    """Return it for each scenario, shape (scenarios,)."""
    return result.figures.makespan_s


METRIC = Metric(
    name="makespan_s",
    title="makespan",
    quantity="time",
    better="lower",
    meaning="Completion of the last job of a workload.",
    place=10,
    values=values,
)
