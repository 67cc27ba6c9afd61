"""What moves are believed to gain, by what a network tells and by what was tried, and what more tries are worth.

Source: value of information (Howard, 1966); docs/policies.md, Rollouts.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

# Variance of what a move truly gains, over the gap that is told between it and the base's own choice, in units of
# `goal_unit_s`: moves that look alike end alike. `distil/spread` of a run is the same on labels that are held out.
SPREAD = 0.3


class Belief(NamedTuple):
    """What moves are believed to gain over the base's own choice, the first of them, in units of `goal_unit_s`."""

    mean: NDArray[np.float64]  # (moves,), 0 for the first
    variance: NDArray[np.float64]  # (moves,), 0 for the first


def belief_of(gains: NDArray[np.float64], told: NDArray[np.float64]) -> Belief:
    """Return the mean of three estimates, weighted by their variances.

    These are what is told, the gain in a future without faults, and the mean gain in futures that are drawn. The first
    two have the variance SPREAD x |told|, the third has the same and that of its sample for each future.

    Args:
        gains: In the future without faults and in others, shape (1 + futures, moves), or (0, moves) if nothing was
            tried; 0 for the first move.
        told: By the base, shape (moves,); 0 for the first move.
    """
    spread = np.maximum(SPREAD * np.abs(told), 1e-12)
    spread[0] = 0.0
    calm, drawn = gains[:1], gains[1:]
    futures = len(drawn)
    noise = drawn.var(axis=0, ddof=1) if futures > 1 else np.zeros_like(spread)
    weight = np.divide(futures * spread, spread + noise, out=np.zeros_like(spread), where=spread > 0.0)
    total = told + calm.sum(axis=0) + weight * (drawn.mean(axis=0) if futures else 0.0)
    weights = 1.0 + len(calm) + weight
    return Belief(total / weights, spread / weights)


def worth_of(belief: Belief) -> NDArray[np.float64]:
    """Return what it would gain to know each move's gain for certain before the best is taken, shape (moves,).

    That is E max(x, 0) of the normal difference x between a move and the one believed best; 0 for that one.
    """
    from scipy.special import ndtr

    best = int(np.argmax(belief.mean))
    spread = np.sqrt(belief.variance + belief.variance[best])
    behind = belief.mean[best] - belief.mean
    steps = np.divide(behind, spread, out=np.full_like(spread, 40.0), where=spread > 0.0)
    density = np.exp(-0.5 * steps**2) / np.sqrt(2.0 * np.pi)
    worth: NDArray[np.float64] = np.maximum(spread * density - behind * ndtr(-steps), 0.0)
    worth[best] = 0.0
    return worth
