"""The shipped policy for real traces on clusters of other shapes than it was trained on, one pass, against `patient`.

Sizes, node sizes, speeds and fault rates, generated jobs at once and over time, and real jobs, under strict FIFO and
under the default order. `patient` has its factor tuned on other draws of the same kind. Estimates of run times have
log-normal errors of sigma 0.5, and fault rates are estimated. A figure is the geometric mean over workloads, each the
mean over its draws; of the makespan where all jobs are there from the start, else of the mean JCT.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from longshore.agents.learned.checkpoint import load_policy
from longshore.cluster.model.outcome import usual_weighting
from longshore.cluster.model.problem import Problem, same_jobs_labels
from longshore.cluster.presets.drawn import PresetSite, hetero64
from longshore.cluster.presets.problems import LOAD, Regime, Stream, stream, window_problem
from longshore.cluster.simulator.simulation import simulation_of
from longshore.cluster.workloads.estimates import with_scenario_estimates
from longshore.eval.setting import TESTED_PART
from longshore.scheduler.settings import SchedulerSettings
from longshore.training.problems import SIGMA, TRAINED_PART
from longshore.training.validation import run_for_costs, tuned_patient

from .against import geometric_mean
from .harness import ROOT, Row, main, progress
from .real_windows import traces, workload_of

CHECKPOINT = ROOT / "checkpoints" / "traces.zip"
SEED, TUNING_SEED = 2026, 2027
WORKLOADS, WINDOWS, DRAWS = 24, 12, 4
TRACES = ("itp_cluster03", "philly_vc_2869ce")
DEFAULT = SchedulerSettings()
REGIMES = (Regime("fifo", waiting=True), Regime(DEFAULT.order, DEFAULT.ageing_s, waiting=True))


class Kind(NamedTuple):
    """A kind of cluster."""

    site: PresetSite
    jobs: int  # generated at once; half as many arrive over time
    workloads: int = WORKLOADS


KINDS = {
    "16 GPUs": Kind(PresetSite(2), 24),
    "256 GPUs": Kind(PresetSite(32), 256),  # of a size and, below, of three speeds or without faults, as in training
    "1,024 GPUs": Kind(PresetSite(128), 1024, 4),
    "4-GPU nodes": Kind(PresetSite(20, 4), 64),
    "three node types": Kind(PresetSite(9, speeds=(4.0, 2.0, 1.0)), 64),
    "no faults": Kind(PresetSite(faults=0.0), 64),
    "20 x the faults": Kind(PresetSite(faults=20.0), 64),
}
MOST, MEAN = 1.0, -3.0  # per cent: of each, and of all in the mean


def drawn(kind: Kind, regime: Regime, seed: int, load: float | None) -> Problem:
    """Return generated jobs, all at once or over time at a load."""
    jobs = kind.jobs if load is None else max(kind.jobs // 2, 24)
    problem = hetero64(kind.workloads, seed, jobs=jobs, load=load, site=kind.site)
    return guessed(under(problem, regime), seed)


def under(problem: Problem, regime: Regime) -> Problem:
    """Return a problem under an order regime, of which policies know what a scheduler does."""
    scenarios = regime.with_known_hazards(problem.cluster, problem.scenarios)
    return problem._replace(rules=regime.applied_to(problem.rules), scenarios=scenarios)


def real(kind: Kind, regime: Regime, name: str, part: tuple[float, float], seed: int) -> Problem:
    """Return windows of a trace."""
    windows, draws = (WINDOWS, DRAWS) if kind.workloads == WORKLOADS else (4, 2)
    problem = window_problem(
        workload_of(traces()[name]), regime, windows=windows, runs=draws, part=part, seed=seed, disjoint=True,
        site=kind.site,
    )  # fmt: skip
    return guessed(problem, seed)


def guessed(problem: Problem, seed: int) -> Problem:
    """Return a problem whose run times are known as people guess them."""
    rng = stream(seed, Stream.ESTIMATES)
    return problem._replace(scenarios=with_scenario_estimates(problem.scenarios, "log-normal", sigma=SIGMA, rng=rng))


def cases() -> Iterator[tuple[str, Problem, Problem]]:
    """Yield the name of each case, what it is measured on, and what `patient` is tuned on."""
    for name, kind in KINDS.items():
        for regime in REGIMES:
            for how, load in (("at once", None), ("over time", LOAD)):
                yield (f"{name}, {regime.order}, generated {how}", drawn(kind, regime, SEED, load),
                       drawn(kind, regime, TUNING_SEED, load))  # fmt: skip
            for trace in TRACES:
                if trace in traces():
                    yield (f"{name}, {regime.order}, {trace}", real(kind, regime, trace, TESTED_PART, SEED),
                           real(kind, regime, trace, TRAINED_PART, TUNING_SEED))  # fmt: skip


def measure() -> Iterator[Row]:
    """Run, and yield each comparison."""
    policy = load_policy(CHECKPOINT)
    found = []
    for name, problem, tuning in cases():
        progress(name)
        weighting = usual_weighting(problem.scenarios.submit_s)
        label = same_jobs_labels(problem.scenarios)
        logs = []
        for one in (policy, tuned_patient(tuning)):
            values = run_for_costs(simulation_of(problem, rows=problem.scenarios.jobs.size), one, problem, weighting)
            logs.append(np.log(np.bincount(label, weights=values) / np.bincount(label)))
        difference = geometric_mean(logs[0] - logs[1])
        found.append(difference.percent)
        yield Row(name, difference.percent, "%", most=MOST)
        yield Row(f"{name}: upper end of the 95 % interval", difference.high, "%")
    yield Row("mean of all", float(np.mean(found)), "%", most=MEAN)


if __name__ == "__main__":
    main(measure)
