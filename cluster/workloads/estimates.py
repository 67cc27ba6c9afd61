"""Run-time estimates: drawn with errors as users make them, or predicted from jobs that have ended.

Source: Tsafrir, Etsion and Feitelson, Backfilling using system-generated predictions rather than user runtime estimates
(2007), who take the mean of the last two jobs of the same user; here more of them count, each less than the next.
"""

import dataclasses
from collections.abc import Sequence
from enum import StrEnum
from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from ..model.problem import Scenarios, same_jobs_labels
from ..model.workload import Workload

DEFAULT_ESTIMATE_S = 3600.0  # before any job has ended
RECENT_JOBS = 32  # of a group, those that ended last
DECAY = 0.9  # a job weighs this share of the one that ended after it

Floats = NDArray[np.float64]


class Alike(StrEnum):
    """What the ended jobs that a prediction is from have in common with the job, the closest first."""

    USER_AND_NAME = "user-and-name"
    USER_AND_GPUS = "user-and-gpus"
    GPUS = "gpus"
    ANY = "any"


class WorkPredictions(NamedTuple):
    """What is predicted of jobs. A job that nothing is known for has the default, from no jobs."""

    estimate_s: Floats  # (jobs,)
    alike: NDArray[np.int64]  # (jobs,) index into Alike, -1 where no job had ended
    ended: NDArray[np.int64]  # (jobs,) jobs that it is from, at most RECENT_JOBS


def predict_works(
    gpus: NDArray[np.int32],
    work_s: Floats,
    submit_s: Floats,
    users: Sequence[str] | None = None,
    names: Sequence[str] | None = None,
) -> WorkPredictions:
    """Predict the work of each job from jobs that had ended before it was submitted.

    These are the jobs of the same user and name; if none of them had ended, those of the same user that ask as many
    GPUs; then all that ask as many GPUs; then all. Where no user is known, the jobs of one name count as one user's.
    Nothing else of the job or of later ends counts. A job counts as ended at its submission + its work.

    Args:
        gpus: GPUs of each job, shape (jobs,).
        work_s: Work, shape (jobs,), more than 0.
        submit_s: Submission, shape (jobs,).
        users: User of each job, empty where not known; none is known if None.
        names: Name (or model) of each job, in the same way.
    """
    unknown = ("",) * work_s.size
    user, name = codes_of(users or unknown), codes_of(names or unknown)
    by_gpus = np.unique(gpus, return_inverse=True)[1].astype(np.int64)
    groups = {
        Alike.ANY: np.zeros(work_s.size, dtype=np.int64),
        Alike.GPUS: by_gpus,
        Alike.USER_AND_GPUS: _pair_codes(user, by_gpus, known=user >= 0),
        Alike.USER_AND_NAME: _pair_codes(user, name, known=name >= 0),
    }  # the widest first: what a closer one knows takes its place
    means, alike = np.zeros(work_s.size), np.full(work_s.size, -1)
    ended, end_s, logs = np.zeros(work_s.size, dtype=np.int64), submit_s + work_s, np.log(work_s)
    for level, group in groups.items():
        order, first, count = _order_of_ended(group, end_s, submit_s)
        known = (count > 0) & (group >= 0)
        means = np.where(known, recent_means(logs[order], first, count), means)
        alike = np.where(known, list(Alike).index(level), alike)
        ended = np.where(known, np.minimum(count, RECENT_JOBS), ended)
    return WorkPredictions(np.where(ended > 0, np.exp(means), DEFAULT_ESTIMATE_S), alike, ended)


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


def predicted_work_s(works_s: Floats) -> float:
    """Return what is predicted from the works of ended jobs, one or more, in the order of their ends."""
    every = np.array([works_s.size])
    return float(np.exp(recent_means(np.log(works_s), np.zeros_like(every), every))[0])


def codes_of(texts: Sequence[str]) -> NDArray[np.int64]:
    """Return a number for each text, the same for the same text; -1 for an empty one."""
    numbers: dict[str, int] = {"": -1}
    return np.array([numbers.setdefault(text, len(numbers) - 1) for text in texts], dtype=np.int64)


def _pair_codes(one: NDArray[np.int64], other: NDArray[np.int64], *, known: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return a number for each pair of numbers that are at least -1, and -1 where it is not known."""
    return np.where(known, (one + 1) * (other.max(initial=0) + 2) + other + 1, -1)


def _order_of_ended(
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


EstimateKind = Literal["exact", "log-normal", "class-mean", "history"]
ESTIMATE_KINDS: tuple[EstimateKind, ...] = get_args(EstimateKind)
MOST_SIGMA = 5.0  # a factor of 150 is then no rare error; far larger ones would give 0 or infinity
MIN_ESTIMATE_S = 1e-9  # or the work, if that is shorter: an estimate of 0 would stay 0 however often it is doubled


def with_estimates(
    workload: Workload, kind: EstimateKind, *, sigma: float = 0.0, rng: np.random.Generator | None = None
) -> Workload:
    """Return the workload with other estimates; the work stays as it is.

    - `exact`: the work itself.
    - `log-normal`: the work times a log-normal error of median 1, so that over- and underestimates are equally likely.
    - `class-mean`: the geometric mean of the work of jobs that ask as many GPUs and had ended when the job was
      submitted; of all jobs that had ended if none of them does, and an hour if there is none. When jobs end hangs on
      who places them: here each begins when it is submitted, and runs on the reference placement. A job that waits or
      is stopped by faults thus counts before it has truly ended.
    - `history`: the same from jobs of the same user and name first, the last ones weighing most (`predict_works`).

    Args:
        workload: The jobs.
        kind: One of the above.
        sigma: Standard deviation of the error's logarithm, for `log-normal`; 0.5 means a factor of 1.65.
        rng: Draws the errors, for `log-normal`.

    Raises:
        ValueError: If the kind is not known, sigma is not from 0 to 5, or `log-normal` has no rng.
    """
    if kind == "history":
        jobs = (workload.gpus, workload.work_s, workload.submit_s, workload.users, workload.names)
        return dataclasses.replace(workload, estimate_s=predict_works(*jobs).estimate_s)
    estimate_s = _estimates_s(workload.gpus, workload.work_s, workload.submit_s, kind, sigma, rng)
    return dataclasses.replace(workload, estimate_s=estimate_s)


class EstimateErrors(NamedTuple):
    """How far estimates of one kind are off: quantiles of |log(estimate / work)| over the jobs."""

    median: float
    p90: float


def estimate_errors(workload: Workload, sigma: float, rng: np.random.Generator) -> dict[str, EstimateErrors]:
    """Return how far each kind of estimate is off, and those of the trace itself, as `as recorded`.

    Args:
        workload: One job or more.
        sigma: Of log-normal estimates.
        rng: Draws their errors.
    """
    found = {"as recorded": workload} | {
        kind: with_estimates(workload, kind, sigma=sigma, rng=rng) for kind in ESTIMATE_KINDS
    }
    off = {kind: np.abs(np.log(workload.estimate_s) - np.log(workload.work_s)) for kind, workload in found.items()}
    return {kind: EstimateErrors(float(np.median(each)), float(np.quantile(each, 0.9))) for kind, each in off.items()}


def with_scenario_estimates(
    scenarios: Scenarios, kind: EstimateKind, *, sigma: float = 0.0, rng: np.random.Generator | None = None
) -> Scenarios:
    """Return scenarios with other estimates, as `with_estimates` gives them for each workload.

    Scenarios know neither users nor names; `history` is then from the jobs that ask as many GPUs.

    Scenarios that run the same workload share its estimates, and those of the first workloads do not depend on how
    many others there are.

    Args:
        scenarios: What is run.
        kind: See `with_estimates`.
        sigma: See there.
        rng: See there.

    Raises:
        ValueError: As `with_estimates`.
    """
    label = same_jobs_labels(scenarios)
    first = np.unique(label, return_index=True)[1]
    table = np.zeros((first.size, scenarios.work_s.shape[1]))
    for row in np.sort(first):
        jobs = scenarios.jobs[row]
        table[label[row], :jobs] = _estimates_s(
            scenarios.gpus[row, :jobs], scenarios.work_s[row, :jobs], scenarios.submit_s[row, :jobs], kind, sigma, rng
        )
    return scenarios._replace(estimate_s=table[label])


def _estimates_s(
    gpus: NDArray[np.int32],
    work_s: NDArray[np.float64],
    submit_s: NDArray[np.float64],
    kind: str,
    sigma: float,
    rng: np.random.Generator | None,
) -> NDArray[np.float64]:
    if kind == "exact":
        return work_s.copy()
    if kind == "class-mean":
        return _size_class_means_s(gpus, work_s, submit_s)
    if kind == "history":
        return predict_works(gpus, work_s, submit_s).estimate_s
    if kind != "log-normal":
        raise ValueError(f"{kind!r} is not a kind of estimate; known: {', '.join(ESTIMATE_KINDS)}")
    if rng is None or not 0 <= sigma <= MOST_SIGMA:
        raise ValueError(f"log-normal estimates need an rng and a sigma from 0 to {MOST_SIGMA:g}; got {sigma}")
    error = np.exp(sigma * rng.standard_normal(work_s.size))
    # The product of a tiny work and a tiny error could be 0.
    estimates_s: NDArray[np.float64] = np.maximum(work_s * error, np.minimum(work_s, MIN_ESTIMATE_S))
    return estimates_s


def _size_class_means_s(
    gpus: NDArray[np.int32], work_s: NDArray[np.float64], submit_s: NDArray[np.float64]
) -> NDArray[np.float64]:
    logs, end_s = np.log(work_s), submit_s + work_s
    means = _means_of_ended(logs, end_s, submit_s, np.full(work_s.size, np.log(DEFAULT_ESTIMATE_S)))
    for size in np.unique(gpus):
        jobs = np.flatnonzero(gpus == size)
        means[jobs] = _means_of_ended(logs[jobs], end_s[jobs], submit_s[jobs], means[jobs])
    means_s: NDArray[np.float64] = np.exp(means)
    return means_s


def _means_of_ended(
    values: NDArray[np.float64], end_s: NDArray[np.float64], at_s: NDArray[np.float64], default: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the mean of the values whose end lies before each of some moments, the default where there is none."""
    order = np.argsort(end_s, kind="stable")
    sums = np.append(0.0, np.cumsum(values[order]))
    # Before, not at: where the work is lost in rounding, a job would else count for its own estimate.
    ended = np.searchsorted(end_s[order], at_s, side="left")
    return np.where(ended > 0, sums[ended] / np.maximum(ended, 1), default)
