"""Policies side by side on the same scenarios: runs, figures, intervals, and each policy against the best heuristic."""

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..agents.protocol import Policy
from ..cluster.files.errors import EndlessError, InputError
from ..cluster.model.intervals import IntervalEstimates, holm_adjusted, ratio_estimates, ratio_p_values, unit_sums
from ..cluster.model.outcome import Event, Outcome, RunMetrics, Weighting, metrics, usual_weighting
from ..cluster.model.problem import Problem, Scenarios
from ..cluster.simulator.event_log import events_of
from ..cluster.simulator.simulation import outcome_of, simulation_of
from ..cluster.state.state import allocate_log


class Metric(NamedTuple):
    """One figure of each scenario."""

    name: str  # its key in JSON; ends in its unit
    title: str  # of its column and panel, in few words
    quantity: Literal["time", "GPU-time", "share", "count"]  # in s, GPU-s, none, none
    better: Literal["lower", "higher"]
    meaning: str  # a sentence
    values: Callable[[RunMetrics], NDArray[np.float64]]  # shape (scenarios,)


METRICS = (  # in the order of their columns
    Metric(
        "makespan_s", "makespan", "time", "lower", "Completion of the last job of a workload.",
        lambda figures: figures.makespan_s,
    ),
    Metric(
        "mean_jct_s", "mean JCT", "time", "lower", "Finish minus submission, averaged over a scenario's jobs.",
        lambda figures: figures.mean_jct_s,
    ),
    Metric(
        "p99_jct_s", "p99 JCT", "time", "lower", "Job completion time that 99 % of a scenario's jobs stay below.",
        lambda figures: figures.p99_jct_s,
    ),
    Metric(
        "useful_utilisation", "useful util.", "share", "higher",
        "Share of all GPU-time until the makespan that did work which was kept; the rest was idle, broken or lost.",
        lambda figures: figures.useful_utilisation,
    ),
    Metric(
        "lost_gpu_s", "lost to faults", "GPU-time", "lower",
        "GPU-time of work that faults threw away: since the last checkpoint, restart included.",
        lambda figures: figures.lost_gpu_s,
    ),
    Metric(
        "restarts", "restarts", "count", "lower", "How often a fault stopped a job, which then started again.",
        lambda figures: figures.restarts,
    ),
)  # fmt: skip

SLOWDOWN = "JCT over work, averaged over a scenario's jobs; work below 10 min counts as 10 min."


def metrics_with_objective(objective: Weighting | str | None) -> tuple[Metric, ...]:
    """Return the metrics, first of them an objective that is a weighting and none of them."""
    if not isinstance(objective, Weighting) or objective.field in {metric.name for metric in METRICS}:
        return METRICS
    is_alone = len(objective.weights) == 1
    return (
        Metric(
            name=objective.field,
            title=objective.title,
            quantity="time" if objective.is_time else "count",
            better="lower",
            meaning=SLOWDOWN if is_alone else f"Weighted geometric mean of {objective.text}, times in seconds.",
            values=objective.cost,
        ),
        *METRICS,
    )


def real_jobs(scenarios: Scenarios) -> NDArray[np.bool_]:
    """Return which columns of each scenario hold a job, shape (scenarios, jobs)."""
    real: NDArray[np.bool_] = np.arange(scenarios.gpus.shape[1]) < scenarios.jobs[:, None]
    return real


def scenario_metrics(outcome: Outcome, scenarios: Scenarios, cluster_gpus: int) -> RunMetrics:
    """Return the figures of each scenario under one policy."""
    return metrics(outcome, scenarios.jobs, scenarios.gpus, scenarios.submit_s, cluster_gpus, scenarios.work_s)


CONFIDENCE = 0.95  # that intervals aim to cover
EQUAL_SHARE = 1e-9  # runs whose figures differ by less than this share are equal: rounding, not policy


class JobSizes(NamedTuple):
    """Mean JCT by the number of GPUs that a job needs."""

    title: tuple[str, ...]  # (classes,) such as "5 to 8 GPUs"
    jobs: NDArray[np.int64]  # (classes,) jobs of all scenarios
    mean_jct_s: NDArray[np.float64]  # (policies, classes)
    relative_percent: IntervalEstimates  # (policies, classes) against the best heuristic
    p: NDArray[np.float64]  # (policies, classes) that there is no difference, adjusted for the whole table


@dataclass(frozen=True, slots=True)
class Comparison:
    """Policies, best mean of the objective first, with their figures."""

    policies: tuple[str, ...]
    heuristics: frozenset[str]
    best_heuristic: str
    metrics: tuple[Metric, ...]  # in the order of their columns
    objective: int  # index of the metric that ranks the policies
    unit: NDArray[np.intp]  # (scenarios,) independent unit: the scenario, or its group
    values: NDArray[np.float64]  # (policies, metrics, scenarios)
    mean: IntervalEstimates  # (policies, metrics)
    difference: IntervalEstimates  # (policies, metrics) policy minus best heuristic
    relative_percent: IntervalEstimates  # (policies, metrics) of the best heuristic's mean
    p: NDArray[np.float64]  # (policies, metrics) that there is no difference, adjusted for the whole table
    worse_share: NDArray[np.float64]  # (policies,) scenarios with a worse objective than the best heuristic's
    wins: NDArray[np.float64]  # (policies, policies) scenarios in which the row's objective is better than the column's
    job_sizes: JobSizes

    @property
    def objective_metric(self) -> Metric:
        """The objective."""
        return self.metrics[self.objective]

    @property
    def scenarios(self) -> int:
        """Number of scenarios."""
        return self.unit.size

    @property
    def units(self) -> int:
        """Number of independent units, which intervals rest on."""
        return int(self.unit.max()) + 1

    @property
    def challengers(self) -> tuple[str, ...]:
        """Policies that are no heuristics; where there are none, the best policies after the best heuristic."""
        learned = tuple(name for name in self.policies if name not in self.heuristics)
        return learned or tuple(name for name in self.policies if name != self.best_heuristic)[:1]


def compare(
    outcomes: Mapping[str, Outcome], scenarios: Scenarios, cluster_gpus: int, *,
    heuristics: Collection[str], groups: NDArray[np.generic] | None = None,
    objective: Weighting | str | None = None,
) -> Comparison:  # fmt: skip
    """Return the policies' figures and how each does against the best heuristic.

    1. Compute each metric of each scenario under each policy.
    2. Rank the policies by the mean of the objective, and find the best heuristic.
    3. Count in which share of the scenarios each policy beats each other.
    4. Estimate means and differences to the best heuristic, with intervals and p-values adjusted for the whole table.
    5. Do the same for mean JCT by the size of jobs.

    Args:
        outcomes: How the same scenarios ended under each policy.
        scenarios: The scenarios.
        cluster_gpus: GPUs of the cluster.
        heuristics: Names of the policies that are heuristics, at least one.
        groups: Label of each scenario, shape (scenarios,): scenarios of one label depend on each other (several
            fault seeds of one trace window) and are one unit of the intervals. By default, each scenario is a unit.
        objective: What ranks the policies, a metric's name or a weighting; by default that of `usual_weighting`.

    Raises:
        ValueError: If there is no outcome of a heuristic, or a shape or the objective does not fit.
        InputError: If a run was cut off before all its jobs ended.
        PluginError: If a metric of another package cannot be used.
    """
    _check_comparable(outcomes, scenarios, heuristics, groups)
    metrics = metrics_with_objective(objective)
    objective_index = _objective_index(objective, scenarios, metrics)
    table = {name: _metric_values(outcome, scenarios, cluster_gpus, metrics) for name, outcome in outcomes.items()}
    ranked = sorted(table, key=lambda name: _cost(table[name][objective_index], metrics[objective_index]).mean())
    best = next(name for name in ranked if name in heuristics)
    values = np.array([table[name] for name in ranked])
    unit = np.unique(np.arange(scenarios.jobs.size) if groups is None else groups, return_inverse=True)[1]
    cost = _cost(values[:, objective_index], metrics[objective_index])
    wins = _is_better(cost[:, None], cost[None]).mean(axis=-1)
    estimates = _estimate_differences(values, ranked.index(best), unit)
    return Comparison(
        policies=tuple(ranked),
        heuristics=frozenset(heuristics) & table.keys(),
        best_heuristic=best,
        metrics=metrics,
        objective=objective_index,
        unit=unit,
        values=values,
        mean=estimates[0],
        difference=estimates[1],
        relative_percent=estimates[2],
        p=estimates[3],
        worse_share=wins[ranked.index(best)],
        wins=wins,
        job_sizes=_compare_job_sizes([outcomes[name] for name in ranked], ranked.index(best), scenarios, unit),
    )


def size_classes(gpus: NDArray[np.int32]) -> tuple[tuple[str, ...], NDArray[np.intp]]:
    """Return the titles of the classes of job size that occur (1, 2, 3 to 4, 5 to 8, ... GPUs) and each job's class.

    Args:
        gpus: GPUs of each job, at least 1, any shape; the classes have the same shape.
    """
    exponents, index = np.unique(np.ceil(np.log2(gpus)).astype(np.int64), return_inverse=True)
    return tuple(_size_title(int(exponent)) for exponent in exponents), index.reshape(gpus.shape)


def _size_title(exponent: int) -> str:
    low, high = 2**exponent // 2 + 1, 2**exponent
    if exponent < 2:
        return "1 GPU" if high == 1 else "2 GPUs"
    return f"{low} to {high} GPUs"


def _check_comparable(
    outcomes: Mapping[str, Outcome],
    scenarios: Scenarios,
    heuristics: Collection[str],
    groups: NDArray[np.generic] | None,
) -> None:
    if not outcomes.keys() & set(heuristics):
        raise ValueError(f"none of the policies {', '.join(outcomes)} is among the heuristics {', '.join(heuristics)}")
    if groups is not None and groups.shape != scenarios.jobs.shape:
        raise ValueError(f"groups has shape {groups.shape}, expected {scenarios.jobs.shape}")
    for name, outcome in outcomes.items():
        if outcome.finish_s.shape != scenarios.gpus.shape:
            raise ValueError(f"{name}: finish_s has shape {outcome.finish_s.shape}, expected {scenarios.gpus.shape}")
        cut = np.flatnonzero(outcome.finished < scenarios.jobs)
        if cut.size:
            raise InputError(
                f"{cut.size} of {scenarios.jobs.size} runs under {name} were cut off, the first is scenario {cut[0]}",
                "lower the fault rate or the load, or omit the policy: unfinished jobs have no completion time",
            )


def _objective_index(objective: Weighting | str | None, scenarios: Scenarios, metrics: Sequence[Metric]) -> int:
    names = [metric.name for metric in metrics]
    if objective is None:
        objective = usual_weighting(scenarios.submit_s)
    if isinstance(objective, Weighting):
        return names.index(objective.field)
    if objective not in names:
        raise ValueError(f"objective is '{objective}', expected one of {', '.join(names)}")
    return names.index(objective)


def _metric_values(
    outcome: Outcome, scenarios: Scenarios, cluster_gpus: int, metrics: Sequence[Metric]
) -> NDArray[np.float64]:
    """Return the figures of one policy, shape (metrics, scenarios)."""
    figures = scenario_metrics(outcome, scenarios, cluster_gpus)
    return np.array([metric.values(figures) for metric in metrics])


def _cost(values: NDArray[np.float64], metric: Metric) -> NDArray[np.float64]:
    """Return values of a metric such that less is better."""
    cost: NDArray[np.float64] = values * (-1.0 if metric.better == "higher" else 1.0)
    return cost


def _is_better(cost: NDArray[np.float64], other: NDArray[np.float64]) -> NDArray[np.bool_]:
    better: NDArray[np.bool_] = cost < other - EQUAL_SHARE * np.maximum(np.abs(cost), np.abs(other))
    return better


def _estimate_differences(
    values: NDArray[np.float64], best: int, unit: NDArray[np.intp]
) -> tuple[IntervalEstimates, IntervalEstimates, IntervalEstimates, NDArray[np.float64]]:
    """Return means, differences to the best heuristic, these in per cent, and their adjusted p-values.

    All have the shape (policies, metrics).
    """
    shape = values.shape[:2]
    flat = values.reshape(-1, values.shape[-1])
    reference = np.broadcast_to(values[best], values.shape).reshape(flat.shape)
    sums, base = unit_sums(flat, unit), unit_sums(reference, unit)
    ones = np.broadcast_to(np.bincount(unit).astype(np.float64), sums.shape)
    return (
        _reshaped(ratio_estimates(sums, ones, confidence=CONFIDENCE), shape),
        _reshaped(ratio_estimates(sums - base, ones, confidence=CONFIDENCE), shape),
        _reshaped(ratio_estimates(100 * (sums - base), base, confidence=CONFIDENCE), shape),
        _adjusted_p_values(ratio_p_values(sums - base, ones).reshape(shape), best),
    )


def _adjusted_p_values(p: NDArray[np.float64], best: int) -> NDArray[np.float64]:
    """Return p-values of a table adjusted for all its cells but the best heuristic's own, which are no tests."""
    tested = p.copy()
    tested[best] = np.nan
    return holm_adjusted(tested)


def _reshaped(estimates: Iterable[NDArray[np.float64]], shape: tuple[int, ...]) -> IntervalEstimates:
    return IntervalEstimates(*(part.reshape(shape) for part in estimates))


def _compare_job_sizes(outcomes: list[Outcome], best: int, scenarios: Scenarios, unit: NDArray[np.intp]) -> JobSizes:
    real = real_jobs(scenarios)
    titles, size = size_classes(scenarios.gpus[real])
    cell = np.repeat(unit, scenarios.jobs) * len(titles) + size  # one cell for each unit and class
    units = int(unit.max()) + 1
    jct = unit_sums(np.array([(outcome.finish_s - scenarios.submit_s)[real] for outcome in outcomes]), cell)
    jct = np.pad(jct, ((0, 0), (0, units * len(titles) - jct.shape[1])))  # the last cells may have no job
    jct = jct.reshape(len(outcomes), units, -1).swapaxes(1, 2)
    jobs = np.bincount(size)
    base = np.broadcast_to(jct[best], jct.shape)
    relative = ratio_estimates(100 * (jct - base).reshape(-1, units), base.reshape(-1, units), confidence=CONFIDENCE)
    p = ratio_p_values((jct - base).reshape(-1, units), base.reshape(-1, units)).reshape(jct.shape[:2])
    return JobSizes(
        titles, jobs, jct.sum(axis=-1) / jobs, _reshaped(relative, jct.shape[:2]), _adjusted_p_values(p, best)
    )


CHUNK = 4096  # scenarios that are run side by side: more are no faster, but take memory and show no progress
FIRST, ENOUGH_S = 16, 0.25  # scenarios in the first chunk of a policy; chunks that take this long are large enough


def run_all(
    problem: Problem,
    policies: Sequence[Policy],
    on_progress: Callable[[str, int], None] = lambda name, done: None,
    *,
    chunk: int = CHUNK,
) -> dict[str, Outcome]:
    """Run every scenario under every policy, on the same faults.

    Args:
        problem: Has the scenarios.
        policies: What decides.
        on_progress: Called with the name of a policy and the number of scenarios that it has run, before each chunk.
        chunk: Scenarios that are run at once at most; outcomes do not depend on it.
    """
    scenarios = problem.scenarios.jobs.size
    rows = min(chunk, scenarios)
    sim = simulation_of(problem, rows=rows)
    outcomes = {}
    for policy in policies:
        parts, first, size = [], 0, min(FIRST, rows)
        while first < scenarios:
            on_progress(policy.name, first)
            numbers = np.arange(first, min(first + size, scenarios))
            began = time.monotonic()
            policy.run(sim, numbers)
            parts.append(outcome_of(sim, slice(numbers.size)))
            first += size
            if time.monotonic() - began < ENOUGH_S:
                size = min(4 * size, rows)
        outcomes[policy.name] = Outcome(*map(np.concatenate, zip(*parts, strict=True)))
    return outcomes


def run_one(
    problem: Problem, policy: Policy, on_progress: Callable[[str, int], None] = lambda name, done: None
) -> Outcome | None:
    """Run every scenario under one policy, as `run_all`; None where faults would keep a job from ever ending."""
    try:
        return run_all(problem, [policy], on_progress)[policy.name]
    except EndlessError:
        return None


def run_with_events(problem: Problem, policy: Policy, scenario: int) -> tuple[Outcome, list[Event]]:
    """Run one scenario and return also every event of it."""
    jobs = int(problem.scenarios.jobs[scenario])
    room = 8 * jobs + 4 * problem.cluster.gpu_node.size
    while True:
        log = allocate_log(room, 8 * room)
        sim = simulation_of(problem, log=log)
        policy.run(sim, np.array([scenario]))
        if log.size[1] == 0:
            return outcome_of(sim), events_of(log)
        room *= 4
