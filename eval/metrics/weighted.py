"""The metric of an objective that a user asks for and that no column has."""

import numpy as np
from numpy.typing import NDArray

from ...cluster.model.weighting import Weighting
from .metric import Metric, Result

SLOWDOWN = "JCT over work, averaged over a scenario's jobs; work below 10 min counts as 10 min."


def metric_of_weighting(weighting: Weighting) -> Metric:
    """Return an objective as a metric, whose column stands first."""

    def values(result: Result) -> NDArray[np.float64]:
        return weighting.cost(result.figures)

    is_alone = len(weighting.terms) == 1
    return Metric(
        name=weighting.field,
        title=weighting.title,
        quantity="time" if weighting.is_time else "count",
        better="lower",
        meaning=SLOWDOWN if is_alone else f"Weighted geometric mean of {weighting.text}, times in seconds.",
        place=0,
        values=values,
    )
