"""Where a policy loses: the cells of a comparison that speak against it, in words."""

import numpy as np

from ..cluster.model.intervals import Estimates
from .comparison import Comparison
from .table import interval_text, percent_text, verdict

MOST_NAMED = 5  # scenarios that are named one by one


def losses(comparison: Comparison, policy: str) -> list[str]:
    """Return one sentence for each kind of loss of a policy; empty if it loses nowhere.

    Counted are heuristics with a better mean of the objective, scenarios in which the best heuristic is better, metrics
    and job sizes with a worse mean than the best heuristic's, clear or not.
    """
    row = comparison.policies.index(policy)
    found = [_better_heuristics(comparison, row), _scenarios(comparison, row)]
    return [sentence for sentence in (*found, *_metrics(comparison, row), *_job_sizes(comparison, row)) if sentence]


def _better_heuristics(comparison: Comparison, row: int) -> str:
    better = [name for name in comparison.policies[:row] if name in comparison.heuristics]
    if not better:
        return ""
    return f"Heuristics with a better mean {comparison.ranked_by.title}: {', '.join(better)}."


def _scenarios(comparison: Comparison, row: int) -> str:
    best = comparison.policies.index(comparison.best_heuristic)
    worse = round(comparison.worse_share[row] * comparison.scenarios)
    if not worse:
        return ""
    sign = -1 if comparison.ranked_by.better == "higher" else 1
    base = comparison.values[best, comparison.objective]
    change = 100 * (comparison.values[row, comparison.objective] - base) / np.where(base == 0, np.nan, base)
    order = np.argsort(np.nan_to_num(-sign * change), kind="stable")[: min(worse, MOST_NAMED)]
    named = ", ".join(f"scenario {index} ({percent_text(float(change[index]))})" for index in order)
    share = f"{worse} of {comparison.scenarios} scenarios ({100 * comparison.worse_share[row]:.0f} %)"
    return f"Worse {comparison.ranked_by.title} than {comparison.best_heuristic} in {share}; worst: {named}."


def _metrics(comparison: Comparison, row: int) -> list[str]:
    found = []
    for index, metric in enumerate(comparison.metrics):
        change = comparison.difference.value[row, index]
        if change < 0 if metric.better == "higher" else change > 0:
            clear = verdict(comparison, row, index) == "worse"
            change = _change(comparison.relative_percent, row, index)
            found.append(f"Worse in {metric.title}: {change}{_clearness(comparison, clear=clear)}.")
    return found


def _job_sizes(comparison: Comparison, row: int) -> list[str]:
    sizes, found = comparison.job_sizes, []
    for index, title in enumerate(sizes.title):
        if sizes.relative_percent.value[row, index] > 0:
            significant = sizes.p[row, index] < 1 - comparison.confidence
            clear = bool(sizes.relative_percent.low[row, index] > 0 and significant)
            change = _change(sizes.relative_percent, row, index)
            found.append(f"Longer mean JCT of jobs with {title}: {change}{_clearness(comparison, clear=clear)}.")
    return found


def _change(percent: Estimates, row: int, column: int) -> str:
    return f"{percent_text(float(percent.value[row, column]))} {interval_text(percent, row, column)}".rstrip()


def _clearness(comparison: Comparison, *, clear: bool) -> str:
    if comparison.units < 2:
        return ""
    return ", a clear loss" if clear else ", not clear"
