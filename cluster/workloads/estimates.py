"""Run-time estimates that differ from the truth, as users' and profilers' do."""

import dataclasses
from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from ..model.scenarios import Scenarios, same_jobs
from ..model.workload import Workload
from .history import FIRST_S, histories

EstimateKind = Literal["exact", "log-normal", "class-mean", "history"]
ESTIMATE_KINDS: tuple[EstimateKind, ...] = get_args(EstimateKind)
MOST_SIGMA = 5.0  # a factor of 150 is then no rare error; far larger ones would give 0 or infinity
SHORTEST_S = 1e-9  # or the work, if that is shorter: an estimate of 0 would stay 0 however often it is doubled


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
    - `history`: the same from jobs of the same user and name first, the last ones weighing most (history.py).

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
        return dataclasses.replace(workload, estimate_s=histories(*jobs).estimate_s)
    estimate_s = _estimates_s(workload.gpus, workload.work_s, workload.submit_s, kind, sigma, rng)
    return dataclasses.replace(workload, estimate_s=estimate_s)


class EstimateErrors(NamedTuple):
    """How far estimates of one kind are off: quantiles of |log(estimate / work)| over the jobs."""

    median: float
    p90: float


def estimate_errors(workload: Workload, sigma: float, rng: np.random.Generator) -> dict[str, EstimateErrors]:
    """Return how far each kind of estimate is off, and what the trace itself says, as `as recorded`.

    Args:
        workload: One job or more.
        sigma: Of log-normal estimates.
        rng: Draws their errors.
    """
    found = {"as recorded": workload} | {
        kind: with_estimates(workload, kind, sigma=sigma, rng=rng) for kind in ESTIMATE_KINDS
    }
    off = {kind: np.abs(np.log(it.estimate_s) - np.log(it.work_s)) for kind, it in found.items()}
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
    label = same_jobs(scenarios)
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
        return _class_means_s(gpus, work_s, submit_s)
    if kind == "history":
        return histories(gpus, work_s, submit_s).estimate_s
    if kind != "log-normal":
        raise ValueError(f"{kind!r} is not a kind of estimate; known: {', '.join(ESTIMATE_KINDS)}")
    if rng is None or not 0 <= sigma <= MOST_SIGMA:
        raise ValueError(f"log-normal estimates need an rng and a sigma from 0 to {MOST_SIGMA:g}; got {sigma}")
    error = np.exp(sigma * rng.standard_normal(work_s.size))
    # The product of a tiny work and a tiny error could be 0.
    estimates_s: NDArray[np.float64] = np.maximum(work_s * error, np.minimum(work_s, SHORTEST_S))
    return estimates_s


def _class_means_s(
    gpus: NDArray[np.int32], work_s: NDArray[np.float64], submit_s: NDArray[np.float64]
) -> NDArray[np.float64]:
    logs, end_s = np.log(work_s), submit_s + work_s
    means = _means_of_ended(logs, end_s, submit_s, np.full(work_s.size, np.log(FIRST_S)))
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
