"""What a decision is to be credited with: only what came after it, against other runs of the same jobs and faults.

A run's whole cost also holds what was already spent before a decision, and what faults and arrivals long after it did.
Both are noise to it. So a decision is told from the others' at the same moment, by the time that jobs spend in the
system from then on, later times weighing less.

Source: input-dependent baselines (Mao et al., 2019), as Decima's; docs/training.md.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...agents.networks.candidate_run import Record
from ...cluster.kernels.compiled import kernel
from ...cluster.model.outcome import Outcome

Times = NDArray[np.float64]


@kernel
def still_to_come_s(finish_s: Times, submit_s: Times, jobs: int, now_s: float, horizon_s: float) -> float:
    """Return the time that all jobs of a run spend in the system after a moment, weighing exp(-t / horizon) after t.

    Args:
        finish_s: End of each job, shape (jobs,).
        submit_s: Submission of each job, shape (jobs,).
        jobs: How many of them are jobs and no padding.
        now_s: The moment.
        horizon_s: inf for time that weighs alike.
    """
    total_s = 0.0
    for job in range(jobs):
        begin_s, end_s = max(submit_s[job] - now_s, 0.0), finish_s[job] - now_s
        if end_s <= begin_s:
            continue
        if horizon_s == math.inf:
            total_s += end_s - begin_s
        else:
            total_s += horizon_s * (math.exp(-begin_s / horizon_s) - math.exp(-end_s / horizon_s))
    return total_s


@kernel
def write_credits(
    row: NDArray[np.int32], now_s: Times, finish_s: Times, submit_s: Times, jobs: NDArray[np.int32], runs: int,
    horizon_s: Times, earned: Times,
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
        earned: Written, in seconds, shape (decisions,).
    """
    for at in range(row.size):
        mine = row[at]
        first = mine - mine % runs
        others_s, mine_s = 0.0, 0.0
        for run in range(first, first + runs):
            left_s = still_to_come_s(finish_s[run], submit_s[run], jobs[run], now_s[at], horizon_s[run])
            if run == mine:
                mine_s = left_s
            else:
                others_s += left_s
        earned[at] = others_s / (runs - 1) - mine_s


class Ran(NamedTuple):
    """When the jobs of some runs began and ended."""

    finish_s: Times  # (runs, jobs); where the run was cut off, that moment
    submit_s: Times  # (runs, jobs)
    jobs: NDArray[np.int32]  # (runs,)


def ran_of(outcome: Outcome, jobs: NDArray[np.int32], submit_s: Times) -> Ran:
    """Return the times of runs, whose jobs were submitted so."""
    return Ran(np.where(outcome.finish_s > 0.0, outcome.finish_s, outcome.makespan_s[:, None]), submit_s, jobs)


def joined_runs(parts: Sequence[Ran]) -> Ran:
    """Return several in one, those of fewer jobs with room for as many as the others."""
    most = max(part.submit_s.shape[1] for part in parts)

    def wide(values: Times) -> Times:
        return np.pad(values, ((0, 0), (0, most - values.shape[1])))

    return Ran(
        np.concatenate([wide(part.finish_s) for part in parts]),
        np.concatenate([wide(part.submit_s) for part in parts]),
        np.concatenate([part.jobs for part in parts]),
    )


def credits_of(record: Record, ran: Ran, runs: int, mean_s: Times, horizon: float) -> Times:
    """Return the credit of each decision, in mean JCTs of its group over the number of its jobs.

    Args:
        record: The decisions.
        ran: The runs that they were made in.
        runs: Of each group.
        mean_s: Mean JCT of each run's group, shape (runs of all groups,).
        horizon: How many mean JCTs after a decision count.
    """
    earned = np.zeros(record.row.size)
    write_credits(record.row, record.now_s, *ran, runs, horizon * mean_s, earned)
    return earned / (mean_s * ran.jobs)[record.row]


def over_spread(gains: Times) -> Times:
    """Return gains over their root mean square, 0 where none differs from 0."""
    spread = float(np.sqrt(np.square(gains).mean()))
    return gains / spread if spread > 0.0 else np.zeros_like(gains)
