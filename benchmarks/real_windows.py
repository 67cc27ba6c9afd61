"""Windows of the real traces with gangs or queues, and how a policy differs from a rival on them.

Windows of 96 jobs of the last 30 % of each trace, at most 24, at a load of 0.85 and at the recorded one; on the
preset's cluster, of which half the nodes are of an older type, with its faults. Estimates of run times have log-normal
errors of sigma 0.5, and fault rates are estimated. Draws of speeds and faults are averaged first, then loads. Intervals
are by a bootstrap of windows within each trace; traces weigh alike.
"""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Literal, get_args

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from longshore.agents.protocol import Policy
from longshore.cluster.model.outcome import metrics
from longshore.cluster.model.problem import Problem, Scenarios
from longshore.cluster.model.workload import Workload
from longshore.cluster.presets.problems import LOAD, Regime, Stream, stream, window_problem
from longshore.cluster.traces.read import read_trace
from longshore.cluster.workloads.estimates import EstimateKind, with_scenario_estimates
from longshore.eval.comparison import run_all
from longshore.eval.setting import WINDOWS
from longshore.training.problems import SIGMA, TRAINED_PART, VALIDATED_PART

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


Time = Literal["mean_s", "p99_s", "wait_s"]
TIMES: tuple[Time, ...] = get_args(Time)  # fields of Figures that policies are compared by


class Figures(BaseModel):
    """How a policy did: of each window the mean over its draws; times in seconds."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    mean_s: list[float]  # JCT
    p99_s: list[float]  # JCT
    wait_s: list[float]  # the longest of a job
    queue_s: list[float]  # mean wait of a job
    stops: list[float]  # of jobs by faults


Everywhere = dict[tuple[str, str], Figures]  # by the name of the trace and that of the load


def traces() -> dict[str, Path]:
    """Return the files that are there, by the names in GPUS."""
    found = {path.name.split(".")[0]: path for path in sorted(FOLDER.glob("*.csv"))}
    return {name: found[name] for name in GPUS if name in found}


@cache
def workload_of(path: Path) -> Workload:
    """Return the jobs of a trace."""
    return read_trace(path)


def loads_of(name: str, path: Path) -> dict[str, float]:
    """Return the loads at which windows of a trace are run: the usual one, and that of its own cluster."""
    jobs = workload_of(path)
    used = float(jobs.gpus @ jobs.work_s) / float(jobs.submit_s[-1] - jobs.submit_s[0])
    return {f"{LOAD:g}": LOAD, "as recorded": used / GPUS[name]}


def everywhere(run: Callable[[Path, float], Figures]) -> Everywhere:
    """Return what a run gives on each trace at each load."""
    return {
        (name, load): run(path, offered)
        for name, path in traces().items()
        for load, offered in loads_of(name, path).items()
    }


def problem_of(
    path: Path, regime: Regime, load: float, part: tuple[float, float], seed: int,
    estimates: EstimateKind = "log-normal", draws: int = DRAWS,
) -> Problem:  # fmt: skip
    """Return windows of a part of a trace, a number of draws of each."""
    problem = window_problem(
        workload_of(path), regime, windows=WINDOWS, runs=draws, part=part, seed=seed, load=load, disjoint=True
    )
    rng = stream(seed, Stream.ESTIMATES)
    scenarios = with_scenario_estimates(problem.scenarios, estimates, sigma=SIGMA, rng=rng)
    return problem._replace(scenarios=scenarios)


def check_later(workload: Workload, scenarios: Scenarios) -> None:
    """Refuse windows of a trace that hold a job which policies were trained or validated on.

    Each window is found in the trace by the work of its jobs, which no load changes.

    Args:
        workload: The whole trace.
        scenarios: Windows of it, as they are run.

    Raises:
        ValueError: Naming the first such job, or a window that is no piece of the trace.
    """
    seen = round(max(TRAINED_PART[1], VALIDATED_PART[1]) * workload.jobs)
    for jobs, work_s in zip(scenarios.jobs, scenarios.work_s, strict=True):
        first = _first_job(workload, work_s[:jobs])
        if first < seen:
            raise ValueError(f"job {workload.ids[first]} is one of the first {seen}, which are trained or validated on")


def _first_job(workload: Workload, work_s: NDArray[np.float64]) -> int:
    """Return which job a window begins with, the first if there are several such."""
    pieces = sliding_window_view(workload.work_s, work_s.size)
    begins = np.flatnonzero(pieces[:, 0] == work_s[0])
    found = begins[(pieces[begins] == work_s).all(axis=1)]
    if not found.size:
        raise ValueError(f"no jobs of the trace have the work of the window that begins with {work_s[0]:g} s")
    return int(found[0])


def figures_of(problem: Problem, policy: Policy, draws: int = DRAWS) -> Figures:
    """Return how a policy does on the windows of a problem with a number of draws of each, to a tenth of a second."""
    outcome, scenarios = run_all(problem, [policy])[policy.name], problem.scenarios
    found = metrics(
        outcome, scenarios.jobs, scenarios.gpus, scenarios.submit_s, problem.cluster.gpu_node.size, scenarios.work_s
    )

    def over_draws(values: NDArray[np.float64]) -> list[float]:
        means: list[float] = values.reshape(-1, draws).mean(axis=1).round(1).tolist()
        return means

    return Figures(
        mean_s=over_draws(found.mean_jct_s),
        p99_s=over_draws(found.p99_jct_s),
        wait_s=over_draws(found.longest_wait_s),
        queue_s=over_draws(outcome.wait_s.sum(axis=1) / scenarios.jobs),
        stops=over_draws(found.restarts),
    )


def log_ratio(mine: Figures, rival: Figures, time: Time) -> NDArray[np.float64]:
    """Return the logarithm of the ratio of a time in each window, shape (windows,)."""
    # A minute more: a wait of nothing has no ratio.
    ours, theirs = (np.array(getattr(it, time), dtype=np.float64) + 60.0 for it in (mine, rival))
    logs: NDArray[np.float64] = np.log(ours / theirs)
    return logs


def differences(mine: Everywhere, rival: Everywhere, time: Time) -> dict[str, NDArray[np.float64]]:
    """Return the logarithms of ratios of a time, mean over loads, of each window of each trace."""
    logs: dict[str, list[NDArray[np.float64]]] = {}
    for (name, load), figures in mine.items():
        logs.setdefault(name, []).append(log_ratio(figures, rival[name, load], time))
    return {name: np.mean(parts, axis=0) for name, parts in logs.items()}


def pooled(logs: list[NDArray[np.float64]]) -> Difference:
    """Return the geometric mean over traces, less 1, by each window's logarithms, in per cent."""
    rng = np.random.default_rng(SEED)
    means = np.zeros(RESAMPLES)
    for values in logs:
        means += values[rng.integers(0, values.size, (RESAMPLES, values.size))].mean(axis=1) / len(logs)
    low, high = np.percentile(means, [2.5, 97.5])
    value = np.mean([values.mean() for values in logs])
    return Difference(*(float(100.0 * np.expm1(end)) for end in (value, low, high)))
