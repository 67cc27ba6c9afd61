"""Every order regime with every policy on the same scenarios, then the chosen pair under other ageing bounds."""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...agents.heuristics import PACK
from ...agents.protocol import Policy
from ...cluster.files.errors import InputError
from ...cluster.model.outcome import Outcome, Weighting, usual_weighting
from ...cluster.model.problem import ORDERS, Problem, Scenarios, same_jobs
from ...cluster.presets.problems import Regime
from ..comparison import run_all
from ..metrics import scenario_metrics
from ..setting import is_heuristic

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
    outcomes: dict[str, Outcome]  # of the chosen order, by policy

    @property
    def windows(self) -> int:
        """Number of windows."""
        return int(self.unit.max()) + 1

    @property
    def held_out(self) -> bool:
        """Whether windows are left that did not choose."""
        return self.windows >= MIN_HELD_OUT_WINDOWS

    @property
    def reporting(self) -> NDArray[np.bool_]:
        """The scenarios that figures are reported of, shape (scenarios,)."""
        return ~_choosing(self.unit) if self.held_out else np.ones(self.unit.size, dtype=bool)

    @property
    def objective(self) -> str:
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

    A candidate of which a run was cut off before all jobs ended is never chosen.

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
    unit = windows_of(problem.scenarios)
    choosing = _choosing(unit) if unit.max() + 1 >= MIN_HELD_OUT_WINDOWS else np.ones(unit.size, dtype=bool)
    by = weighting or usual_weighting(problem.scenarios.submit_s)
    candidates: list[Candidate] = []
    rows: list[CandidateFigures] = []
    chosen, least, kept = 0, np.inf, dict[str, Outcome]()
    for regime in regimes:
        ruled = problem._replace(rules=regime.over(problem.rules))
        own = [policy for order, policy in (tuned or {}).items() if order == regime.order]
        outcomes = run_all(ruled, [*policies, *own], partial(_report, on_progress, regime.order))
        for name, outcome in outcomes.items():
            candidates.append(Candidate(regime.order, name))
            rows.append(figures_of(outcome, problem.scenarios, problem.cluster.gpu_node.size))
            cost = float(by.cost(rows[-1])[choosing].mean()) if rows[-1].finished.all() else np.inf
            if cost < least or not kept:
                chosen, least, kept = len(rows) - 1, cost, outcomes
    if not np.isfinite(least):
        raise InputError(
            "under every order and policy a run was cut off before all jobs ended", "lower the fault rate or the load"
        )
    figures = CandidateFigures(*(np.array(column) for column in zip(*rows, strict=True)))
    names = frozenset(policy.name for policy in (*policies, *(tuned or {}).values()) if is_heuristic(policy))
    return OrderGrid(tuple(candidates), figures, unit, by, weighting is not None, names, chosen, kept)


def _report(on_progress: Callable[[str, int], None], order: str, policy: str, done: int) -> None:
    on_progress(str(Candidate(order, policy)), done)


def windows_of(scenarios: Scenarios) -> NDArray[np.intp]:
    """Return the number of each scenario's window, in the order in which windows first occur, shape (scenarios,)."""
    label = same_jobs(scenarios)
    _, first = np.unique(label, return_index=True)
    place: NDArray[np.intp] = np.argsort(np.argsort(first, kind="stable"), kind="stable")
    return place[label]


def _choosing(unit: NDArray[np.intp]) -> NDArray[np.bool_]:
    """Return the scenarios of the earlier half of the windows, the smaller one, shape (scenarios,)."""
    early: NDArray[np.bool_] = unit < (int(unit.max()) + 1) // 2
    return early


def figures_of(outcome: Outcome, scenarios: Scenarios, cluster_gpus: int) -> CandidateFigures:
    """Return the figures of one candidate, each of shape (scenarios,)."""
    found = scenario_metrics(outcome, scenarios, cluster_gpus)
    real = np.arange(scenarios.gpus.shape[1]) < scenarios.jobs[:, None]
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


BOUNDS_S = (6 * 3600.0, 24 * 3600.0, 72 * 3600.0, 7 * 86400.0, math.inf)


def other_bounds(
    grid: OrderGrid, problem: Problem, policy: Policy, on_progress: Callable[[str, int], None] = lambda what, done: None
) -> dict[float, CandidateFigures]:
    """Return the figures of the chosen candidate by the ageing bound in seconds; none where no bound changes anything.

    Bounds under which a run is cut off are dropped.

    Args:
        grid: How all candidates did.
        problem: What was run, under the chosen order.
        policy: The chosen policy.
        on_progress: Called with what is run and the number of scenarios that are done.
    """
    found = {}
    for ageing_s in sorted({*BOUNDS_S, problem.rules.ageing_s}):
        ruled = problem._replace(rules=problem.rules._replace(ageing_s=ageing_s))
        outcome = run_all(ruled, [policy], on_progress)[policy.name]
        figures = figures_of(outcome, problem.scenarios, problem.cluster.gpu_node.size)
        if figures.finished.all():
            found[ageing_s] = figures
    costs = [grid.weighting.cost(figures) for figures in found.values()]
    return found if any((cost != costs[0]).any() for cost in costs) else {}
