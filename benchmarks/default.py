"""The default of `longshore serve`, against what people run today: FIFO and EASY with `pack`.

The windows are those of benchmarks/real_windows.py.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

from longshore.agents.heuristics import HEURISTICS
from longshore.agents.protocol import Policy
from longshore.cluster.presets.problems import Regime
from longshore.eval.setting import TESTED_PART
from longshore.scheduler.settings import SchedulerSettings

from .harness import Row, main, progress
from .real_windows import SEED, Figures, differences, everywhere, figures_of, pooled, problem_of, traces

DEFAULT = SchedulerSettings()
RIVALS = {"FIFO with pack": (Regime(), 35.0), "EASY with pack": (Regime("easy"), 20.0)}  # and by how much to be lower


def runs_of(regime: Regime, policy: Policy, *, exactly: bool = False) -> Callable[[Path, float], Figures]:
    """Return what runs a policy under a regime on later windows of a trace; whether run times are known exactly."""

    def run(path: Path, load: float) -> Figures:
        problem = problem_of(path, regime, load, TESTED_PART, SEED)
        scenarios = problem.scenarios
        if exactly:
            problem = problem._replace(scenarios=scenarios._replace(estimate_s=scenarios.work_s))
        return figures_of(problem, policy)

    return run


def measure() -> Iterator[Row]:
    """Run, and yield each comparison."""
    if not traces():
        progress("the real traces are not there: nothing to measure")
        return
    regime = Regime(DEFAULT.order, DEFAULT.ageing_s, DEFAULT.waiting, turns=DEFAULT.turns)
    policy = HEURISTICS[DEFAULT.policy.name or DEFAULT.policy.fallback]
    progress(f"default: {regime.order}, aged after {regime.ageing_s / 3600.0:g} h, {policy.name}")
    mine, at_best = everywhere(runs_of(regime, policy)), everywhere(runs_of(regime, policy, exactly=True))
    for name, (theirs, least) in RIVALS.items():
        progress(name)
        rival = everywhere(runs_of(theirs, HEURISTICS["pack"]))
        means = differences(mine, rival, "mean_s")
        mean, p99 = pooled(list(means.values())), pooled(list(differences(mine, rival, "p99_s").values()))
        yield Row(f"against {name}: mean JCT", mean.percent, "%", most=-least)
        yield Row(f"against {name}: mean JCT, lower end", mean.low, "%")
        yield Row(f"against {name}: mean JCT, upper end", mean.high, "%")
        exact = pooled(list(differences(at_best, rival, "mean_s").values()))
        yield Row(f"against {name}: mean JCT, if it knew run times exactly", exact.percent, "%")
        yield Row(f"against {name}: p99 JCT", p99.percent, "%", most=0.0)
        yield Row(f"against {name}: traces where mean JCT is higher",
                  int(sum(it.mean() > 0.0 for it in means.values())), "traces")  # fmt: skip


if __name__ == "__main__":
    main(measure)
