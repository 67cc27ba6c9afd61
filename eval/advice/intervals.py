"""How two ways to run the same scenarios compare, and how an estimate is told, in words and in JSON."""

import numpy as np
from numpy.typing import NDArray

from ...cluster.model.intervals import Estimates, ratio_estimates, unit_sums

CONFIDENCE = 0.95


def ratios_by_unit(mine: NDArray[np.float64], other: NDArray[np.float64], unit: NDArray[np.intp]) -> list[Estimates]:
    """Return the ratio of each figure over all units, by a paired bootstrap over units.

    Args:
        mine: The figures of one way, shape (figures, scenarios).
        other: Those of the other way, of the same shape.
        unit: Unit of each scenario, shape (scenarios,).

    Returns:
        An estimate of shape (1,) for each figure.
    """
    ratios = ratio_estimates(unit_sums(mine, unit), unit_sums(other, unit), confidence=CONFIDENCE)
    return [Estimates(*(end[[row]] for end in ratios)) for row in range(len(mine))]


def in_percent(ratio: Estimates) -> Estimates:
    """Return a ratio as a change in per cent."""
    return Estimates(*(100.0 * (end - 1.0) for end in ratio))


def with_interval(estimates: Estimates, form: str, unit: str) -> str:
    """Return an estimate in words, with its interval if there is one."""
    value, low, high = (float(end[0]) for end in estimates)
    interval = "" if np.isnan(low) else f" [{low:{form}}, {high:{form}}]"
    return f"{value:{form}}{unit}{interval}"


def ends(estimates: Estimates) -> list[float | None]:
    """Return an estimate and the ends of its interval as JSON has them, None for what nobody can tell."""
    return [float(end[0]) if np.isfinite(end[0]) else None for end in estimates]
