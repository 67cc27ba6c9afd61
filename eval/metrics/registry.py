"""All metrics: ours and those that other packages register."""

import logging

import numpy as np
from numpy.typing import NDArray

from ...cluster.files.errors import PluginError
from ...cluster.files.plugins import load_as, registered
from .metric import Metric, Result

log = logging.getLogger(__name__)


def registered_metrics() -> tuple[Metric, ...]:
    """Return all metrics, in the order of their columns, but those that a stranger's package breaks: these are told."""
    found = []
    for name in registered("metrics"):
        try:
            found.append(metric_of(name))
        except PluginError as error:
            log.warning("a column is left out: %s", error)
    return tuple(sorted(found, key=lambda metric: (metric.place, metric.name)))


def metric_of(name: str) -> Metric:
    """Return a metric by its name.

    Raises:
        PluginError: If it cannot be imported, is no Metric, or has another name than it is registered under.
    """
    found = load_as("metrics", name, Metric)
    if found.name != name:
        where = f"metric {name!r} ({registered('metrics')[name].value})"
        raise PluginError(f"{where} calls itself {found.name!r}; register it under that name")
    return found


def values_of(metric: Metric, result: Result) -> NDArray[np.float64]:
    """Return the figure of each scenario, shape (scenarios,).

    Raises:
        PluginError: If the metric gives anything else than a finite number for each.
    """
    try:
        values = np.asarray(metric.values(result))
    except Exception as error:  # a stranger's code may fail in any way
        raise PluginError(f"metric {metric.name!r} failed: {error}") from error
    if values.shape != result.scenarios.jobs.shape or values.dtype != np.float64 or not np.isfinite(values).all():
        raise PluginError(
            f"metric {metric.name!r} gave {values.dtype} of shape {values.shape}, expected finite float64 of shape "
            f"{result.scenarios.jobs.shape}: a number for each scenario"
        )
    return values
