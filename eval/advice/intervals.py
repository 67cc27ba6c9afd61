"""How an estimate with its interval is told, in words and in JSON."""

import numpy as np

from ...cluster.model.intervals import Estimates


def with_interval(estimates: Estimates, form: str, unit: str) -> str:
    """Return an estimate in words, with its interval if there is one."""
    value, low, high = (float(end[0]) for end in estimates)
    interval = "" if np.isnan(low) else f" [{low:{form}}, {high:{form}}]"
    return f"{value:{form}}{unit}{interval}"


def ends(estimates: Estimates) -> list[float | None]:
    """Return an estimate and the ends of its interval as JSON has them, None for what nobody can tell."""
    return [float(end[0]) if np.isfinite(end[0]) else None for end in estimates]
