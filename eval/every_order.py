"""Every order regime with every policy on the same scenarios: the choice, and what it changes.

`run_grid` runs all pairs and chooses one by the earlier windows. `advice_of` compares the chosen one with the common
ones on the later windows, per month and with confidence intervals.
"""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..agents.heuristics import PACK
from ..agents.protocol import Policy
from ..cluster.files.errors import EndlessError, InputError
from ..cluster.model.intervals import IntervalEstimates, holm_adjusted, ratio_estimates, ratio_p_values, unit_sums
from ..cluster.model.outcome import Outcome, Weighting, usual_weighting
from ..cluster.model.problem import ORDERS, Problem, Scenarios, same_jobs_labels
from ..cluster.model.topology import speed_sum
from ..cluster.presets.problems import Regime
from .comparison import CONFIDENCE, EQUAL_SHARE, real_jobs, run_all, run_one, scenario_metrics
from .setting import is_heuristic

log = logging.getLogger(__name__)

SLOWDOWN_FLOOR_S = 10.0  # least work of a job in slowdowns, as in the literature on batch scheduling
MIN_HELD_OUT_WINDOWS = 4  # windows: of fewer, no half is left to report on


class Candidate(NamedTuple):
    """What can be run."""

    order: str
    policy: str

    def __str__(self) -> str:
        return f"{self.order} + {self.policy}"


COMMON = (Candidate("fifo", PACK.name), Candidate("easy", PACK.name))  # what most clusters run


class CandidateFigures(NamedTuple):
    """Figures of each candidate and scenario, each of shape (candidates, scenarios)."""

    mean_jct_s: NDArray[np.float64]
    makespan_s: NDArray[np.float64]
    p99_jct_s: NDArray[np.float64]
    longest_wait_s: NDArray[np.float64]
    p99_slowdown: NDArray[np.float64]  # of JCT over work
    mean_slowdown: NDArray[np.float64]  # as the metric: the slowdown of short jobs is less
    lost_gpu_s: NDArray[np.float64]
    held_gpu_s: NDArray[np.float64]  # by jobs, whether of use or not
    wait_s: NDArray[np.float64]  # in the queue, summed over jobs
    jct_s: NDArray[np.float64]  # summed over jobs
    stops: NDArray[np.float64]
    finished: NDArray[np.bool_]  # all jobs ended before the run was cut off


class OrderGrid(NamedTuple):
    """How all candidates did."""

    candidates: tuple[Candidate, ...]
    figures: CandidateFigures
    unit: NDArray[np.intp]  # (scenarios,) window, in the order of the scenarios
    weighting: Weighting  # what candidates are ranked by
    is_users_objective: bool  # else the usual one of the jobs
    heuristics: frozenset[str]  # which policies are heuristics
    chosen: int  # index of the best candidate of the windows that choose
    outcomes: dict[str, Outcome]  # of the chosen order, by policy; none of one under which a job would never end

    @property
    def windows(self) -> int:
        """Number of windows."""
        return int(self.unit.max()) + 1

    @property
    def has_held_out_windows(self) -> bool:
        """Whether windows are left that did not choose."""
        return self.windows >= MIN_HELD_OUT_WINDOWS

    @property
    def is_reported(self) -> NDArray[np.bool_]:
        """The scenarios that figures are reported of, shape (scenarios,)."""
        return _choosing_and_reported(self.unit)[1]

    @property
    def easy_backfill_row(self) -> int:
        """Row of EASY with pack."""
        return self.candidates.index(COMMON[-1])

    @property
    def objective_name(self) -> str:
        """Name of what candidates are ranked by."""
        return self.weighting.field

    @property
    def cost(self) -> NDArray[np.float64]:
        """The objective, shape (candidates, scenarios)."""
        return self.weighting.cost(self.figures)

    @property
    def ended(self) -> NDArray[np.bool_]:
        """Which candidates ended all jobs of all scenarios, shape (candidates,)."""
        return np.asarray(self.figures.finished.all(axis=1))


def every_order(regime: Regime) -> list[Regime]:
    """Return a regime under each order."""
    return [replace(regime, order=order) for order in ORDERS]


def run_grid(
    problem: Problem,
    regimes: Sequence[Regime],
    policies: Sequence[Policy],
    on_progress: Callable[[str, int], None] = lambda what, done: None,
    *,
    weighting: Weighting | None = None,
    tuned: Mapping[str, Policy] | None = None,
) -> OrderGrid:
    """Run every scenario under every order and policy, and choose the best by the earlier half of the windows.

    A candidate of which a run was cut off before all jobs ended, or would never end, is never chosen.

    1. Split the windows: the earlier half chooses, the later half is reported. Few windows do both.
    2. Run every scenario under each order and policy.
    3. Choose the candidate with the least mean of the objective on the windows that choose.

    Args:
        problem: What is run, under any order.
        regimes: At most one for each order.
        policies: What decides.
        on_progress: Called with the candidate and the number of scenarios that it has run.
        weighting: What candidates are ranked by; the usual objective of the jobs if None.
        tuned: A policy that runs under one order only, by that order.

    Raises:
        InputError: If no candidate ended all jobs.
    """
    unit = window_numbers(problem.scenarios)
    choosing, _ = _choosing_and_reported(unit)  # 1
    by = weighting or usual_weighting(problem.scenarios.submit_s)
    candidates: list[Candidate] = []
    rows: list[CandidateFigures] = []
    chosen, least, kept = 0, np.inf, dict[str, Outcome]()
    endless: EndlessError | None = None  # the first one
    for regime in regimes:
        ruled = problem._replace(rules=regime.applied_to(problem.rules))
        own = [policy for order, policy in (tuned or {}).items() if order == regime.order]
        outcomes = dict[str, Outcome]()
        for policy in (*policies, *own):
            candidates.append(Candidate(regime.order, policy.name))
            report = partial(_report_progress, on_progress, regime.order)
            try:
                outcome = outcomes[policy.name] = run_all(ruled, [policy], report)[policy.name]  # 2
                rows.append(candidate_figures(outcome, problem.scenarios, problem.cluster.gpu_node.size))
            except EndlessError as error:
                endless = endless or error
                rows.append(_figures_of_endless(problem.scenarios))
            cost = float(by.cost(rows[-1])[choosing].mean()) if rows[-1].finished.all() else np.inf
            if cost < least or not kept:  # 3
                chosen, least, kept = len(rows) - 1, cost, outcomes
    if not np.isfinite(least):
        raise endless or InputError(
            "under every order and policy a run was cut off before all jobs ended", "lower the fault rate or the load"
        )
    figures = CandidateFigures(*(np.array(column) for column in zip(*rows, strict=True)))
    names = frozenset(policy.name for policy in (*policies, *(tuned or {}).values()) if is_heuristic(policy))
    return OrderGrid(tuple(candidates), figures, unit, by, weighting is not None, names, chosen, kept)


def _report_progress(on_progress: Callable[[str, int], None], order: str, policy: str, done: int) -> None:
    on_progress(str(Candidate(order, policy)), done)


def window_numbers(scenarios: Scenarios) -> NDArray[np.intp]:
    """Return the number of each scenario's window, in the order in which windows first occur, shape (scenarios,)."""
    label = same_jobs_labels(scenarios)
    _, first = np.unique(label, return_index=True)
    place: NDArray[np.intp] = np.argsort(np.argsort(first, kind="stable"), kind="stable")
    return place[label]


def _choosing_and_reported(unit: NDArray[np.intp]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return the scenarios of the earlier half of the windows, the smaller one, and the others; of few windows all."""
    windows = int(unit.max()) + 1
    if windows < MIN_HELD_OUT_WINDOWS:
        return np.ones(unit.size, dtype=bool), np.ones(unit.size, dtype=bool)
    return unit < windows // 2, unit >= windows // 2


def candidate_figures(outcome: Outcome, scenarios: Scenarios, cluster_gpus: int) -> CandidateFigures:
    """Return the figures of one candidate, each of shape (scenarios,)."""
    found = scenario_metrics(outcome, scenarios, cluster_gpus)
    real = real_jobs(scenarios)
    finish_s = np.where(outcome.finish_s > 0.0, outcome.finish_s, outcome.makespan_s[:, None])
    jct_s = np.where(real, np.maximum(finish_s - scenarios.submit_s, 0.0), np.nan)
    slowdown = jct_s / np.maximum(scenarios.work_s, SLOWDOWN_FLOOR_S)
    return CandidateFigures(
        mean_jct_s=found.mean_jct_s,
        makespan_s=found.makespan_s,
        p99_jct_s=found.p99_jct_s,
        longest_wait_s=found.longest_wait_s,
        p99_slowdown=np.nanpercentile(slowdown, 99, axis=1),
        mean_slowdown=found.mean_slowdown,
        lost_gpu_s=found.lost_gpu_s,
        held_gpu_s=outcome.busy_gpu_s,
        wait_s=outcome.wait_s.sum(axis=1),
        jct_s=np.nansum(jct_s, axis=1),
        stops=outcome.stops.sum(axis=1).astype(np.float64),
        finished=outcome.finished >= scenarios.jobs,
    )


def _figures_of_endless(scenarios: Scenarios) -> CandidateFigures:
    """Return figures of a candidate under which a job would never end; only `finished` has a meaning."""
    unknown: dict[str, NDArray[Any]] = dict.fromkeys(CandidateFigures._fields, np.ones(scenarios.jobs.size))
    return CandidateFigures(**unknown | {"finished": np.zeros(scenarios.jobs.size, dtype=np.bool_)})


BOUNDS_S = (6 * 3600.0, 24 * 3600.0, 72 * 3600.0, 7 * 86400.0, math.inf)


def figures_by_ageing_bound(
    grid: OrderGrid, problem: Problem, policy: Policy, on_progress: Callable[[str, int], None] = lambda what, done: None
) -> dict[float, CandidateFigures]:
    """Return the figures of the chosen candidate by the ageing bound in seconds; none where no bound changes anything.

    Bounds under which a run is cut off or would never end are dropped.

    Args:
        grid: How all candidates did.
        problem: What was run, under the chosen order.
        policy: The chosen policy.
        on_progress: Called with what is run and the number of scenarios that are done.
    """
    found = {}
    for ageing_s in sorted({*BOUNDS_S, problem.rules.ageing_s}):
        ruled = problem._replace(rules=problem.rules._replace(ageing_s=ageing_s))
        outcome = run_one(ruled, policy, on_progress)
        if outcome is not None and (outcome.finished >= problem.scenarios.jobs).all():
            found[ageing_s] = candidate_figures(outcome, problem.scenarios, problem.cluster.gpu_node.size)
    costs = [grid.weighting.cost(figures) for figures in found.values()]
    return found if any((cost != costs[0]).any() for cost in costs) else {}


MONTH_S = 365.25 / 12 * 86400.0
QUARTILES_FROM, HALVES_FROM = 8, 4  # windows: fewer are cut into halves, or into nothing
MIN_SPREAD = 0.02  # windows that differ by a smaller share in a trait are not grouped by it


class AgainstRival(NamedTuple):
    """All candidates against one of them, on the windows that are reported."""

    rival: Candidate
    percent: IntervalEstimates  # (candidates,) of the objective, in per cent of the rival's
    p: NDArray[np.float64]  # (candidates,) that there is no difference, adjusted for the whole table


class WindowGroup(NamedTuple):
    """Windows that are alike in a trait."""

    trait: str
    portion: str  # such as "lowest quarter"
    low: float
    high: float
    windows: int
    losses: int
    percent: IntervalEstimates  # one number each


class AgeingBoundFigures(NamedTuple):
    """Figures of the chosen order and policy with an ageing bound."""

    ageing_s: float
    mean_s: float  # of the objective, in seconds if it is a time
    p99_jct_s: float
    longest_wait_s: float
    percent: IntervalEstimates  # one number each: the objective against the bound that was run


class HoursSaved(NamedTuple):
    """What is saved against EASY with pack, in hours."""

    jct: IntervalEstimates  # job-hours from submission to end
    wait: IntervalEstimates  # job-hours in the queue
    held: IntervalEstimates  # GPU-hours that jobs hold GPUs
    lost: IntervalEstimates  # GPU-hours lost to faults
    jobs: float  # a month, or of a workload
    monthly: bool  # else for each workload


@dataclass(frozen=True, slots=True)
class OrderAdvice:
    """The answer, in numbers."""

    grid: OrderGrid
    chosen: Candidate
    second: Candidate | None  # the next best by the windows that chose
    heuristic: Candidate | None  # the best heuristic by these, where a user's objective chose another policy
    units: int  # windows that are reported
    mean: NDArray[np.float64]  # (candidates,) of the objective
    bound_s: float  # mean of the lower bounds of the objective; nan if it has none
    above_percent: NDArray[np.float64]  # (candidates,) largest possible distance to the optimum
    against: tuple[AgainstRival, ...]  # what is common, then the second
    losses: int  # reported windows in which EASY with pack is better
    window_groups: tuple[WindowGroup, ...]
    saving: HoursSaved | None  # None where EASY with pack did not end
    ageing_bounds: tuple[AgeingBoundFigures, ...]  # ageing bounds that the chosen might have instead
    noun: Literal["window", "workload"]  # what the units are

    @property
    def chosen_row(self) -> int:
        """Row of what was chosen."""
        return self.grid.chosen


def advice_of(
    grid: OrderGrid,
    problem: Problem,
    least_s: NDArray[np.float64],
    ageing: Mapping[float, CandidateFigures] | None = None,
    noun: Literal["window", "workload"] = "window",
) -> OrderAdvice:
    """Return what to run, and how sure that is.

    The choice was made on the earlier windows. All figures here are of the later ones, which the choice did not use.

    Args:
        grid: How all candidates did.
        problem: What was run.
        least_s: Lower bound of the objective of each scenario that is reported.
        ageing: CandidateFigures of the chosen candidate under other ageing bounds, by their seconds.
        noun: What units are: windows of a trace, or generated workloads.
    """
    shown = grid.is_reported
    unit = np.unique(grid.unit[shown], return_inverse=True)[1]
    cost = grid.cost[:, shown]
    mean, bound_s = cost.mean(axis=1), float(least_s.mean())
    second, heuristic = (
        None if row is None else grid.candidates[row] for row in (_second_best(grid), _best_heuristic(grid))
    )
    rivals = [*COMMON, *(one for one in (second, heuristic) if one is not None)]
    easy_ended = bool(grid.ended[grid.easy_backfill_row])
    of_easy = _sums_by_unit(cost[grid.easy_backfill_row], unit)
    worse = _sums_by_unit(cost[grid.chosen], unit) > of_easy * (1 + EQUAL_SHARE)
    return OrderAdvice(
        grid=grid,
        chosen=grid.candidates[grid.chosen],
        second=second,
        heuristic=heuristic,
        units=int(unit.max()) + 1,
        mean=mean,
        bound_s=bound_s,
        above_percent=100 * (mean / bound_s - 1),
        against=tuple(_against_rival(grid, rival, cost, unit) for rival in dict.fromkeys(rivals)),
        losses=int(worse.sum()),
        window_groups=_window_groups(grid, problem, shown, unit, worse) if easy_ended else (),
        saving=_hours_saved(grid, problem, shown, unit) if easy_ended else None,
        ageing_bounds=tuple(
            _ageing_bound_figures(grid, ageing_s, figures, shown, unit)
            for ageing_s, figures in sorted((ageing or {}).items())
        ),
        noun=noun,
    )


def _ageing_bound_figures(
    grid: OrderGrid, ageing_s: float, figures: CandidateFigures, shown: NDArray[np.bool_], unit: NDArray[np.intp]
) -> AgeingBoundFigures:
    own, base = grid.weighting.cost(figures)[None, shown], grid.cost[grid.chosen, shown][None]
    percent = ratio_estimates(100 * unit_sums(own - base, unit), unit_sums(base, unit), confidence=CONFIDENCE)
    tail = figures.p99_jct_s[shown].mean(), figures.longest_wait_s[shown].mean()
    return AgeingBoundFigures(ageing_s, float(own.mean()), float(tail[0]), float(tail[1]), percent)


def _second_best(grid: OrderGrid) -> int | None:
    """Return the next best candidate by the windows that chose, None if there is none."""
    cost = _cost_on_choosing_windows(grid)
    cost[np.abs(cost - cost[grid.chosen]) <= EQUAL_SHARE * cost[grid.chosen]] = np.inf  # the same under another name
    best = int(cost.argmin())
    return best if np.isfinite(cost[best]) else None


def _best_heuristic(grid: OrderGrid) -> int | None:
    """Return the best heuristic by the windows that chose, None if it was chosen or the user gave no objective."""
    if not grid.is_users_objective or grid.candidates[grid.chosen].policy in grid.heuristics:
        return None
    is_one = np.array([candidate.policy in grid.heuristics for candidate in grid.candidates])
    cost = np.where(is_one, _cost_on_choosing_windows(grid), np.inf)
    return int(cost.argmin()) if np.isfinite(cost).any() else None


def _cost_on_choosing_windows(grid: OrderGrid) -> NDArray[np.float64]:
    """Return the mean objective on the windows that chose, shape (candidates,); inf of those that did not end."""
    choosing, _ = _choosing_and_reported(grid.unit)
    return np.where(grid.ended, grid.cost[:, choosing].mean(axis=1), np.inf)


def _sums_by_unit(values: NDArray[np.float64], unit: NDArray[np.intp]) -> NDArray[np.float64]:
    return np.asarray(np.bincount(unit, weights=values), dtype=np.float64)


def _against_rival(
    grid: OrderGrid, rival: Candidate, cost: NDArray[np.float64], unit: NDArray[np.intp]
) -> AgainstRival:
    base = unit_sums(np.broadcast_to(cost[grid.candidates.index(rival)], cost.shape), unit)
    change = unit_sums(cost, unit) - base
    p = ratio_p_values(change, base)
    p[grid.candidates.index(rival)] = np.nan
    return AgainstRival(rival, ratio_estimates(100 * change, base, confidence=CONFIDENCE), holm_adjusted(p))


def _window_groups(
    grid: OrderGrid, problem: Problem, shown: NDArray[np.bool_], unit: NDArray[np.intp], worse: NDArray[np.bool_]
) -> tuple[WindowGroup, ...]:
    """Return how the chosen does against EASY with pack in windows grouped by each trait."""
    count = int(unit.max()) + 1
    names = _portion_names(count)
    own, base = (_sums_by_unit(grid.cost[row, shown], unit) for row in (grid.chosen, grid.easy_backfill_row))
    found = []
    for what, values in _window_traits(grid, problem).items():
        value = _sums_by_unit(values[shown], unit) / np.bincount(unit)
        if not names or np.ptp(value) <= MIN_SPREAD * np.abs(value).max():
            continue
        for which, members in zip(names, np.array_split(np.argsort(value, kind="stable"), len(names)), strict=True):
            percent = ratio_estimates(100 * (own - base)[None, members], base[None, members], confidence=CONFIDENCE)
            ends = float(value[members].min()), float(value[members].max())
            losses = int(worse[members].sum())
            found.append(WindowGroup(what, which, *ends, members.size, losses, percent))
    return tuple(found)


def _portion_names(windows: int) -> tuple[str, ...]:
    if windows >= QUARTILES_FROM:
        return "lowest quarter", "second quarter", "third quarter", "highest quarter"
    return ("lower half", "higher half") if windows >= HALVES_FROM else ()


def _window_traits(grid: OrderGrid, problem: Problem) -> dict[str, NDArray[np.float64]]:
    """Return the traits by which windows are grouped, each of shape (scenarios,)."""
    scenarios, easy = problem.scenarios, grid.easy_backfill_row
    jobs, last_s = scenarios.jobs, scenarios.submit_s.max(axis=1, initial=0.0)
    gpu_s = (scenarios.gpus * scenarios.work_s).sum(axis=1)
    capacity = speed_sum(problem.cluster)
    traits = {
        "mean number of jobs waiting": grid.figures.wait_s[easy] / grid.figures.makespan_s[easy],
        "mean GPUs of a job": scenarios.gpus.sum(axis=1) / jobs,
        "stops by faults a job": grid.figures.stops[easy] / jobs,
    }
    if (last_s > 0.0).all():
        traits["offered load"] = gpu_s / last_s / capacity
    return traits


def _hours_saved(grid: OrderGrid, problem: Problem, shown: NDArray[np.bool_], unit: NDArray[np.intp]) -> HoursSaved:
    """Return what the chosen saves against EASY with pack, a month where jobs arrive over time."""
    easy, own = grid.easy_backfill_row, grid.chosen
    jobs = problem.scenarios.jobs[shown].astype(np.float64)
    span_s = problem.scenarios.submit_s[shown].max(axis=1, initial=0.0)
    monthly = bool((span_s > 0.0).all())
    periods = _sums_by_unit(span_s / MONTH_S if monthly else np.ones(span_s.size), unit)[None]
    parts = (grid.figures.jct_s, grid.figures.wait_s, grid.figures.held_gpu_s, grid.figures.lost_gpu_s)
    saved = unit_sums(np.array([(part[easy] - part[own])[shown] for part in parts]) / 3600.0, unit)
    hours = ratio_estimates(saved, np.broadcast_to(periods, saved.shape), confidence=CONFIDENCE)
    jct, wait, held, lost = (IntervalEstimates(*(end[index] for end in hours)) for index in range(len(parts)))
    return HoursSaved(jct, wait, held, lost, float(jobs.sum() / periods.sum()), monthly)
