"""How good predictions are: their error, and what it costs to pick by them."""

from collections import defaultdict
from typing import NamedTuple

import numpy as np
from scipy.stats import kendalltau

from longshore.planner.calibration import (
    MeasuredRuns,
    fit_constants,
    predicted_over_measured,
    random_folds,
    select_runs,
)
from longshore.planner.hardware import MeasuredHardware
from longshore.planner.step_time import Array

MIN_RUNS = 3  # layouts of a group, for its order to mean anything


class Score(NamedTuple):
    """Figures of predictions for measured runs."""

    error: float  # mean of |predicted / measured - 1|
    median_error: float
    tenth_error: float  # which a tenth of the runs exceeds
    regret: float  # measured time of the layout picked over that of the best one, minus 1, mean over groups
    most_regret: float
    tau: float  # Kendall's, mean over groups
    groups: int


def score(runs: MeasuredRuns, ratio: Array, predicted: Array) -> Score:
    """Return the figures of predictions.

    Args:
        runs: As measured.
        ratio: Predicted over measured time of each, shape (runs,).
        predicted: What layouts are picked by, in the same shape; one of several alike is picked at random.
    """
    wrong = np.abs(ratio - 1.0)
    regrets, taus = [], []
    for rows in _groups(runs):
        measured = runs.iteration_s[rows]
        picked = measured[predicted[rows] <= predicted[rows].min() * (1.0 + 1e-9)]
        regrets.append(float(picked.mean() / measured.min() - 1.0))
        tau = float(kendalltau(predicted[rows], measured).statistic)
        taus.append(0.0 if np.isnan(tau) else tau)  # a formula that scores all layouts alike orders none
    return Score(
        float(wrong.mean()), float(np.median(wrong)), float(np.quantile(wrong, 0.9)),
        float(np.mean(regrets)), float(np.max(regrets)), float(np.mean(taus)), len(regrets),
    )  # fmt: skip


def _groups(runs: MeasuredRuns) -> list[list[int]]:
    """Return the runs of one model on as many GPUs with one batch: those among which a planner would pick."""
    groups = defaultdict[tuple[float, ...], list[int]](list)
    columns = (runs.hidden, runs.layers, runs.sequence, runs.gpus, runs.batch)
    for row, key in enumerate(zip(*columns, strict=True)):
        groups[key].append(row)
    return [rows for rows in groups.values() if len(rows) >= MIN_RUNS]


def left_out(runs: MeasuredRuns, measured: MeasuredHardware, count: int = 5) -> Array:
    """Return predicted over measured time of each run, by fits from the start to the other folds, shape (runs,)."""
    found = np.empty(runs.gpus.size)
    for fold in random_folds(runs.gpus.size, count):
        others = np.setdiff1d(np.arange(runs.gpus.size), fold)
        found[fold] = predicted_over_measured(
            select_runs(runs, fold), measured, fit_constants(select_runs(runs, others), measured)
        )
    return found


def one_utilisation(runs: MeasuredRuns, measured: MeasuredHardware, count: int = 5) -> Array:
    """Return the same of FLOPs over peak, with one share of the peak for all, fitted to the other folds."""
    at_peak = peak_s(runs, measured) / runs.iteration_s
    found = np.empty(runs.gpus.size)
    for fold in random_folds(runs.gpus.size, count):
        others = np.setdiff1d(np.arange(runs.gpus.size), fold)
        found[fold] = at_peak[fold] / np.median(at_peak[others])
    return found


def peak_s(runs: MeasuredRuns, measured: MeasuredHardware) -> Array:
    """Return the time of each run if its GPUs reached their peak, shape (runs,)."""
    layer = 72.0 * runs.sequence * runs.hidden**2 + 12.0 * runs.sequence**2 * runs.hidden
    flops = runs.batch * (layer * runs.layers + 6.0 * runs.sequence * runs.hidden * runs.vocabulary)
    needed: Array = flops / (runs.gpus * measured.peak_flops)
    return needed
