"""What a metric is."""

from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...cluster.model.outcome import Metrics, Outcome, metrics
from ...cluster.model.scenarios import Scenarios


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
