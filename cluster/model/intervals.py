"""Intervals and tests of means and ratios of paired runs over scenarios or groups of them.

Intervals come by the bootstrap, or by Student's t where there are few.
"""

import warnings
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr, stdtrit

FEWEST_RESAMPLED = 10  # units: fewer have too few different resamples, and their bootstrap is far too narrow
RESAMPLES = 9999  # the ends of a 95 % interval then differ between seeds by about 1 % of its width
RESAMPLES_AT_ONCE = 250  # bounds memory: rows x 250 x units numbers
SEED = 20260101  # fixed, so that the same outcomes always give the same report


class IntervalEstimates(NamedTuple):
    """Values with the ends of their intervals, all of one shape; the ends are nan where there is no interval."""

    value: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]


def unit_sums(values: NDArray[np.float64], unit: NDArray[np.intp]) -> NDArray[np.float64]:
    """Return sums over the scenarios of each unit, shape (rows, units).

    Args:
        values: Shape (rows, scenarios).
        unit: Unit of each scenario, 0 to units - 1, shape (scenarios,).
    """
    # Row by row and in scenario order: equal rows must give equal sums to the last bit.
    return np.array([np.bincount(unit, weights=row) for row in values])


def ratio_estimates(
    numerator: NDArray[np.float64], denominator: NDArray[np.float64], *, confidence: float
) -> IntervalEstimates:
    """Return the ratio of the sums of each row, with its interval.

    With ones or counts as denominator the ratio is a mean. From 10 units on, units are drawn with replacement, the
    same ones for numerator and denominator and for all rows (paired). The interval is BCa, which allows for skew;
    where BCa is not defined it is the percentile interval, and a ratio that no resample changes is its own interval.
    Fewer units get a t-interval of the linearised ratio (see `_t_interval`).

    Args:
        numerator: Sums of each unit, shape (rows, units).
        denominator: The same shape; a ratio whose denominator sums to 0 is nan.
        confidence: Probability that the interval aims to cover, between 0 and 1.

    Returns:
        Estimates of shape (rows,); without interval where there is one unit, or where resamples (of few units: one
        of them) have no ratio.

    Source: Efron and Tibshirani, An Introduction to the Bootstrap (1993), chapters 6 and 14.
    """
    value = _ratio(numerator, denominator)
    none = np.full(value.shape, np.nan)
    units = numerator.shape[-1]
    if units < 2 or not value.size:
        return IntervalEstimates(value, none, none.copy())
    ends = _t_interval if units < FEWEST_RESAMPLED else _bootstrap_interval
    return IntervalEstimates(value, *ends(numerator, denominator, confidence))


def ratio_p_values(numerator: NDArray[np.float64], denominator: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return two-sided p-values of the hypotheses that the ratios of the sums of each row are 0, by Student's t.

    Args:
        numerator: Sums of each unit, shape (rows, units).
        denominator: The same shape.

    Returns:
        Shape (rows,), nan where there is one unit or no ratio; 1 where all sums are 0.

    Source: as `_t_interval`.
    """
    value, units = _ratio(numerator, denominator), numerator.shape[-1]
    if units < 2:
        return np.full(value.shape, np.nan)
    error = _standard_error(numerator, denominator, value)
    with np.errstate(divide="ignore", invalid="ignore"):
        p = 2.0 * stdtr(units - 1, -np.abs(value / error))
    p = np.where((value == 0.0) & (error == 0.0), 1.0, p)
    return np.asarray(p, dtype=np.float64)


def holm_adjusted(p: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return p-values adjusted for the number of tests, of the same shape.

    At a level of 5 %, the chance that any true hypothesis among them has an adjusted value below 5 % is at most 5 %.
    A nan is no test, and stays.

    Source: Holm, A simple sequentially rejective multiple test procedure (1979).
    """
    flat = p.ravel()
    order = np.argsort(flat, kind="stable")  # nan comes last
    tests = int((~np.isnan(flat)).sum())
    adjusted = np.full(flat.shape, np.nan)
    steps = np.minimum(1.0, flat[order[:tests]] * np.arange(tests, 0, -1))
    adjusted[order[:tests]] = np.maximum.accumulate(steps)
    return adjusted.reshape(p.shape)


def _t_interval(
    numerator: NDArray[np.float64], denominator: NDArray[np.float64], confidence: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return both ends of ratio ± t x standard error, with t of units - 1 degrees of freedom, each of shape (rows,).

    The standard error of r = sum(a) / sum(b) over k units is that of the sum of a - r b, which is r linearised:
    sqrt(k / (k - 1) x sum((a - r b) ** 2)) / sum(b). With b = 1 this is the t-interval of a mean.

    Source: Cochran, Sampling Techniques (1977), chapter 6 (ratio estimates), without finite population.
    """
    value, units = _ratio(numerator, denominator), numerator.shape[-1]
    reach = stdtrit(units - 1, (1 + confidence) / 2) * _standard_error(numerator, denominator, value)
    reach = np.where((denominator != 0).all(axis=-1), reach, np.nan)
    return value - reach, value + reach


def _standard_error(
    numerator: NDArray[np.float64], denominator: NDArray[np.float64], value: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the standard error of the linearised ratio, shape (rows,), nan where there is no ratio."""
    units = numerator.shape[-1]
    residual = numerator - value[:, None] * denominator
    error = np.sqrt(units / (units - 1) * (residual**2).sum(axis=-1))
    total: NDArray[np.float64] = np.where(np.isnan(value), np.nan, np.abs(denominator.sum(axis=-1)))
    return np.asarray(error / total, dtype=np.float64)


def _bootstrap_interval(
    numerator: NDArray[np.float64], denominator: NDArray[np.float64], confidence: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return both ends of the BCa interval, each of shape (rows,), or what takes its place."""
    value = _ratio(numerator, denominator)
    low, high, distribution = _bootstrap_ends_and_ratios(numerator, denominator, confidence)
    tail = 50 * (1 - confidence)
    defined = np.isfinite(distribution).all(axis=-1)
    percentile = np.full((2, *value.shape), np.nan)
    percentile[:, defined] = np.percentile(distribution[defined], [tail, 100 - tail], axis=-1)
    constant = defined & (np.ptp(np.where(defined[:, None], distribution, 0.0), axis=-1) == 0)
    ends = [
        np.where(constant, value, np.where(defined & np.isfinite(low) & np.isfinite(high), bca, plain))
        for bca, plain in ((low, percentile[0]), (high, percentile[1]))
    ]
    return ends[0], ends[1]


def _bootstrap_ends_and_ratios(
    numerator: NDArray[np.float64], denominator: NDArray[np.float64], confidence: float
) -> tuple[Any, ...]:
    """Return the ends of the BCa interval, shape (rows,), and the ratios of all resamples, (rows, resamples)."""
    from scipy import stats  # it takes a second to import

    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore", stats.DegenerateDataWarning)  # such rows come out nan and are dealt with
        result = stats.bootstrap(
            (numerator, denominator),
            _ratio,
            n_resamples=RESAMPLES,
            batch=RESAMPLES_AT_ONCE,
            vectorized=True,
            paired=True,
            axis=-1,
            confidence_level=confidence,
            method="BCa",
            rng=np.random.default_rng(SEED),
        )
    return result.confidence_interval.low, result.confidence_interval.high, result.bootstrap_distribution


def _ratio(numerator: NDArray[np.float64], denominator: NDArray[np.float64], axis: int = -1) -> NDArray[np.float64]:
    above, below = numerator.sum(axis=axis), denominator.sum(axis=axis)
    ratio: NDArray[np.float64] = np.divide(above, below, out=np.full(np.shape(above), np.nan), where=below != 0)
    return ratio
