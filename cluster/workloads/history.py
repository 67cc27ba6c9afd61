"""Run times predicted from jobs that have ended: those of the same user and name first.

Source: Tsafrir, Etsion and Feitelson, Backfilling using system-generated predictions rather than user runtime estimates
(2007), who take the mean of the last two jobs of the same user; here more of them count, each less than the next.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

FIRST_S = 3600.0  # before any job has ended
RECENT_JOBS = 32  # of a group, those that ended last
DECAY = 0.9  # a job weighs this share of the one that ended after it

Floats = NDArray[np.float64]


class Alike(StrEnum):
    """What the ended jobs that a prediction is from have in common with the job, the closest first."""

    USER_AND_NAME = "user-and-name"
    USER_AND_GPUS = "user-and-gpus"
    GPUS = "gpus"
    ANY = "any"


class Histories(NamedTuple):
    """What is predicted of jobs. A job that nothing is known for has the default, from no jobs."""

    estimate_s: Floats  # (jobs,)
    alike: NDArray[np.int64]  # (jobs,) index into Alike, -1 where no job had ended
    ended: NDArray[np.int64]  # (jobs,) jobs that it is from, at most RECENT_JOBS


def histories(
    gpus: NDArray[np.int32],
    work_s: Floats,
    submit_s: Floats,
    users: Sequence[str] | None = None,
    names: Sequence[str] | None = None,
) -> Histories:
    """Predict the work of each job from jobs that had ended before it was submitted.

    These are the jobs of the same user and name; if none of them had ended, those of the same user that ask as many
    GPUs; then all that ask as many GPUs; then all. Where no user is known, the jobs of one name count as one user's.
    Nothing else of the job or of later ends is looked at. A job counts as ended at its submission + its work.

    Args:
        gpus: GPUs of each job, shape (jobs,).
        work_s: Work, shape (jobs,), more than 0.
        submit_s: Submission, shape (jobs,).
        users: User of each job, empty where not known; none is known if left out.
        names: Name (or model) of each job, in the same way.
    """
    nobody = ("",) * work_s.size
    user, name = codes_of(users or nobody), codes_of(names or nobody)
    by_gpus = np.unique(gpus, return_inverse=True)[1].astype(np.int64)
    groups = {
        Alike.ANY: np.zeros(work_s.size, dtype=np.int64),
        Alike.GPUS: by_gpus,
        Alike.USER_AND_GPUS: _pairs(user, by_gpus, known=user >= 0),
        Alike.USER_AND_NAME: _pairs(user, name, known=name >= 0),
    }  # the widest first: what a closer one knows takes its place
    means, alike = np.zeros(work_s.size), np.full(work_s.size, -1)
    ended, end_s, logs = np.zeros(work_s.size, dtype=np.int64), submit_s + work_s, np.log(work_s)
    for level, group in groups.items():
        order, first, count = _ended_before(group, end_s, submit_s)
        known = (count > 0) & (group >= 0)
        means = np.where(known, recent_means(logs[order], first, count), means)
        alike = np.where(known, list(Alike).index(level), alike)
        ended = np.where(known, np.minimum(count, RECENT_JOBS), ended)
    return Histories(np.where(ended > 0, np.exp(means), FIRST_S), alike, ended)


def recent_means(values: Floats, first: NDArray[np.int64], count: NDArray[np.int64]) -> Floats:
    """Return weighted means over stretches of an array, in which each value weighs 0.9 times the one behind it.

    Args:
        values: In the order of their ends.
        first: Where each stretch begins, shape (stretches,).
        count: Values of each, of which the last 32 count, shape (stretches,).

    Returns:
        Shape (stretches,); 0 for a stretch without values.
    """
    total, weights = np.zeros(count.size), np.zeros(count.size)
    for age in range(RECENT_JOBS):
        there = count > age
        if not there.any():
            break
        at = np.where(there, first + count - 1 - age, 0)
        total += np.where(there, DECAY**age * values[at], 0.0)
        weights += DECAY**age * there
    return total / np.where(weights > 0, weights, 1.0)


def predicted_s(works_s: Floats) -> float:
    """Return what is predicted from the works of ended jobs, one or more, in the order of their ends."""
    every = np.array([works_s.size])
    return float(np.exp(recent_means(np.log(works_s), np.zeros_like(every), every))[0])


def codes_of(texts: Sequence[str]) -> NDArray[np.int64]:
    """Return a number for each text, the same for the same text; -1 for an empty one."""
    numbers: dict[str, int] = {"": -1}
    return np.array([numbers.setdefault(text, len(numbers) - 1) for text in texts], dtype=np.int64)


def _pairs(one: NDArray[np.int64], other: NDArray[np.int64], *, known: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return a number for each pair of numbers that are at least -1, and -1 where it is not known."""
    return np.where(known, (one + 1) * (other.max(initial=0) + 2) + other + 1, -1)


def _ended_before(
    group: NDArray[np.int64], end_s: Floats, at_s: Floats
) -> tuple[NDArray[np.intp], NDArray[np.int64], NDArray[np.int64]]:
    """Return the jobs by group and end, and for each job where its group begins there and how many had ended.

    Before a moment, not at it: where the work is lost in rounding, a job would else count for itself.
    """
    moments = np.unique(np.concatenate([end_s, at_s]))
    numbered = np.unique(group, return_inverse=True)[1].astype(np.int64) * (moments.size + 1)
    ends = numbered + np.searchsorted(moments, end_s)
    order = np.argsort(ends, kind="stable")
    first = np.searchsorted(ends[order], numbered)
    return order, first, np.searchsorted(ends[order], numbered + np.searchsorted(moments, at_s)) - first
