"""The metrics by which policies are compared: one table, and an objective of the user's as one more."""

from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..cluster.model.outcome import Outcome, RunMetrics, Weighting, metrics
from ..cluster.model.problem import Scenarios


class Metric(NamedTuple):
    """One figure of each scenario."""

    name: str  # its key in JSON; ends in its unit
    title: str  # of its column and panel, in few words
    quantity: Literal["time", "GPU-time", "share", "count"]  # in s, GPU-s, none, none
    better: Literal["lower", "higher"]
    meaning: str  # a sentence
    values: Callable[[RunMetrics], NDArray[np.float64]]  # shape (scenarios,)


METRICS = (  # in the order of their columns
    Metric(
        "makespan_s", "makespan", "time", "lower", "Completion of the last job of a workload.",
        lambda figures: figures.makespan_s,
    ),
    Metric(
        "mean_jct_s", "mean JCT", "time", "lower", "Finish minus submission, averaged over a scenario's jobs.",
        lambda figures: figures.mean_jct_s,
    ),
    Metric(
        "p99_jct_s", "p99 JCT", "time", "lower", "Job completion time that 99 % of a scenario's jobs stay below.",
        lambda figures: figures.p99_jct_s,
    ),
    Metric(
        "useful_utilisation", "useful util.", "share", "higher",
        "Share of all GPU-time until the makespan that did work which was kept; the rest was idle, broken or lost.",
        lambda figures: figures.useful_utilisation,
    ),
    Metric(
        "lost_gpu_s", "lost to faults", "GPU-time", "lower",
        "GPU-time of work that faults threw away: since the last checkpoint, restart included.",
        lambda figures: figures.lost_gpu_s,
    ),
    Metric(
        "restarts", "restarts", "count", "lower", "How often a fault stopped a job, which then started again.",
        lambda figures: figures.restarts,
    ),
)  # fmt: skip

SLOWDOWN = "JCT over work, averaged over a scenario's jobs; work below 10 min counts as 10 min."


def metrics_with(objective: Weighting | str | None) -> tuple[Metric, ...]:
    """Return the metrics, first of them an objective that is a weighting and none of them."""
    if not isinstance(objective, Weighting) or objective.field in {metric.name for metric in METRICS}:
        return METRICS
    is_alone = len(objective.terms) == 1
    return (
        Metric(
            name=objective.field,
            title=objective.title,
            quantity="time" if objective.is_time else "count",
            better="lower",
            meaning=SLOWDOWN if is_alone else f"Weighted geometric mean of {objective.text}, times in seconds.",
            values=objective.cost,
        ),
        *METRICS,
    )


def scenario_metrics(outcome: Outcome, scenarios: Scenarios, cluster_gpus: int) -> RunMetrics:
    """Return the figures of each scenario under one policy."""
    return metrics(outcome, scenarios.jobs, scenarios.gpus, scenarios.submit_s, cluster_gpus, scenarios.work_s)
