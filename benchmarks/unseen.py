"""A shipped policy and the bound of ageing on real traces, none of which the policy was trained on.

Windows of 96 jobs of the last 30 % of each trace at a load of 0.85, on clusters of the preset `hetero64` with its
faults, run times known exactly. Figures are geometric means over windows of ratios of mean JCT (or p99 JCT), with 95 %
intervals; a window's draws of faults are averaged first.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from longshore.agents.heuristics import PATIENT
from longshore.agents.learned.checkpoint import load_policy
from longshore.agents.protocol import Policy
from longshore.cluster.model.outcome import metrics
from longshore.cluster.model.problem import Problem
from longshore.cluster.presets.problems import Regime, window_problem
from longshore.cluster.traces.read import read_trace
from longshore.eval.comparison import run_all
from longshore.eval.setting import TESTED_PART, WINDOWS

from .against import geometric_mean
from .harness import ROOT, Row, main, progress

TRACES = sorted((ROOT / "../shared/data/traces").glob("philly_*.csv")) + sorted(
    (ROOT / "../shared/data/traces").glob("itp_*.csv")
)
CHECKPOINT = ROOT / "checkpoints" / "hetero64-wait.zip"
DRAWS = 8  # of speeds, lemon and faults for each window
SEED = 2026
HOUR_S = 3600.0
WEEK = Regime("shortest", 7 * 24 * HOUR_S, waiting=True, oracle=True)
EASY = Regime("easy", waiting=True, oracle=True)
AGED = {hours: replace(EASY, ageing_s=hours * HOUR_S) for hours in (6, 72)}


class Times(NamedTuple):
    """Job completion times of each window, in seconds."""

    mean_s: NDArray[np.float64]  # (windows,)
    p99_s: NDArray[np.float64]  # (windows,)


def times_of(regime: Regime, policy: Policy) -> Times:
    """Return how a policy does on the windows of all traces."""
    traces = [read_trace(path) for path in TRACES]
    problems = [
        window_problem(trace, regime, windows=WINDOWS, runs=DRAWS, part=TESTED_PART, seed=SEED, disjoint=True)
        for trace in traces
    ]
    progress(f"{policy.name}, {regime.order}, aged after {regime.ageing_s / HOUR_S:g} h")
    times = [_times(problem, policy) for problem in problems]
    return Times(*(np.concatenate(parts) for parts in zip(*times, strict=True)))


def _times(problem: Problem, policy: Policy) -> Times:
    outcome, scenarios = run_all(problem, [policy])[policy.name], problem.scenarios
    found = metrics(
        outcome, scenarios.jobs, scenarios.gpus, scenarios.submit_s, problem.cluster.gpu_node.size, scenarios.work_s
    )
    return Times(*(values.reshape(-1, DRAWS).mean(axis=1) for values in (found.mean_jct_s, found.p99_jct_s)))


def against(name: str, mine_s: NDArray[np.float64], rival_s: NDArray[np.float64]) -> Iterator[Row]:
    """Yield the geometric mean of ratios over windows as a difference in per cent, and its interval."""
    found = geometric_mean(np.log(mine_s / rival_s))
    for part, percent in (("", found.percent), (", lower end", found.low), (", upper end", found.high)):
        yield Row(name + part, percent, "%")


def measure() -> Iterator[Row]:
    """Run, and yield each comparison."""
    if not TRACES:
        progress("the real traces are not there: nothing to measure")
        return
    policy = load_policy(CHECKPOINT)
    for name, regime in {"EASY": EASY, "shortest first, aged after a week": WEEK}.items():
        mine, rival = times_of(regime, policy), times_of(regime, PATIENT)
        yield Row(f"{name}: windows of {len(TRACES)} traces", mine.mean_s.size, "windows")
        yield from against(f"{name}: {policy.name} against patient", mine.mean_s, rival.mean_s)
        yield from against(f"{name}: {policy.name} against patient, p99", mine.p99_s, rival.p99_s)
    early, late = (times_of(regime, PATIENT) for regime in AGED.values())
    mean, low, high = against("EASY: patient aged after 6 h against 72 h", early.mean_s, late.mean_s)
    yield from (mean, replace(low, least=0.0), high)  # the default of the live scheduler rests on this
    yield from against("EASY: patient aged after 6 h against 72 h, p99", early.p99_s, late.p99_s)


if __name__ == "__main__":
    main(measure)
