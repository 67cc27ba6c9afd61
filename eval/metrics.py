"""The metrics: what one is, ours, those that other packages register, and weighted sums of them."""

import logging
from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..cluster.files.errors import PluginError
from ..cluster.files.plugins import load_as, registered
from ..cluster.model.outcome import Metrics, Outcome, Weighting, metrics
from ..cluster.model.problem import Scenarios


class Result(NamedTuple):
    """How scenarios ended under one policy."""

    outcome: Outcome
    scenarios: Scenarios
    cluster_gpus: int
    figures: Metrics  # of the outcome, which several metrics are made of


class Metric(NamedTuple):
    """One figure of each scenario, by which policies are compared."""

    name: str  # that it is registered under, and its key in JSON; ends in its unit
    title: str  # of its column and panel, in few words
    quantity: Literal["time", "GPU-time", "share", "count"]  # in s, GPU-s, none, none
    better: Literal["lower", "higher"]
    meaning: str  # a sentence
    place: int  # columns stand in the order of these numbers
    values: Callable[[Result], NDArray[np.float64]]  # shape (scenarios,)


def result_of(outcome: Outcome, scenarios: Scenarios, cluster_gpus: int) -> Result:
    """Return what metrics are computed from.

    Args:
        outcome: How the scenarios ended under one policy.
        scenarios: The scenarios.
        cluster_gpus: GPUs of the cluster.
    """
    figures = metrics(outcome, scenarios.jobs, scenarios.gpus, scenarios.submit_s, cluster_gpus, scenarios.work_s)
    return Result(outcome, scenarios, cluster_gpus, figures)


def lost_gpu_s_of(result: Result) -> NDArray[np.float64]:
    """Return it for each scenario, shape (scenarios,)."""
    return result.figures.lost_gpu_s


LOST_GPU_S = Metric(
    name="lost_gpu_s",
    title="lost to faults",
    quantity="GPU-time",
    better="lower",
    meaning="GPU-time of work that faults threw away: since the last checkpoint, restart included.",
    place=50,
    values=lost_gpu_s_of,
)


def makespan_s_of(result: Result) -> NDArray[np.float64]:
    """Return it for each scenario, shape (scenarios,)."""
    return result.figures.makespan_s


MAKESPAN_S = Metric(
    name="makespan_s",
    title="makespan",
    quantity="time",
    better="lower",
    meaning="Completion of the last job of a workload.",
    place=10,
    values=makespan_s_of,
)


def mean_jct_s_of(result: Result) -> NDArray[np.float64]:
    """Return it for each scenario, shape (scenarios,)."""
    return result.figures.mean_jct_s


MEAN_JCT_S = Metric(
    name="mean_jct_s",
    title="mean JCT",
    quantity="time",
    better="lower",
    meaning="Finish minus submission, averaged over a scenario's jobs.",
    place=20,
    values=mean_jct_s_of,
)


def p99_jct_s_of(result: Result) -> NDArray[np.float64]:
    """Return it for each scenario, shape (scenarios,)."""
    return result.figures.p99_jct_s


P99_JCT_S = Metric(
    name="p99_jct_s",
    title="p99 JCT",
    quantity="time",
    better="lower",
    meaning="Job completion time that 99 % of a scenario's jobs stay below.",
    place=30,
    values=p99_jct_s_of,
)


def restarts_of(result: Result) -> NDArray[np.float64]:
    """Return it for each scenario, shape (scenarios,)."""
    return result.figures.restarts


RESTARTS = Metric(
    name="restarts",
    title="restarts",
    quantity="count",
    better="lower",
    meaning="How often a fault stopped a job, which then started again.",
    place=60,
    values=restarts_of,
)


def useful_utilisation_of(result: Result) -> NDArray[np.float64]:
    """Return it for each scenario, shape (scenarios,)."""
    return result.figures.useful_utilisation


USEFUL_UTILISATION = Metric(
    name="useful_utilisation",
    title="useful util.",
    quantity="share",
    better="higher",
    meaning="Share of all GPU-time until the makespan that did work which was kept; the rest was idle, broken or lost.",
    place=40,
    values=useful_utilisation_of,
)


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
