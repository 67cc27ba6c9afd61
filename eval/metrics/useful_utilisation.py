"""The share of GPU-time that did work which was kept."""

import numpy as np
from numpy.typing import NDArray

from .metric import Metric, Result


def values(result: Result) -> NDArray[np.float64]:
    """Return it for each scenario, shape (scenarios,)."""
    return result.figures.useful_utilisation


METRIC = Metric(
    name="useful_utilisation",
    title="useful util.",
    quantity="share",
    better="higher",
    meaning="Share of all GPU-time until the makespan that did work which was kept; the rest was idle, broken or lost.",
    place=40,
    values=values,
)
