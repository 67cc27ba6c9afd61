"""A policy's scores on scenarios that it never trains on, against the best heuristic and the tuned `patient`."""

import json
import math
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..agents.heuristics import FACTORS, Heuristic, patient_with_factor, rival_heuristics
from ..agents.heuristics import patient_of_least_cost as best_patient
from ..agents.protocol import Policy
from ..cluster.files.output_file import replacing_file
from ..cluster.model.intervals import ratio_estimates, unit_sums
from ..cluster.model.outcome import RunMetrics, Weighting, metrics, usual_weighting, weighting_of_figure
from ..cluster.model.problem import ORDERS, Problem, same_jobs_labels
from ..cluster.presets.problems import VALIDATION_SEED, Regime
from ..cluster.simulator.simulation import outcome_of, simulation_of
from ..cluster.state.state import Simulation
from .history import read_history
from .problems import (
    LATER_PART,
    TRACE_LOAD,
    TRAINED_PART,
    ProblemRequest,
    WindowSelection,
    later_problem,
    trace_windows,
    tuning_problem,
)

CONFIDENCE = 0.95  # of all intervals


class Score(NamedTuple):
    """A policy against the best heuristic, by the objective."""

    mean_s: float  # of the objective; in seconds if it is a time
    percent: float  # difference of the means in per cent of the heuristic's, below 0 is better
    half_width: float  # half the width of its 95 % interval; inf if there is one workload only

    @property
    def text(self) -> str:
        """Difference and half width in words."""
        if math.isinf(self.half_width):
            return f"{self.percent:+.2f} % (one workload, so no interval)"
        return f"{self.percent:+.2f} % (+- {self.half_width:.2f})"


class Validation:
    """Scenarios to validate on, with every heuristic of the same actions already run.

    The default objective is the makespan if all jobs are submitted at the start, and else the mean JCT.

    Args:
        problems: What is run. The score is the mean over them.
        weighting: The objective.
    """

    def __init__(self, *problems: Problem, weighting: Weighting | None = None) -> None:
        self._problems = [ProblemValidation(problem, weighting) for problem in problems]
        self.weighting = self._problems[0].weighting
        self.best = ", ".join(dict.fromkeys(problem.best for problem in self._problems))
        self.scenarios = sum(problem.scenarios.jobs.size for problem in problems)

    def reported_mean(self, score: Score) -> tuple[str, float]:
        """Return the name and the mean of the objective as metrics report it: times in hours."""
        name = self.weighting.field.removesuffix("_s")
        return (f"{name}_h", score.mean_s / 3600.0) if self.weighting.is_time else (name, score.mean_s)

    def score(self, policy: Policy) -> Score:
        """Run a policy and compare it with the best heuristic of each problem, paired by scenario."""
        scores = [problem.score(policy) for problem in self._problems]
        mean_s, percent = (float(np.mean([getattr(score, name) for score in scores])) for name in ("mean_s", "percent"))
        # The problems' draws are independent of each other.
        return Score(mean_s, percent, float(np.linalg.norm([score.half_width for score in scores])) / len(scores))


class ProblemValidation:
    """The scenarios of one problem, and the heuristic that does best on them.

    Args:
        problem: What is run.
        weighting: The objective; None: the usual one of the problem.
    """

    def __init__(self, problem: Problem, weighting: Weighting | None = None) -> None:
        self.problem = problem
        self._sim = simulation_of(problem, rows=problem.scenarios.jobs.size)
        self.weighting = weighting or usual_weighting(problem.scenarios.submit_s)
        run = {policy.name: self._costs_under(policy) for policy in rival_heuristics(problem.rules)}
        self.best = min(run, key=lambda name: float(run[name].mean()))
        self._best_s = run[self.best]

    def _costs_under(self, policy: Policy) -> NDArray[np.float64]:
        return run_for_costs(self._sim, policy, self.problem, self.weighting)

    def score(self, policy: Policy) -> Score:
        """Run a policy and compare it with the best heuristic, paired by scenario."""
        values = self._costs_under(policy)
        # A unit of the interval is a workload: its fault draws are no independent evidence.
        _, workload = np.unique(self.problem.scenarios.work_s, axis=0, return_inverse=True)
        difference, base = unit_sums(np.stack([values - self._best_s, self._best_s]), workload)
        found = ratio_estimates(100.0 * difference[None], base[None], confidence=CONFIDENCE)
        half_width = (found.high[0] - found.low[0]) / 2.0
        return Score(
            float(values.mean()), float(found.value[0]), math.inf if math.isnan(half_width) else float(half_width)
        )  # fmt: skip


def run_for_metrics(sim: Simulation, policy: Policy, problem: Problem) -> RunMetrics:
    """Run all scenarios of a problem under a policy, and return their figures, each of shape (scenarios,)."""
    scenarios = problem.scenarios
    policy.run(sim, np.arange(scenarios.jobs.size))
    gpus = problem.cluster.gpu_node.size
    return metrics(outcome_of(sim), scenarios.jobs, scenarios.gpus, scenarios.submit_s, gpus, scenarios.work_s)


def run_for_costs(sim: Simulation, policy: Policy, problem: Problem, weighting: Weighting) -> NDArray[np.float64]:
    """Return the objective of each scenario under a policy, shape (scenarios,)."""
    return weighting.cost(run_for_metrics(sim, policy, problem))


LATER = "later.json"
COMPARED_WINDOWS = 24  # of each trace, as `longshore evaluate` takes
LATER_SEED, TUNING_SEED = VALIDATION_SEED + 1000, VALIDATION_SEED + 2000  # draws that no training uses
MEAN_JCT = weighting_of_figure("mean-jct")  # the usual objective where jobs arrive over time
EACH_BEST = "the best of each trace"


class LaterComparison(NamedTuple):
    """A policy against `patient`, or against the best of all, on windows that no training used."""

    where: str  # the trace, and the order regime
    windows: int
    percent: float  # difference of the objective, the geometric mean over windows; below 0 is better
    low: float  # of its 95 % interval; nan with one window
    high: float
    factor: float  # of `patient`, tuned on the part that was trained on
    rival: str = ""  # the best order and heuristic on that part; empty: `patient` under the policy's own order

    @property
    def text(self) -> str:
        """In words."""
        ends = "no interval" if np.isnan(self.low) else f"95 % from {self.low:+.1f} to {self.high:+.1f}"
        against = f", against {self.rival}" if self.rival else ""
        return f"{self.where}{against}: {self.percent:+.1f} % ({ends}; {self.windows} windows)"


def compare_on_later_windows(
    request: ProblemRequest, policy: Policy, weighting: Weighting | None = None
) -> tuple[LaterComparison, ...]:
    """Compare a policy with `patient` on later windows of each trace and under each regime, and over all of them.

    By the objective of a user, the policy is also compared with the best of all orders and heuristics.
    """
    by = weighting or MEAN_JCT
    found, logs = [], []
    for number, path in enumerate(request.traces):
        for regime in request.regimes:
            rival = tuned_patient(_tuning_windows(request, number, regime), by)
            problem = _later_windows(request, number, regime)
            logs.append(np.log(_window_means(problem, policy, by) / _window_means(problem, rival, by)))
            found.append(_comparison(f"{path.name}, {regime.order}", logs[-1], rival.patience))
    if len(found) > 1:
        found.append(_comparison("all of these", np.concatenate(logs), float("nan")))
    return tuple(found) if weighting is None else (*found, *_compare_with_best(request, policy, weighting))


def _compare_with_best(request: ProblemRequest, policy: Policy, by: Weighting) -> list[LaterComparison]:
    """Compare a policy with the order and the heuristic that do best on what was trained on, on the same windows."""
    found, logs = [], []
    for number, path in enumerate(request.traces):
        best = best_order_and_heuristic(_tuning_windows(request, number, request.regimes[0]), by)
        for regime in request.regimes:
            problem = _later_windows(request, number, regime)
            logs.append(_log_ratios(problem, policy, best, by))
            found.append(_comparison(f"{path.name}, {regime.order}", logs[-1], math.nan, str(best)))
    if len(found) > 1:
        rival = found[0].rival if len({later.rival for later in found}) == 1 else EACH_BEST
        found.append(_comparison("all of these", np.concatenate(logs), math.nan, rival))
    return found


def _tuning_windows(request: ProblemRequest, number: int, regime: Regime) -> Problem:
    """Return windows of the part of a trace that was trained on, which no training drew."""
    windows = WindowSelection(TRAINED_PART, COMPARED_WINDOWS, None, TUNING_SEED + number, disjoint=True)
    return trace_windows(request._replace(traces=(request.traces[number],)), regime, windows, (TRACE_LOAD,))


def _later_windows(request: ProblemRequest, number: int, regime: Regime) -> Problem:
    """Return windows of the part of a trace that no training used."""
    windows = WindowSelection(LATER_PART, COMPARED_WINDOWS, None, LATER_SEED + number, disjoint=True)
    return trace_windows(request._replace(traces=(request.traces[number],)), regime, windows, (TRACE_LOAD,))


def compare_on_history(path: Path, policy: Policy, weighting: Weighting | None = None) -> tuple[LaterComparison, ...]:
    """Compare a policy with `patient` on the last jobs of a file of decisions, and by an objective with the best."""
    history, by = read_history(path), weighting or MEAN_JCT
    past, problem = tuning_problem(history), later_problem(history)
    rival = tuned_patient(past, by)
    found = compare_policies(path.name, problem, policy, rival, rival.patience, by)
    if weighting is None:
        return (found,)
    best = best_order_and_heuristic(past, by)
    return found, _comparison(path.name, _log_ratios(problem, policy, best, by), math.nan, str(best))


class OrderAndHeuristic(NamedTuple):
    """An order and a heuristic."""

    order: str
    policy: Heuristic

    def __str__(self) -> str:
        return f"{self.order} + {self.policy.name}"

    def with_order(self, problem: Problem) -> Problem:
        """Return a problem with this order."""
        return problem._replace(rules=problem.rules._replace(order=ORDERS[self.order]))


def best_order_and_heuristic(problem: Problem, by: Weighting) -> OrderAndHeuristic:
    """Return the order and the heuristic that do best on a problem, of Longshore's own and `patient` at each factor."""
    patients = [patient_with_factor(factor) for factor in FACTORS] if problem.rules.waiting else []
    pairs = [
        OrderAndHeuristic(order, policy) for order in ORDERS for policy in (*rival_heuristics(problem.rules), *patients)
    ]
    return min(pairs, key=lambda pair: float(np.log(_window_means(pair.with_order(problem), pair.policy, by)).mean()))


def _log_ratios(problem: Problem, policy: Policy, best: OrderAndHeuristic, by: Weighting) -> NDArray[np.float64]:
    """Return the logarithm of what a policy costs over what a pair does, shape (windows,)."""
    own, other = _window_means(problem, policy, by), _window_means(best.with_order(problem), best.policy, by)
    logs: NDArray[np.float64] = np.log(own / other)
    return logs


def write_comparisons(folder: Path, comparisons: tuple[LaterComparison, ...]) -> None:
    """Write the comparisons to the folder of the policy."""
    with replacing_file(folder / LATER) as part:
        part.write_text(json.dumps([comparison_json(later) for later in comparisons], indent=1, allow_nan=False) + "\n")


def comparison_json(comparison: LaterComparison) -> dict[str, object]:
    """Return a comparison for JSON, with null for what is not finite."""
    values = {name: value for name, value in comparison._asdict().items() if name != "rival" or value}
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in values.items()
    }


def recommendation(comparisons: tuple[LaterComparison, ...], by: Weighting = MEAN_JCT) -> str:
    """Return what to run, by the last comparison, which is the widest and against the best rival."""
    last = comparisons[-1]
    if last.high < 0.0:
        gain = f"{-last.percent:.1f} %"
        gained = f"Jobs end {gain} sooner in the mean" if by == MEAN_JCT else f"The {by.title} is {gain} lower"
        return f"{gained} than under {last.rival or '`patient`'}: run this policy."
    if last.rival:
        how = f"{last.percent:.1f} % worse than" if last.low > 0.0 else "not shown to be better than"
        return f"It is {how} {last.rival}, the best order and heuristic: run that, or train on more or longer traces."
    if last.low > 0.0:
        return f"It is {last.percent:.1f} % worse than `patient`: run `longshore serve` with the policy `patient`."
    return "It is not shown to be better than `patient`: run the policy `patient`, or train on more or longer traces."


def tuned_patient(problem: Problem, by: Weighting = MEAN_JCT) -> Heuristic:
    """Return `patient` with the factor that does best on the windows of a problem."""
    return best_patient(lambda policy: float(np.log(_window_means(problem, policy, by)).mean()))


def compare_policies(
    where: str, problem: Problem, policy: Policy, rival: Policy, factor: float = math.nan, by: Weighting = MEAN_JCT
) -> LaterComparison:
    """Compare two policies on the windows of a problem, paired by window and by draws of faults."""
    return _comparison(where, np.log(_window_means(problem, policy, by) / _window_means(problem, rival, by)), factor)


def _window_means(problem: Problem, policy: Policy, by: Weighting) -> NDArray[np.float64]:
    """Return the mean objective of each window, over its draws of faults, shape (windows,)."""
    sim = simulation_of(problem, rows=problem.scenarios.jobs.size)
    values = run_for_costs(sim, policy, problem, by)
    label = same_jobs_labels(problem.scenarios)
    means: NDArray[np.float64] = np.bincount(label, weights=values) / np.bincount(label)
    return means


def _comparison(where: str, logs: NDArray[np.float64], factor: float, rival: str = "") -> LaterComparison:
    value, low, high = (
        float(100.0 * np.expm1(end[0]))
        for end in ratio_estimates(logs[None], np.ones((1, logs.size)), confidence=CONFIDENCE)
    )
    return LaterComparison(where, logs.size, value, low, high, factor, rival)
