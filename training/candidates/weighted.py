"""What runs and their jobs are worth by an objective that a user asks for, each figure relative to its group's mean.

Mean JCT and mean slowdown are sums over jobs of the time that each spends in the system, so that decisions can be
credited with them by time. The p99 of JCT and the makespan are no such sums: all decisions of a run have a share.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from ...cluster.model.outcome import Metrics, bounded_s
from ...cluster.model.weighting import Weighting, alone
from .credit import Ran

SUMS = ("mean-jct", "slowdown")


def relative(values: NDArray[np.float64], runs: int) -> NDArray[np.float64]:
    """Return values of runs over the mean of their group, shape (groups, runs)."""
    grouped = values.reshape(-1, runs)
    over: NDArray[np.float64] = grouped / grouped.mean(axis=1, keepdims=True)
    return over


def relative_cost(shares: Mapping[str, float], figures: Metrics, runs: int) -> NDArray[np.float64]:
    """Return the weighted sum of figures that are relative to the group's mean, shape (groups, runs).

    Close to that mean it differs by as much as the weighted geometric mean does.

    Args:
        shares: Of figures, by their names.
        figures: Of all runs, shape (runs of all groups,).
        runs: Of each group.
    """
    cost = np.zeros((figures.mean_jct_s.size // runs, runs))
    for name, share in shares.items():
        cost += share * relative(alone(name).cost(figures), runs)
    return cost


def shares_of(weighting: Weighting) -> dict[str, float]:
    """Return the share of each figure."""
    return {term.name: weighting.weight(term.name) for term in weighting.terms}


def whole_shares(weighting: Weighting) -> dict[str, float]:
    """Return the shares of what decisions cannot be credited with by time."""
    return {name: share for name, share in shares_of(weighting).items() if name not in SUMS}


def job_weights(weighting: Weighting, ran: Ran, figures: Metrics, runs: int) -> NDArray[np.float64]:
    """Return what a second of each job in the system weighs, over what it weighs in the relative mean JCT.

    Args:
        weighting: What is minimised.
        ran: The runs.
        figures: Of them, shape (runs of all groups,).
        runs: Of each group.

    Returns:
        Shape (runs of all groups, jobs).
    """
    jct, slowdown = (weighting.weight(name) for name in SUMS)
    if jct + slowdown == 0.0:
        return np.ones_like(ran.submit_s)
    mean_s, mean = (
        values.reshape(-1, runs).mean(axis=1).repeat(runs)[:, None]
        for values in (figures.mean_jct_s, figures.mean_slowdown)
    )
    weights: NDArray[np.float64] = (jct + slowdown * mean_s / (mean * bounded_s(ran.work_s))) / (jct + slowdown)
    return weights
