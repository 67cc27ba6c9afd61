"""Tables of differences, in which those are marked that are no chance."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr

from longshore.cluster.model.intervals import holm_adjusted, ratio_estimates, ratio_p_values

from .against import CONFIDENCE, Difference
from .real_windows import pooled

LEVEL = 0.05  # of a mark, for all tests of a table together
BETTER, WORSE = "▼", "▲"


class Compared(NamedTuple):
    """A difference, and how likely one as large is by chance."""

    difference: Difference
    p: float  # nan where there is no test


Line = Sequence[str | Compared]


def compared(logs: NDArray[np.float64], unit: NDArray[np.intp] | None = None) -> Compared:
    """Return the geometric mean of ratios, less 1.

    Args:
        logs: Logarithms of the ratios, shape (cases,).
        unit: Cases of one unit depend on each other; shape (cases,), each alone if left out.
    """
    number = np.arange(logs.size) if unit is None else np.unique(unit, return_inverse=True)[1]
    sums = np.bincount(number, weights=logs)[None].astype(np.float64)
    counts = np.bincount(number).astype(np.float64)[None]
    found = ratio_estimates(sums, counts, confidence=CONFIDENCE)
    percent, low, high = (float(100.0 * np.expm1(end[0])) for end in found)
    return Compared(Difference(percent, low, high), float(ratio_p_values(sums, counts)[0]))


def over_traces(logs: list[NDArray[np.float64]]) -> Compared:
    """Return the geometric mean over traces, which weigh alike; chance is in the windows of each.

    A trace of one window adds no chance.

    Source of the test: Welch, The generalization of Student's problem (1947).
    """
    sizes = np.array([values.size for values in logs if values.size > 1])
    variances = np.array([values.var(ddof=1) / values.size for values in logs if values.size > 1])
    error = np.sqrt(variances.sum()) / len(logs)
    p = float("nan")
    if error > 0.0:
        freedom = variances.sum() ** 2 / (variances**2 / (sizes - 1)).sum()
        mean = np.mean([values.mean() for values in logs])
        p = float(2.0 * stdtr(freedom, -abs(mean) / error))
    return Compared(pooled(logs), p)


def table(header: Sequence[str], lines: Sequence[Line]) -> Iterator[str]:
    """Yield a table; a difference is marked where its p-value, adjusted for all of the table, is below the level."""
    p = np.array([cell.p for line in lines for cell in line if isinstance(cell, Compared)])
    adjusted = iter(holm_adjusted(p).tolist())
    yield _row(header)
    yield _row(["---"] * len(header))
    for line in lines:
        yield _row([cell if isinstance(cell, str) else _told(cell.difference, next(adjusted)) for cell in line])


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _told(found: Difference, p: float) -> str:
    ends = "" if np.isnan(found.low) else f" [{found.low:+.1f}, {found.high:+.1f}]"
    text = f"{found.percent:+.1f}{ends}"
    if not p < LEVEL:
        return text
    return f"**{text} {BETTER if found.percent < 0.0 else WORSE}**"


def shares(logs: NDArray[np.float64]) -> str:
    """Return in how many per cent of the cases a policy is better, and in how many worse."""
    return f"{100.0 * (logs < 0.0).mean():.0f}/{100.0 * (logs > 0.0).mean():.0f}"
