"""Which jobs gain by the shipped policy for real traces, and which wait longer: short and long ones, against `patient`.

The windows, the order regimes and the rival are those of `make bench-real`, at a load of 0.85. In each window jobs are
ranked by their fault-free run time. The JCT of a group of them is that of all its jobs together.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from longshore.agents.learned.checkpoint import load_policy
from longshore.agents.protocol import Policy
from longshore.cluster.model.problem import Problem
from longshore.cluster.presets.problems import LOAD, Regime
from longshore.eval.comparison import run_all
from longshore.eval.setting import TESTED_PART
from longshore.training.problems import TRAINED_PART
from longshore.training.validation import tuned_patient

from .harness import Row, main, progress
from .real import CHECKPOINT, REGIMES, TUNING_SEED
from .real_windows import DRAWS, SEED, check_later, pooled, problem_of, traces, workload_of

GROUPS = {  # of the jobs of a window, from the shortest on
    "the shorter half": (0.0, 0.5),
    "the next 30 %": (0.5, 0.8),
    "the next 15 %": (0.8, 0.95),
    "the next 3 %": (0.95, 0.98),
    "the longest 2 %": (0.98, 1.0),
}


def jct_by_group(problem: Problem, policy: Policy) -> NDArray[np.float64]:
    """Return the JCT of all jobs of each group in each window, mean over draws, shape (groups, windows)."""
    scenarios = problem.scenarios
    jct_s = run_all(problem, [policy])[policy.name].finish_s - scenarios.submit_s
    jobs = scenarios.jobs[:, None]
    work_s = np.where(np.arange(jct_s.shape[1]) < jobs, scenarios.work_s, np.inf)
    share = (np.argsort(np.argsort(work_s, axis=1, kind="stable"), axis=1) + 0.5) / jobs
    sums = [np.where((share >= low) & (share < high), jct_s, 0.0).sum(axis=1) for low, high in GROUPS.values()]
    return np.array([it.reshape(-1, DRAWS).mean(axis=1) for it in sums])


def log_ratios(path: Path, regime: Regime, learned: Policy) -> NDArray[np.float64]:
    """Return the logarithm of the policy's JCT over that of the tuned rival, shape (groups, windows)."""
    patient = tuned_patient(problem_of(path, regime, LOAD, TRAINED_PART, TUNING_SEED))
    later = problem_of(path, regime, LOAD, TESTED_PART, SEED)
    check_later(workload_of(path), later.scenarios)
    found: NDArray[np.float64] = np.log(jct_by_group(later, learned) / jct_by_group(later, patient))
    return found


def measure() -> Iterator[Row]:
    """Run, and yield how each group fares."""
    if not traces():
        progress("the real traces are not there: nothing to measure")
        return
    learned = load_policy(CHECKPOINT)
    for name, (regime, _) in REGIMES.items():
        progress(name)
        parts = [log_ratios(path, regime, learned) for path in traces().values()]
        for number, group in enumerate(GROUPS):
            mean = pooled([part[number] for part in parts])
            yield Row(f"{name}: JCT of {group}", mean.percent, "%")
            yield Row(f"{name}: JCT of {group}, lower end", mean.low, "%")
            yield Row(f"{name}: JCT of {group}, upper end", mean.high, "%")


if __name__ == "__main__":
    main(measure)
