"""What the chosen order and policy change against the common ones, per month and with confidence intervals."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...cluster.model.intervals import IntervalEstimates, holm, mean_p_values, ratio_estimates, unit_sums
from ...cluster.model.problem import Problem
from ...cluster.model.topology import speed_sum
from ..comparison import EQUAL_SHARE
from .grid import COMMON, Candidate, CandidateFigures, OrderGrid

CONFIDENCE = 0.95
MONTH_S = 365.25 / 12 * 86400.0
QUARTILES_FROM, HALVES_FROM = 8, 4  # windows: fewer are cut into halves, or into nothing
MIN_SPREAD = 0.02  # windows that differ by a smaller share in a trait are not grouped by it


class Against(NamedTuple):
    """All candidates against one of them, on the windows that are reported."""

    rival: Candidate
    percent: IntervalEstimates  # (candidates,) of the objective, in per cent of the rival's
    p: NDArray[np.float64]  # (candidates,) that there is no difference, adjusted for the whole table


class WindowGroup(NamedTuple):
    """Windows that are alike in a trait."""

    what: str  # the trait
    which: str  # such as "lowest quarter"
    low: float
    high: float
    windows: int
    losses: int
    percent: IntervalEstimates  # one number each


class Bound(NamedTuple):
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
    against: tuple[Against, ...]  # what is common, then the second
    losses: int  # reported windows in which EASY with pack is better
    parts: tuple[WindowGroup, ...]
    saving: HoursSaved | None  # None where EASY with pack did not end
    bounds: tuple[Bound, ...]  # ageing bounds that the chosen might have instead
    noun: Literal["window", "workload"]  # what the units are

    @property
    def row(self) -> int:
        """Place of what was chosen."""
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
    shown = grid.reporting
    unit = np.unique(grid.unit[shown], return_inverse=True)[1]
    cost = grid.cost[:, shown]
    mean, bound_s = cost.mean(axis=1), float(least_s.mean())
    second, heuristic = (None if row is None else grid.candidates[row] for row in (_second(grid), _heuristic(grid)))
    rivals = [*COMMON, *(one for one in (second, heuristic) if one is not None)]
    easy_ended = bool(grid.ended[grid.candidates.index(COMMON[-1])])
    worse = _by_unit(cost[grid.chosen], unit) > _by_unit(cost[grid.candidates.index(COMMON[-1])], unit) * (
        1 + EQUAL_SHARE
    )
    return OrderAdvice(
        grid=grid,
        chosen=grid.candidates[grid.chosen],
        second=second,
        heuristic=heuristic,
        units=int(unit.max()) + 1,
        mean=mean,
        bound_s=bound_s,
        above_percent=100 * (mean / bound_s - 1),
        against=tuple(_against(grid, rival, cost, unit) for rival in dict.fromkeys(rivals)),
        losses=int(worse.sum()),
        parts=_parts(grid, problem, shown, unit, worse) if easy_ended else (),
        saving=_saving(grid, problem, shown, unit) if easy_ended else None,
        bounds=tuple(
            _bound(grid, ageing_s, figures, shown, unit) for ageing_s, figures in sorted((ageing or {}).items())
        ),
        noun=noun,
    )


def _bound(
    grid: OrderGrid, ageing_s: float, figures: CandidateFigures, shown: NDArray[np.bool_], unit: NDArray[np.intp]
) -> Bound:
    own, base = grid.weighting.cost(figures)[None, shown], grid.cost[grid.chosen, shown][None]
    percent = ratio_estimates(100 * unit_sums(own - base, unit), unit_sums(base, unit), confidence=CONFIDENCE)
    tail = figures.p99_jct_s[shown].mean(), figures.longest_wait_s[shown].mean()
    return Bound(ageing_s, float(own.mean()), float(tail[0]), float(tail[1]), percent)


def _second(grid: OrderGrid) -> int | None:
    """Return the next best candidate by the windows that chose, None if there is none."""
    cost = _choosing_cost(grid)
    cost[np.abs(cost - cost[grid.chosen]) <= EQUAL_SHARE * cost[grid.chosen]] = np.inf  # the same under another name
    best = int(cost.argmin())
    return best if np.isfinite(cost[best]) else None


def _heuristic(grid: OrderGrid) -> int | None:
    """Return the best heuristic by the windows that chose, None if it was chosen or the user gave no objective."""
    if not grid.is_users_objective or grid.candidates[grid.chosen].policy in grid.heuristics:
        return None
    is_one = np.array([candidate.policy in grid.heuristics for candidate in grid.candidates])
    cost = np.where(is_one, _choosing_cost(grid), np.inf)
    return int(cost.argmin()) if np.isfinite(cost).any() else None


def _choosing_cost(grid: OrderGrid) -> NDArray[np.float64]:
    """Return the mean objective on the windows that chose, shape (candidates,); inf of those that did not end."""
    choosing = ~grid.reporting if grid.held_out else grid.reporting
    return np.where(grid.ended, grid.cost[:, choosing].mean(axis=1), np.inf)


def _by_unit(values: NDArray[np.float64], unit: NDArray[np.intp]) -> NDArray[np.float64]:
    return np.asarray(np.bincount(unit, weights=values), dtype=np.float64)


def _against(grid: OrderGrid, rival: Candidate, cost: NDArray[np.float64], unit: NDArray[np.intp]) -> Against:
    base = unit_sums(np.broadcast_to(cost[grid.candidates.index(rival)], cost.shape), unit)
    change = unit_sums(cost, unit) - base
    p = mean_p_values(change, base)
    p[grid.candidates.index(rival)] = np.nan
    return Against(rival, ratio_estimates(100 * change, base, confidence=CONFIDENCE), holm(p))


def _parts(
    grid: OrderGrid, problem: Problem, shown: NDArray[np.bool_], unit: NDArray[np.intp], worse: NDArray[np.bool_]
) -> tuple[WindowGroup, ...]:
    """Return how the chosen does against EASY with pack in windows grouped by each trait."""
    count = int(unit.max()) + 1
    names = _names(count)
    own, base = (_by_unit(grid.cost[row, shown], unit) for row in (grid.chosen, grid.candidates.index(COMMON[-1])))
    found = []
    for what, values in _traits(grid, problem).items():
        value = _by_unit(values[shown], unit) / np.bincount(unit)
        if not names or np.ptp(value) <= MIN_SPREAD * np.abs(value).max():
            continue
        for which, members in zip(names, np.array_split(np.argsort(value, kind="stable"), len(names)), strict=True):
            percent = ratio_estimates(100 * (own - base)[None, members], base[None, members], confidence=CONFIDENCE)
            ends = float(value[members].min()), float(value[members].max())
            losses = int(worse[members].sum())
            found.append(WindowGroup(what, which, *ends, members.size, losses, percent))
    return tuple(found)


def _names(windows: int) -> tuple[str, ...]:
    if windows >= QUARTILES_FROM:
        return "lowest quarter", "second quarter", "third quarter", "highest quarter"
    return ("lower half", "higher half") if windows >= HALVES_FROM else ()


def _traits(grid: OrderGrid, problem: Problem) -> dict[str, NDArray[np.float64]]:
    """Return the traits by which windows are grouped, each of shape (scenarios,)."""
    scenarios, easy = problem.scenarios, grid.candidates.index(COMMON[-1])
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


def _saving(grid: OrderGrid, problem: Problem, shown: NDArray[np.bool_], unit: NDArray[np.intp]) -> HoursSaved:
    """Return what the chosen saves against EASY with pack, a month where jobs arrive over time."""
    easy, own = grid.candidates.index(COMMON[-1]), grid.chosen
    jobs = problem.scenarios.jobs[shown].astype(np.float64)
    span_s = problem.scenarios.submit_s[shown].max(axis=1, initial=0.0)
    monthly = bool((span_s > 0.0).all())
    periods = _by_unit(span_s / MONTH_S if monthly else np.ones(span_s.size), unit)[None]
    parts = (grid.figures.jct_s, grid.figures.wait_s, grid.figures.held_gpu_s, grid.figures.lost_gpu_s)
    saved = unit_sums(np.array([(part[easy] - part[own])[shown] for part in parts]) / 3600.0, unit)
    hours = ratio_estimates(saved, np.broadcast_to(periods, saved.shape), confidence=CONFIDENCE)
    jct, wait, held, lost = (IntervalEstimates(*(end[index] for end in hours)) for index in range(len(parts)))
    return HoursSaved(jct, wait, held, lost, float(jobs.sum() / periods.sum()), monthly)


def ratios_by_unit(
    mine: NDArray[np.float64], other: NDArray[np.float64], unit: NDArray[np.intp]
) -> list[IntervalEstimates]:
    """Return the ratio of each figure over all units, by a paired bootstrap over units.

    Args:
        mine: The figures of one way, shape (figures, scenarios).
        other: Those of the other way, of the same shape.
        unit: Unit of each scenario, shape (scenarios,).

    Returns:
        An estimate of shape (1,) for each figure.
    """
    ratios = ratio_estimates(unit_sums(mine, unit), unit_sums(other, unit), confidence=CONFIDENCE)
    return [IntervalEstimates(*(end[[row]] for end in ratios)) for row in range(len(mine))]


def in_percent(ratio: IntervalEstimates) -> IntervalEstimates:
    """Return a ratio as a change in per cent."""
    return IntervalEstimates(*(100.0 * (end - 1.0) for end in ratio))


def with_interval(estimates: IntervalEstimates, form: str, unit: str) -> str:
    """Return an estimate in words, with its interval if there is one."""
    value, low, high = (float(end[0]) for end in estimates)
    interval = "" if np.isnan(low) else f" [{low:{form}}, {high:{form}}]"
    return f"{value:{form}}{unit}{interval}"


def ends(estimates: IntervalEstimates) -> list[float | None]:
    """Return an estimate and the ends of its interval for JSON, None for what is not known."""
    return [float(end[0]) if np.isfinite(end[0]) else None for end in estimates]
