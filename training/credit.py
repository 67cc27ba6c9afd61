"""The credit of a decision: only what came after it, against other runs of the same jobs and faults.

The whole cost of a run also holds what was spent before a decision, and what faults and arrivals long after it did.
Both are noise to it. So the run of a decision is compared with the other runs of its group at the same moment, by the
time that jobs spend in the system from then on. Later times weigh less.

Source: input-dependent baselines (Mao et al., 2019), as Decima's; docs/training.md.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..agents.networks.sampled_runs import SampledRuns
from ..cluster.kernels.compiled import kernel
from ..cluster.model.outcome import Outcome

Times = NDArray[np.float64]
BASELINE_DECAY = 0.9  # weight of earlier updates, at each update
RIDGE = 1.0  # of the square of a feature: an update has few runs, and a free fit would learn their noise


@kernel
def remaining_job_time_s(
    finish_s: Times, submit_s: Times, jobs: int, now_s: float, horizon_s: float, weight: Times
) -> float:
    """Return the time that all jobs of a run spend in the system after a moment, weighing exp(-t / horizon) after t.

    Args:
        finish_s: End of each job, shape (jobs,).
        submit_s: Submission of each job, shape (jobs,).
        jobs: Number of jobs; the rest is padding.
        now_s: The moment.
        horizon_s: inf for time that weighs alike.
        weight: Of the time of each job, shape (jobs,).
    """
    total_s = 0.0
    for job in range(jobs):
        begin_s, end_s = max(submit_s[job] - now_s, 0.0), finish_s[job] - now_s
        if end_s <= begin_s:
            continue
        if horizon_s == math.inf:
            total_s += weight[job] * (end_s - begin_s)
        else:
            decay = -math.expm1((begin_s - end_s) / horizon_s)  # a difference of exponentials would cancel
            total_s += weight[job] * (horizon_s * math.exp(-begin_s / horizon_s) * decay)
    return total_s


@kernel
def write_credits(
    row: NDArray[np.int32], now_s: Times, finish_s: Times, submit_s: Times, jobs: NDArray[np.int32], runs: int,
    horizon_s: Times, weight: Times, earned: Times,
) -> None:  # fmt: skip
    """Write by how much each decision's run spends less job-time after it than the mean of its group's others.

    Args:
        row: Run of each decision, shape (decisions,); runs of a group stand side by side.
        now_s: When each was made, shape (decisions,).
        finish_s: End of each job, shape (runs, jobs).
        submit_s: Submission of each job, shape (runs, jobs).
        jobs: Jobs of each run, shape (runs,).
        runs: Of each group.
        horizon_s: Of each run, shape (runs,).
        weight: Of the time of each job, shape (runs, jobs).
        earned: Written, in seconds, shape (decisions,).
    """
    for at in range(row.size):
        mine = row[at]
        first = mine - mine % runs
        others_s, mine_s = 0.0, 0.0
        for run in range(first, first + runs):
            left_s = remaining_job_time_s(
                finish_s[run], submit_s[run], jobs[run], now_s[at], horizon_s[run], weight[run]
            )
            if run == mine:
                mine_s = left_s
            else:
                others_s += left_s
        earned[at] = others_s / (runs - 1) - mine_s


class JobTimes(NamedTuple):
    """When the jobs of some runs were submitted and ended."""

    finish_s: Times  # (runs, jobs); where the run was cut off, that moment
    submit_s: Times  # (runs, jobs)
    jobs: NDArray[np.int32]  # (runs,)
    work_s: Times  # (runs, jobs)


def job_times(outcome: Outcome, jobs: NDArray[np.int32], submit_s: Times, work_s: Times) -> JobTimes:
    """Return the times of the jobs of runs, given their submission and work, shape (runs, jobs)."""
    finish_s = np.where(outcome.finish_s > 0.0, outcome.finish_s, outcome.makespan_s[:, None])
    return JobTimes(finish_s, submit_s, jobs, work_s)


def join_job_times(parts: Sequence[JobTimes]) -> JobTimes:
    """Return several in one, all padded to the largest number of jobs."""
    jobs = max(part.submit_s.shape[1] for part in parts)

    def wide(values: Times) -> Times:
        return np.pad(values, ((0, 0), (0, jobs - values.shape[1])))

    return JobTimes(
        np.concatenate([wide(part.finish_s) for part in parts]),
        np.concatenate([wide(part.submit_s) for part in parts]),
        np.concatenate([part.jobs for part in parts]),
        np.concatenate([wide(part.work_s) for part in parts]),
    )


def credits_of(
    record: SampledRuns, times: JobTimes, runs: int, mean_s: Times, horizon: float, weight: Times | None = None
) -> Times:
    """Return the credit of each decision, in mean JCTs of its group over the number of its jobs.

    Args:
        record: The decisions.
        times: Of the runs that they were made in.
        runs: Of each group.
        mean_s: Mean JCT of each run's group, shape (runs of all groups,).
        horizon: How many mean JCTs after a decision count.
        weight: Of the time of each job, shape (runs of all groups, jobs); 1 for all by default.
    """
    earned = np.zeros(record.row.size)
    weight = np.ones_like(times.submit_s) if weight is None else weight
    write_credits(
        record.row, record.now_s, times.finish_s, times.submit_s, times.jobs, runs, horizon * mean_s, weight, earned
    )
    return earned / (mean_s * times.jobs)[record.row]


def divided_by_spread(gains: Times) -> Times:
    """Return gains over their root mean square, 0 where none differs from 0."""
    spread = float(np.sqrt(np.square(gains).mean()))
    return gains / spread if spread > 0.0 else np.zeros_like(gains)


@kernel
def write_feature_gaps(
    row: NDArray[np.int32], now_s: Times, features: NDArray[np.float32], runs: int, first: NDArray[np.int64], gap: Times
) -> None:
    """Write how much the features of each decision differ from the latest ones of the other runs of its group.

    Args:
        row: Run of each decision, shape (decisions,); a run's stand together in the order of time.
        now_s: When each was made, shape (decisions,).
        features: Of the observations, shape (decisions, features).
        runs: Of each group.
        first: First decision of each run, and the number of all decisions at the end, shape (runs + 1,).
        gap: Written, shape (decisions, features).
    """
    for at in range(row.size):
        mine, count = row[at], 0
        begin = mine - mine % runs
        for run in range(begin, begin + runs):
            low, after = first[run], first[run + 1]
            if run == mine or low == after:
                continue
            while after - low > 1:  # the last that was made by then, or the first of all
                middle = (low + after) // 2
                if now_s[middle] <= now_s[at]:
                    low = middle
                else:
                    after = middle
            for column in range(gap.shape[1]):
                gap[at, column] -= features[low, column]
            count += 1
        for column in range(gap.shape[1]):
            gap[at, column] = features[at, column] + gap[at, column] / max(count, 1)


class CreditBaseline:
    """The credit to expect in the state before a decision, by linear functions fitted to earlier updates.

    A run that is behind the others at a moment also ends behind them, whatever is decided then. Subtracting that
    leaves less noise. The functions do not know what is decided, and are fitted to earlier updates alone, so that the
    mean of the gradient stays as it is.

    Args:
        problems: Each has a function of its own.
        features: Number of the first features of the observation that the functions take.

    Source: input-driven and state-dependent baselines (Mao et al., 2019); regression as a control variate.
    """

    def __init__(self, problems: int, features: int) -> None:
        self.square = np.zeros((problems, features, features))
        self.product = np.zeros((problems, features))

    def subtract_and_fit(self, earned: Times, gap: Times, problem: NDArray[np.intp]) -> Times:
        """Return credits less the expected ones; then fit the functions to these credits, for the next update.

        Args:
            earned: Shape (decisions,).
            gap: As `write_feature_gaps` writes it, shape (decisions, features).
            problem: Of which problem each decision is, shape (decisions,).
        """
        left = earned.copy()
        for number in range(self.square.shape[0]):
            own = problem == number
            features, credit = gap[own], earned[own]
            left[own] -= features @ self._fitted_weights(number)
            self.square[number] = BASELINE_DECAY * self.square[number] + features.T @ features
            self.product[number] = BASELINE_DECAY * self.product[number] + features.T @ credit
        return left

    def _fitted_weights(self, problem: int) -> Times:
        square = self.square[problem]
        own = np.diag(square)
        # A feature that never differs has no square of its own; any number makes its weight 0.
        held_back = square + np.diag(np.where(own > 0.0, RIDGE * own, 1.0))
        weights: Times = np.linalg.lstsq(held_back, self.product[problem], rcond=None)[0]
        return weights


def feature_gaps_of(record: SampledRuns, runs: int, features: int) -> Times:
    """Return how much the first features of each decision differ from the latest ones of the group's other runs.

    Args:
        record: The decisions.
        runs: Of each group.
        features: Number of the observation's first features.

    Returns:
        Shape (decisions, features).
    """
    first = np.ascontiguousarray(record.observations[: record.row.size, :features])
    last = int(record.row.max(initial=0)) // runs * runs + runs
    gap = np.zeros(first.shape)
    write_feature_gaps(record.row, record.now_s, first, runs, np.searchsorted(record.row, np.arange(last + 1)), gap)
    return gap
