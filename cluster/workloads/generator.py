"""Workloads drawn from profiles; docs/clusters.md describes how these are fitted to traces, and how well they match."""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import gammaln, ndtr, ndtri

from ..model.workload import Workload, gap_variation, scaled_to_load, with_gpus_cut, workload_of

QUANTILE_LEVELS = (0.0, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1.0)
OWN_CLASS_JOBS = 15  # fewer jobs are too few for quantiles; more would miss large jobs, which hold much GPU-time


@dataclass(frozen=True, slots=True)
class SizeClass:
    """Jobs that ask the same number of GPUs."""

    gpus: int
    share: float  # of all jobs
    work_quantiles_s: tuple[float, ...]  # at QUANTILE_LEVELS


@dataclass(frozen=True, slots=True)
class Profile:
    """Statistics of a workload. Users submit runs of similar jobs, so jobs resemble the one before."""

    sizes: tuple[SizeClass, ...]
    repeat: float  # probability that a job asks as many GPUs as the one before because it belongs to the same run
    work_memory: float  # correlation of the work of a job with the one before in the same run, as normal scores
    gap_cv: float  # coefficient of variation of the gaps between submissions
    gap_memory: float  # correlation of a gap with the one before, as normal scores


def fit(workload: Workload) -> Profile:
    """Return the profile of a workload, such as a trace, for `generate`.

    Shares and quantiles are those of the jobs; GPU counts with fewer than 15 jobs share the quantiles of all jobs.
    The probability r of a repeat follows from the share of jobs with the size of the one before, which is
    r + (1 - r) x (sum of squared shares).

    Args:
        workload: At least 3 jobs, not all submitted at once.

    Raises:
        ValueError: If there are fewer jobs, or no time passes between them.
    """
    if workload.jobs < 3 or workload.submit_s[-1] <= workload.submit_s[0]:
        raise ValueError(f"a profile needs at least 3 jobs over some time; got {workload.jobs}")
    counts, jobs = np.unique(workload.gpus, return_counts=True)
    shares = jobs / workload.jobs
    sizes = tuple(_size_class(workload, int(gpus), float(share)) for gpus, share in zip(counts, shares, strict=True))
    gaps_s = np.diff(workload.submit_s)
    same = workload.gpus[1:] == workload.gpus[:-1]
    by_chance = float((shares**2).sum())
    repeat = max(0.0, (float(same.mean()) - by_chance) / (1 - by_chance)) if by_chance < 1 else 0.0
    # Of the neighbours of equal size those of one run are a part; the others are not correlated.
    of_one_run = repeat / max(repeat + (1 - repeat) * by_chance, 1e-9)
    return Profile(
        sizes=sizes,
        repeat=repeat,
        work_memory=min(0.99, _next_score_correlation(_work_scores(workload), same) / max(of_one_run, 1e-9)),
        gap_cv=gap_variation(workload.submit_s),
        gap_memory=_next_score_correlation(_normal_scores(gaps_s), np.ones(gaps_s.size - 1, dtype=np.bool_)),
    )


def _size_class(workload: Workload, gpus: int, share: float) -> SizeClass:
    own = workload.gpus == gpus
    work_s = workload.work_s[own] if own.sum() >= OWN_CLASS_JOBS else workload.work_s
    return SizeClass(gpus, share, tuple(np.quantile(work_s, QUANTILE_LEVELS).tolist()))


def _work_scores(workload: Workload) -> NDArray[np.float64]:
    """Return the normal score of each job's work among the jobs of its size, shape (jobs,)."""
    scores = np.empty(workload.jobs)
    for gpus in np.unique(workload.gpus):
        own = workload.gpus == gpus
        scores[own] = _normal_scores(workload.work_s[own])
    return scores


def _normal_scores(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return standard normal numbers in the order of the values; equal ones get the score of their mean rank."""
    _, value, ties = np.unique(values, return_inverse=True, return_counts=True)
    rank = (np.cumsum(ties) - ties / 2)[value]
    scores: NDArray[np.float64] = ndtri(rank / values.size)
    return scores


def _next_score_correlation(scores: NDArray[np.float64], counted: NDArray[np.bool_]) -> float:
    """Return the correlation of each score with the next, from 0 to 0.99, over the pairs that are counted."""
    before, after = scores[:-1][counted], scores[1:][counted]
    if before.size < 3 or before.std() == 0 or after.std() == 0:
        return 0.0
    return float(np.clip(np.corrcoef(before, after)[0, 1], 0.0, 0.99))


# Fitted by `fit` to philly_vc_2869ce, philly_vc_7f04ca, itp_cluster03 and itp_cluster06 (docs/clusters.md).
PROFILES = {
    "philly": Profile(
        sizes=(
            SizeClass(1, 0.1351, (7, 29, 37, 53, 912, 8690, 13200, 25200, 72400, 81000)),
            SizeClass(2, 0.0222, (16, 19.2, 23.3, 225, 920, 1340, 11400, 47100, 143000, 168000)),
            SizeClass(4, 0.0343, (13, 18.9, 23, 30.5, 372, 2610, 413000, 872000, 927000, 927000)),
            SizeClass(8, 0.6966, (1, 40.5, 86, 752, 4060, 89600, 207000, 230000, 307000, 604000)),
            SizeClass(16, 0.0030, (1, 30, 51, 438, 3390, 43700, 189000, 222000, 314000, 927000)),
            SizeClass(32, 0.1089, (19, 27, 51.7, 928, 14400, 48900, 57200, 75700, 148000, 166000)),
        ),
        repeat=0.56,
        work_memory=0.73,
        gap_cv=3.55,
        gap_memory=0.27,
    ),
    "philly-long": Profile(
        sizes=(
            SizeClass(1, 0.3588, (3, 54.5, 118, 1100, 14400, 398000, 1730000, 2060000, 2740000, 3040000)),
            SizeClass(2, 0.0033, (2, 56, 141, 630, 14400, 138000, 656000, 1720000, 2660000, 4630000)),
            SizeClass(4, 0.2831, (2, 83.2, 141, 319, 5910, 87900, 127000, 219000, 522000, 547000)),
            SizeClass(8, 0.3112, (2, 50.2, 252, 841, 14300, 261000, 755000, 1670000, 2680000, 4630000)),
            SizeClass(16, 0.0268, (32, 64, 91.4, 974, 58400, 130000, 165000, 186000, 312000, 370000)),
            SizeClass(32, 0.0167, (50, 60, 72.4, 187, 222, 16500, 69300, 97600, 114000, 117000)),
        ),
        repeat=0.72,
        work_memory=0.63,
        gap_cv=3.92,
        gap_memory=0.31,
    ),
    "itp": Profile(
        sizes=(
            SizeClass(1, 0.3368, (717, 1730, 2080, 4340, 8430, 19300, 27600, 37600, 80300, 135000)),
            SizeClass(2, 0.0282, (1220, 2980, 2990, 3010, 3030, 3050, 3080, 3150, 9470, 22700)),
            SizeClass(8, 0.5902, (603, 789, 1180, 2770, 12700, 30300, 62300, 86700, 188000, 508000)),
            SizeClass(16, 0.0312, (608, 973, 1210, 5700, 25200, 56300, 82600, 149000, 443000, 445000)),
            SizeClass(32, 0.0080, (709, 850, 1460, 6340, 68300, 118000, 387000, 547000, 917000, 1020000)),
            SizeClass(64, 0.0056, (3760, 3790, 3800, 4340, 15500, 55700, 130000, 181000, 243000, 259000)),
        ),
        repeat=0.86,
        work_memory=0.72,
        gap_cv=5.34,
        gap_memory=0.55,
    ),
    "itp-short": Profile(
        sizes=(
            SizeClass(1, 0.4478, (600, 630, 645, 973, 2190, 3040, 12100, 37300, 102000, 289000)),
            SizeClass(2, 0.0025, (600, 642, 814, 2010, 4320, 27600, 54300, 96900, 289000, 900000)),
            SizeClass(4, 0.0618, (2360, 3020, 3670, 5020, 14900, 41100, 67200, 112000, 496000, 578000)),
            SizeClass(8, 0.4516, (603, 1000, 1890, 5950, 21200, 40200, 89800, 175000, 317000, 574000)),
            SizeClass(16, 0.0246, (683, 932, 1320, 3230, 3270, 4040, 4100, 4140, 32700, 72000)),
            SizeClass(32, 0.0083, (3870, 4130, 4300, 4380, 4500, 4790, 5650, 12600, 13000, 13000)),
            SizeClass(64, 0.0033, (600, 642, 814, 2010, 4320, 27600, 54300, 96900, 289000, 900000)),
        ),
        repeat=0.84,
        work_memory=0.8,
        gap_cv=3.32,
        gap_memory=0.42,
    ),
}


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
    """Return a workload drawn from a profile, at a chosen load.

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
    gpus, work_s = _draw_sizes_and_work_s(profile, jobs, rng)
    workload = workload_of(
        tuple(f"job{i}" for i in range(jobs)), gpus, work_s, _draw_submissions(profile, jobs, rng, arrivals)
    )
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


def _draw_sizes_and_work_s(
    profile: Profile, jobs: int, rng: np.random.Generator
) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    shares = np.array([size.share for size in profile.sizes])
    drawn = rng.choice(shares.size, jobs, p=shares / shares.sum())
    begins = rng.random(jobs) >= profile.repeat
    begins[0] = True
    size = drawn[np.maximum.accumulate(np.where(begins, np.arange(jobs), 0))]
    level = _draw_correlated_levels(begins, profile.work_memory, rng)
    log_work = np.empty(jobs)
    for i, kind in enumerate(profile.sizes):
        own = size == i
        log_work[own] = np.interp(level[own], QUANTILE_LEVELS, np.log(kind.work_quantiles_s))
    counts = np.array([kind.gpus for kind in profile.sizes], dtype=np.int32)
    return counts[size], np.exp(log_work)


def _draw_submissions(profile: Profile, jobs: int, rng: np.random.Generator, arrivals: Arrivals) -> NDArray[np.float64]:
    """Return submissions in units of their own, shape (jobs,); the load sets the scale."""
    if arrivals == "batch":
        return np.zeros(jobs)
    if arrivals == "poisson":
        return np.cumsum(rng.standard_exponential(jobs))
    if arrivals != "profile":
        raise ValueError(f"{arrivals!r} is not a kind of arrivals; known: profile, poisson, batch")
    begins = np.zeros(jobs, dtype=np.bool_)
    begins[0] = True
    level = _draw_correlated_levels(begins, profile.gap_memory, rng)
    return np.cumsum((-np.log1p(-level)) ** (1 / weibull_shape(profile.gap_cv)))


def _draw_correlated_levels(begins: NDArray[np.bool_], memory: float, rng: np.random.Generator) -> NDArray[np.float64]:
    """Return numbers that are each uniform in (0, 1), correlated with the one before but where a run begins."""
    noise = rng.standard_normal(begins.size)
    score = np.empty(begins.size)
    fresh = math.sqrt(1 - memory**2)
    for i, first in enumerate(begins):
        score[i] = noise[i] if first else memory * score[i - 1] + fresh * noise[i]
    levels: NDArray[np.float64] = ndtr(score)
    return levels
