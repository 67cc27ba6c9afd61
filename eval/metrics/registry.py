"""All metrics: ours and those that other packages register."""

import numpy as np
from numpy.typing import NDArray

from ...cluster.files.errors import PluginError
from ...cluster.files.plugins import load, registered
from .metric import Metric, Result


def registered_metrics() -> tuple[Metric, ...]:
    """Return all metrics, in the order of their columns.

    Raises:
        PluginError: If one cannot be imported, is no Metric, or has another name than it is registered under.
    """
    found = [_metric(name) for name in registered("metrics")]
    return tuple(sorted(found, key=lambda metric: (metric.place, metric.name)))


def _metric(name: str) -> Metric:
    found: object = load("metrics", name)
    where = f"metric {name!r} ({registered('metrics')[name].value})"
    if not isinstance(found, Metric):
        raise PluginError(f"{where} is {type(found).__name__}, not a Metric")
    if found.name != name:
        raise PluginError(f"{where} calls itself {found.name!r}; register it under that name")
    return found


def values_of(metric: Metric, result: Result) -> NDArray[np.float64]:
    """Return the figure of each scenario, shape (scenarios,).

    Raises:
        PluginError: If the metric gives anything else than a finite number for each.
    """
    values = np.asarray(metric.values(result))
    if values.shape != result.scenarios.jobs.shape or values.dtype != np.float64 or not np.isfinite(values).all():
        raise PluginError(
            f"metric {metric.name!r} gave {values.dtype} of shape {values.shape}, expected finite float64 of shape "
            f"{result.scenarios.jobs.shape}: a number for each scenario"
        )
    return values
