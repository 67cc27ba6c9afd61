"""The shipped policy for real traces against the best heuristic, where run times are known by class means only.

The windows and the order regimes are those of `make bench-real`. A job's estimate is the mean run time of the window's
jobs that ask for as many GPUs. The best heuristic of a trace at a load is the one that did best on the windows of its
past, under the same order and with the same knowledge: `patient` with its factor tuned there, `eft`, or `pack`.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from longshore.agents import heuristics
from longshore.agents.learned.checkpoint import load_policy
from longshore.agents.protocol import Policy
from longshore.cluster.presets.problems import Regime
from longshore.cluster.workloads.estimates import EstimateKind
from longshore.eval.setting import TESTED_PART
from longshore.training.problems import TRAINED_PART
from longshore.training.validation import tuned_patient

from .harness import Row, main, progress
from .real import CHECKPOINT, REGIMES, TUNING_SEED
from .real_windows import (
    SEED,
    Everywhere,
    Figures,
    check_later,
    differences,
    everywhere,
    figures_of,
    pooled,
    problem_of,
    traces,
    workload_of,
)

ESTIMATES: EstimateKind = "class-mean"
MOST = 1.0  # per cent, of the upper end of the interval


def best_of_past(path: Path, regime: Regime, offered: float) -> Policy:
    """Return the heuristic that did best on a trace's past."""
    past = problem_of(path, regime, offered, TRAINED_PART, TUNING_SEED, ESTIMATES)
    rivals: list[Policy] = [tuned_patient(past), heuristics.EFT, heuristics.PACK]
    return min(rivals, key=lambda it: float(np.log(figures_of(past, it).mean_s).mean()))


def both(regime: Regime, learned: Policy) -> Mapping[str, Everywhere]:
    """Run the policy and the best heuristic everywhere under an order regime."""

    def run(path: Path, offered: float, policy: Policy) -> Figures:
        later = problem_of(path, regime, offered, TESTED_PART, SEED, ESTIMATES)
        check_later(workload_of(path), later.scenarios)
        return figures_of(later, policy)

    return {
        "mine": everywhere(lambda path, offered: run(path, offered, learned)),
        "rival": everywhere(lambda path, offered: run(path, offered, best_of_past(path, regime, offered))),
    }


def measure() -> Iterator[Row]:
    """Run, and yield each comparison."""
    if not traces():
        progress("the real traces are not there: nothing to measure")
        return
    learned = load_policy(CHECKPOINT)
    for name, (regime, _) in REGIMES.items():
        progress(name)
        found = both(regime, learned)
        logs = differences(found["mine"], found["rival"], "mean_s")
        mean = pooled(list(logs.values()))
        worst = max(logs, key=lambda trace: float(logs[trace].mean()))
        yield Row(f"{name}: mean JCT", mean.percent, "%")
        yield Row(f"{name}: mean JCT, lower end", mean.low, "%")
        yield Row(f"{name}: mean JCT, upper end", mean.high, "%", most=MOST)
        yield Row(f"{name}: mean JCT, worst trace ({worst})", pooled([logs[worst]]).percent, "%")


if __name__ == "__main__":
    main(measure)
