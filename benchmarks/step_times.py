"""Synthetic step times of a training job, with all that makes honest steps longer now and then."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

STEP_S = 1.0  # median


class Noise(NamedTuple):
    """How much step times differ."""

    sigma: float  # of their logarithm
    rho: float = 0.0  # correlation of neighbours

    def __str__(self) -> str:
        return f"sigma {self.sigma:.2f}" + (f" AR {self.rho}" if self.rho else "")


NOISES = (Noise(0.05), Noise(0.15), Noise(0.15, 0.7), Noise(0.30))


def step_times(
    steps: int, noise: Noise, rng: np.random.Generator, *, slow_from: int | None = None, labelled: bool = False
) -> NDArray[np.float64]:
    """Return step times.

    A warm-up over 20 steps, hiccups of 1.5 to 3 times in 0.2 % of steps, episodes of slow storage of 1.12 times for 10
    to 30 steps (one in 2,000 steps), a checkpoint each 200 steps (3 to 6 s), an evaluation each 1,000 (15 to 30 s).

    Args:
        steps: How many.
        noise: How much they differ.
        rng: Randomness.
        slow_from: From this step on a node is slow, and each step takes 1.3 times as long; none if left out.
        labelled: Omit checkpoints and evaluations, which the job reports as such.

    Returns:
        Seconds, shape (steps,).
    """
    took_s = STEP_S * np.exp(_noise(steps, noise, rng))
    took_s[:20] *= np.linspace(2.0, 1.0, 20)[:steps]
    hiccups = rng.random(steps) < 0.002
    took_s[hiccups] *= rng.uniform(1.5, 3.0, hiccups.sum())
    for begin in np.flatnonzero(rng.random(steps) < 1 / 2000):
        took_s[begin : begin + rng.integers(10, 31)] *= 1.12
    if slow_from is not None:
        took_s[slow_from:] *= 1.3
    if not labelled:
        took_s[199::200] += rng.uniform(3.0, 6.0, took_s[199::200].size)
        took_s[999::1000] += rng.uniform(15.0, 30.0, took_s[999::1000].size)
    return took_s


def _noise(steps: int, noise: Noise, rng: np.random.Generator) -> NDArray[np.float64]:
    fresh = rng.normal(0.0, noise.sigma, steps)
    if noise.rho == 0.0:
        return fresh
    fresh[1:] *= np.sqrt(1.0 - noise.rho**2)
    for step in range(1, steps):
        fresh[step] += noise.rho * fresh[step - 1]
    return fresh
