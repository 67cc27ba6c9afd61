"""What candidates are believed to gain, by what a network tells and by what was tried, and what more tries are worth.

Source: value of information (Howard, 1966); docs/policies.md, Rollouts.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

# Fitted to decisions of rollouts' own runs on hetero64, of which each candidate was tried in 64 futures more; on other
# workloads than those that policies are scored on.
# Variance of what a candidate truly gains, by the gap that is told between it and the base's own choice, in units of
# `objective_unit_s`: candidates that look alike end alike, but for what the network cannot see. `distil/spread` of a
# run is the same without a floor, on labels that are held out.
FLOOR, SLOPE = 0.004, 0.2
# Variance of a gain in one future, as a multiple of that; it is known as well as if so many futures had shown it.
NOISE, NOISE_FUTURES = 2.7, 10
# How many futures the ends count as beside those that were tried, and how many what was foreseen counts as.
ENDS, FORESEEN = 24, 48


class Posterior(NamedTuple):
    """Gains over the base's own choice, which is the first candidate, in units of `objective_unit_s`."""

    mean: NDArray[np.float64]  # (candidates,), 0 for the first
    variance: NDArray[np.float64]  # (candidates,), 0 for the first


def blend(ends_s: NDArray[np.float64], foreseen_s: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return what tries come to, by their ends and by what was foreseen on the way, all of shape (futures, candidates).

    What is foreseen has less chance in it, and the errors of who foresees: the more futures, the more the ends count.
    """
    share = FORESEEN / (ENDS + FORESEEN + len(ends_s))
    return ends_s + share * (foreseen_s - ends_s)


def posterior_of(gains: NDArray[np.float64], predicted_gains: NDArray[np.float64]) -> Posterior:
    """Return the mean of three estimates, weighted by their variances.

    These are what is told, the gain in a future without faults, and the mean gain in futures that are drawn. The first
    two have the variance FLOOR + SLOPE x |predicted|; the third has the same for each future, and that of its sample,
    which is pooled with NOISE x as much from NOISE_FUTURES futures.

    Args:
        gains: In the future without faults and in others, shape (1 + futures, candidates), or (0, candidates) if
            nothing was tried; 0 for the first candidate.
        predicted_gains: By the base, shape (candidates,); 0 for the first candidate.
    """
    spread = FLOOR + SLOPE * np.abs(predicted_gains)
    calm, drawn = gains[:1], gains[1:]
    futures = len(drawn)
    sample = futures * drawn.var(axis=0) if futures else 0.0
    noise = (NOISE * NOISE_FUTURES * spread + sample) / (NOISE_FUTURES + max(futures - 1, 0))
    weight = futures * spread / (spread + noise)
    total = predicted_gains + calm.sum(axis=0) + weight * (drawn.mean(axis=0) if futures else 0.0)
    weights = 1.0 + len(calm) + weight
    variance = spread / weights
    variance[0] = 0.0
    return Posterior(total / weights, variance)


def value_of_information(posterior: Posterior) -> NDArray[np.float64]:
    """Return the value of knowing each candidate's gain for certain before one is chosen, shape (candidates,).

    That is E max(x, 0) of the normal difference x between a candidate and the one believed best; 0 for that one.
    """
    from scipy.special import ndtr

    best = int(np.argmax(posterior.mean))
    spread = np.sqrt(posterior.variance + posterior.variance[best])
    behind = posterior.mean[best] - posterior.mean
    steps = np.divide(behind, spread, out=np.full_like(spread, 40.0), where=spread > 0.0)
    density = np.exp(-0.5 * steps**2) / np.sqrt(2.0 * np.pi)
    value: NDArray[np.float64] = np.maximum(spread * density - behind * ndtr(-steps), 0.0)
    value[best] = 0.0
    return value
