"""Workloads drawn from profiles; docs/clusters.md says how these are fitted to traces, and how well they match."""

import math
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import gammaln, ndtr

from ..model.workload import Workload, workload_of
from .profiles import QUANTILE_LEVELS, Profile
from .windows import scaled_to_load, with_gpus_cut

Arrivals = Literal["profile", "poisson", "batch"]
SHAPE_BOUNDS = (0.1, 50.0)  # Weibull shapes of coefficients of variation 430 to 0.025


def generate(
    profile: Profile,
    jobs: int,
    *,
    load: float,
    cluster_gpus: int,
    rng: np.random.Generator,
    arrivals: Arrivals = "profile",
) -> Workload:
    """Return a workload that looks like a profile, at a chosen load.

    Args:
        profile: One of `PROFILES`, or what `fit` returns for a trace.
        jobs: Number of jobs.
        load: Offered load, the sum of gpus x work over cluster_gpus x (last submission - first); met exactly, but
            without meaning for batches.
        cluster_gpus: GPUs of the cluster; jobs that would ask more ask this many.
        rng: Draws everything.
        arrivals: Gaps between submissions as in the profile; or exponential ones, without memory; or all at 0.

    Raises:
        ValueError: If a number is not positive.
    """
    if jobs < 1 or cluster_gpus < 1 or not load > 0:
        raise ValueError(f"jobs, cluster_gpus and load must be positive; got {jobs}, {cluster_gpus} and {load}")
    gpus, work_s = _sizes_and_work_s(profile, jobs, rng)
    workload = workload_of(tuple(f"job{i}" for i in range(jobs)), gpus, work_s, _submit(profile, jobs, rng, arrivals))
    return scaled_to_load(with_gpus_cut(workload, cluster_gpus), load, cluster_gpus)


def weibull_shape(variation: float) -> float:
    """Return the shape of the Weibull distribution with a coefficient of variation (1 gives 1, the exponential).

    Raises:
        ValueError: If the coefficient is not from 0.03 to 400.
    """
    if not 0.03 <= variation <= 400:
        raise ValueError(f"a coefficient of variation of gaps should be from 0.03 to 400; got {variation}")

    def excess(shape: float) -> float:
        return float(gammaln(1 + 2 / shape) - 2 * gammaln(1 + 1 / shape)) - math.log1p(variation**2)

    return float(brentq(excess, *SHAPE_BOUNDS))


def _sizes_and_work_s(
    profile: Profile, jobs: int, rng: np.random.Generator
) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    shares = np.array([size.share for size in profile.sizes])
    drawn = rng.choice(shares.size, jobs, p=shares / shares.sum())
    begins = rng.random(jobs) >= profile.repeat
    begins[0] = True
    size = drawn[np.maximum.accumulate(np.where(begins, np.arange(jobs), 0))]
    level = _levels(begins, profile.work_memory, rng)
    log_work = np.empty(jobs)
    for i, kind in enumerate(profile.sizes):
        own = size == i
        log_work[own] = np.interp(level[own], QUANTILE_LEVELS, np.log(kind.work_quantiles_s))
    counts = np.array([kind.gpus for kind in profile.sizes], dtype=np.int32)
    return counts[size], np.exp(log_work)


def _submit(profile: Profile, jobs: int, rng: np.random.Generator, arrivals: Arrivals) -> NDArray[np.float64]:
    """Return submissions in units of their own, shape (jobs,); the load sets the scale."""
    if arrivals == "batch":
        return np.zeros(jobs)
    if arrivals == "poisson":
        return np.cumsum(rng.standard_exponential(jobs))
    if arrivals != "profile":
        raise ValueError(f"{arrivals!r} is not a kind of arrivals; known: profile, poisson, batch")
    begins = np.zeros(jobs, dtype=np.bool_)
    begins[0] = True
    level = _levels(begins, profile.gap_memory, rng)
    return np.cumsum((-np.log1p(-level)) ** (1 / weibull_shape(profile.gap_cv)))


def _levels(begins: NDArray[np.bool_], memory: float, rng: np.random.Generator) -> NDArray[np.float64]:
    """Return numbers that are each uniform in (0, 1), correlated with the one before but where a run begins."""
    noise = rng.standard_normal(begins.size)
    score = np.empty(begins.size)
    fresh = math.sqrt(1 - memory**2)
    for i, first in enumerate(begins):
        score[i] = noise[i] if first else memory * score[i - 1] + fresh * noise[i]
    levels: NDArray[np.float64] = ndtr(score)
    return levels
