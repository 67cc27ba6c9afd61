"""Windows of the real traces with gangs or queues, and how a policy differs from a rival on them.

Windows of 96 jobs of the last 30 % of each trace, at most 24, at a load of 0.85 and at the recorded one; on the
preset's cluster, of which half the nodes are of an older type, with its faults. Estimates of run times have log-normal
errors of sigma 0.5, and fault rates are estimated. Draws of speeds and faults are averaged first, then loads. Intervals
are by a bootstrap of windows within each trace; traces weigh alike.
"""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from longshore.agents.protocol import Policy
from longshore.cluster.model.outcome import metrics
from longshore.cluster.model.problem import Problem
from longshore.cluster.model.workload import Workload
from longshore.cluster.presets.problems import LOAD, Regime, window_problem
from longshore.cluster.presets.streams import Stream, stream
from longshore.cluster.traces.detect import read_trace
from longshore.cluster.workloads.estimates import with_scenario_estimates
from longshore.eval.run import run_all
from longshore.eval.setting import WINDOWS
from longshore.training.asked import SIGMA

from .against import Difference
from .harness import ROOT

FOLDER = ROOT / "../shared/data/traces"
GPUS = {  # of the cluster on which a trace's recorded load is one that people run
    "itp_cluster01": 64, "itp_cluster02": 104, "itp_cluster03": 192, "itp_cluster05": 16, "itp_cluster06": 128,
    "itp_cluster08": 80, "itp_cluster10": 8, "philly_vc_2869ce": 64, "philly_vc_7f04ca": 160, "philly_vc_ee9e8c": 400,
}  # fmt: skip
DRAWS = 8
SEED = 2026
RESAMPLES = 2000


class Figures(NamedTuple):
    """Of each window, the mean over its draws, in seconds; shape (windows,)."""

    mean_s: NDArray[np.float64]  # JCT
    p99_s: NDArray[np.float64]
    wait_s: NDArray[np.float64]  # the longest


def traces() -> dict[str, Path]:
    """Return the files that are there, by the names in GPUS."""
    found = {path.name.split(".")[0]: path for path in sorted(FOLDER.glob("*.csv"))}
    return {name: found[name] for name in GPUS if name in found}


@cache
def workload_of(path: Path) -> Workload:
    """Return the jobs of a trace."""
    return read_trace(path)


def loads_of(name: str, path: Path) -> tuple[float, float]:
    """Return the loads at which windows of a trace are run: the usual one, and that of its own cluster."""
    jobs = workload_of(path)
    used = float(jobs.gpus @ jobs.work_s) / float(jobs.submit_s[-1] - jobs.submit_s[0])
    return LOAD, used / GPUS[name]


def problem_of(path: Path, regime: Regime, load: float, part: tuple[float, float], seed: int) -> Problem:
    """Return windows of a part of a trace, DRAWS draws of each."""
    problem = window_problem(
        workload_of(path), regime, windows=WINDOWS, runs=DRAWS, part=part, seed=seed, load=load, disjoint=True
    )
    rng = stream(seed, Stream.ESTIMATES)
    scenarios = with_scenario_estimates(problem.scenarios, "log-normal", sigma=SIGMA, rng=rng)
    return problem._replace(scenarios=scenarios)


def figures_of(problem: Problem, policy: Policy) -> Figures:
    """Return how a policy does on the windows of a problem."""
    outcome, scenarios = run_all(problem, [policy])[policy.name], problem.scenarios
    found = metrics(outcome, scenarios.jobs, scenarios.gpus, scenarios.submit_s, problem.cluster.gpu_node.size)
    times_s = (found.mean_jct_s, found.p99_jct_s, found.longest_wait_s)
    return Figures(*(values.reshape(-1, DRAWS).mean(axis=1) for values in times_s))


Runs = Callable[[Path, float], Figures]


def differences(mine: Runs, rival: Runs, paths: dict[str, Path] | None = None) -> dict[str, Figures]:
    """Return the logarithms of ratios of figures, mean over loads, of each window of each trace, or of some."""
    found = {}
    for name, path in (paths or traces()).items():
        loads = loads_of(name, path)
        pairs = [(mine(path, load), rival(path, load)) for load in loads]
        # A minute more: a wait of nothing has no ratio.
        logs = [[np.log((one + 60.0) / (other + 60.0)) for one, other in zip(*pair, strict=True)] for pair in pairs]
        found[name] = Figures(*(np.mean(parts, axis=0) for parts in zip(*logs, strict=True)))
    return found


def pooled(logs: list[NDArray[np.float64]]) -> Difference:
    """Return the geometric mean over traces, less 1, of what each window's logarithms say, in per cent."""
    rng = np.random.default_rng(SEED)
    means = np.zeros(RESAMPLES)
    for values in logs:
        means += values[rng.integers(0, values.size, (RESAMPLES, values.size))].mean(axis=1) / len(logs)
    low, high = np.percentile(means, [2.5, 97.5])
    value = np.mean([values.mean() for values in logs])
    return Difference(*(float(100.0 * np.expm1(end)) for end in (value, low, high)))
