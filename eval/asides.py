"""What an evaluation compares under its best policy: restart and switch, backups and none, plans of jobs."""

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..agents.protocol import Policy
from ..cluster.model.intervals import IntervalEstimates, ratio_estimates, unit_sums
from ..cluster.model.outcome import Outcome
from ..cluster.model.problem import BEST, FIXED, OFFLOAD, Problem, Scenarios, same_jobs_labels
from ..cluster.presets.problems import Regime
from .comparison import CONFIDENCE, real_jobs, run_one, scenario_metrics
from .table import ShowStatus

HOUR_S = 3600.0
RESTART, SWITCH = "restart", "switch"


class FaultCosts(NamedTuple):
    """What faults cost in each scenario under one handling of them, all of shape (scenarios,)."""

    lost_gpu_s: NDArray[np.float64]  # GPU-time that jobs held without progress that was kept
    jct_s: NDArray[np.float64]  # mean over the jobs
    stops: NDArray[np.float64]
    switches: NDArray[np.float64]


class HandlingComparison(NamedTuple):
    """Restart against switch under one policy."""

    policy: str
    costs: dict[str, FaultCosts]  # by handling
    lost: IntervalEstimates  # GPU-time lost with switching over that with restarting, shape (1,)
    jct_percent: IntervalEstimates  # change of the mean JCT by switching, shape (1,)
    units: int  # windows or workloads, which are the evidence; draws of faults for the same jobs are averaged


def run_to_end(problem: Problem, policy: Policy) -> Outcome | None:
    """Run a policy on every scenario; None where not all jobs end, so that figures would be of other jobs."""
    outcome = run_one(problem, policy)
    return outcome if outcome is not None and (outcome.finished == problem.scenarios.jobs).all() else None


def compare_handlings(problem: Problem, policy: Policy) -> HandlingComparison | None:
    """Run a policy on the scenarios of a problem with both handlings of faults; None where with one not all jobs end.

    All other rules hold for both: checks before starts and detection. Spares are kept with switching only. Intervals
    are by a paired bootstrap over units of the same jobs.
    """
    costs = {}
    for handling in (RESTART, SWITCH):
        rules = problem.rules._replace(switching=handling == SWITCH)
        outcome = run_to_end(problem._replace(rules=rules), policy)
        if outcome is None:
            return None
        costs[handling] = fault_costs(problem, outcome)
    return handling_comparison(policy.name, costs, same_jobs_labels(problem.scenarios))


def fault_costs(problem: Problem, outcome: Outcome) -> FaultCosts:
    """Return what faults cost in an outcome of a problem's scenarios."""
    figures = scenario_metrics(outcome, problem.scenarios, problem.cluster.gpu_node.size)
    return FaultCosts(
        lost_gpu_s=figures.lost_gpu_s + outcome.overhead_gpu_s,
        jct_s=figures.mean_jct_s,
        stops=figures.restarts,
        switches=outcome.switches.astype(np.float64),
    )


def handling_comparison(policy: str, costs: dict[str, FaultCosts], unit: NDArray[np.intp]) -> HandlingComparison:
    """Return both handlings compared, given the unit of each scenario, shape (scenarios,)."""
    switch, restart = costs[SWITCH], costs[RESTART]
    mine, other = (np.array([each.lost_gpu_s, each.jct_s]) for each in (switch, restart))
    lost, jct = _paired_ratio_estimates(mine, other, unit)
    return HandlingComparison(policy, costs, lost, _as_percent_change(jct), int(np.unique(unit).size))


def handling_in_words(handlings: HandlingComparison) -> str:
    """Return the comparison in one sentence."""
    lost_h = {name: costs.lost_gpu_s.mean() / HOUR_S for name, costs in handlings.costs.items()}
    stops = {name: costs.stops.mean() for name, costs in handlings.costs.items()}
    times = _estimate_text(handlings.lost, ".2f", " times")
    jct = _estimate_text(handlings.jct_percent, "+.1f", " %")
    return (
        f"under {handlings.policy}, jobs that switch lose {lost_h[SWITCH]:.1f} GPU-hours to faults, checks and "
        f"restarts in a scenario, jobs that restart {lost_h[RESTART]:.1f}: {times} as many; the mean JCT changes by "
        f"{jct}, and {stops[SWITCH]:.1f} stops take the place of {stops[RESTART]:.1f}"
    )


def handling_document(handlings: HandlingComparison) -> dict[str, Any]:
    """Return the comparison as it is in JSON; means are over scenarios."""
    return {
        "policy": handlings.policy,
        **{
            name: {
                "gpu_hours_lost": float(costs.lost_gpu_s.mean()) / HOUR_S,
                "mean_jct_s": float(costs.jct_s.mean()),
                "stops": float(costs.stops.mean()),
                "switches": float(costs.switches.mean()),
            }
            for name, costs in handlings.costs.items()
        },
        "lost_ratio": _value_and_interval(handlings.lost),
        "jct_change_percent": _value_and_interval(handlings.jct_percent),
        "units": handlings.units,
    }


class BackupComparison(NamedTuple):
    """Backups against none under one policy; means are over scenarios."""

    policy: str
    max_backups: int  # of a job at a time
    jct_s: tuple[float, float]  # mean JCT without and with backups
    jct_percent: IntervalEstimates  # change of the mean JCT by backups, shape (1,)
    held_percent: IntervalEstimates  # change of the GPU-time that jobs hold, shape (1,)
    slowed: float  # how often a running job met slow nodes, with backups
    backups: float
    backup_gpu_s: float
    units: int


def compare_backups(problem: Problem, policy: Policy) -> BackupComparison | None:
    """Run a policy on the scenarios of a problem without backups and with those that its rules allow.

    Where in one of both ways not all jobs end, there is nothing to compare, and None is returned.
    Intervals are by a paired bootstrap over units of the same jobs.
    """
    ways = [problem._replace(rules=problem.rules._replace(backups=backups)) for backups in (0, problem.rules.backups)]
    first, outcome = (run_to_end(way, policy) for way in ways)
    if first is None or outcome is None:
        return None
    without, backed = (
        np.array([fault_costs(problem, each).jct_s, each.busy_gpu_s + each.backup_gpu_s]) for each in (first, outcome)
    )
    unit = same_jobs_labels(problem.scenarios)
    jct, held = map(_as_percent_change, _paired_ratio_estimates(backed, without, unit))
    return BackupComparison(
        policy=policy.name,
        max_backups=problem.rules.backups,
        jct_s=(float(without[0].mean()), float(backed[0].mean())),
        jct_percent=jct,
        held_percent=held,
        slowed=float(outcome.slowed.mean()),
        backups=float(outcome.backups.mean()),
        backup_gpu_s=float(outcome.backup_gpu_s.mean()),
        units=int(np.unique(unit).size),
    )


def backups_in_words(found: BackupComparison) -> str:
    """Return the comparison in one sentence."""
    jct, held = (_estimate_text(each, "+.1f", " %") for each in (found.jct_percent, found.held_percent))
    before_h, after_h = (jct_s / HOUR_S for jct_s in found.jct_s)
    return (
        f"under {found.policy}, backups for up to {found.max_backups} GPUs of a job change the mean JCT by {jct}, from "
        f"{before_h:.2f} h to {after_h:.2f} h, and the GPU-hours held by {held}; in a scenario jobs meet slow nodes "
        f"{found.slowed:.1f} times, and {found.backups:.1f} backups take {found.backup_gpu_s / HOUR_S:.1f} GPU-hours"
    )


def backups_document(found: BackupComparison) -> dict[str, Any]:
    """Return the comparison as it is in JSON; means are over scenarios."""
    return {
        "policy": found.policy,
        "max_backups": found.max_backups,
        "mean_jct_s": dict(zip(("without", "with"), found.jct_s, strict=True)),
        "jct_change_percent": _value_and_interval(found.jct_percent),
        "gpu_hours_held_change_percent": _value_and_interval(found.held_percent),
        "met_slow_nodes": found.slowed,
        "backups": found.backups,
        "backup_gpu_hours": found.backup_gpu_s / HOUR_S,
        "units": found.units,
    }


LAYOUT_FIGURES = ("mean_jct_s", "held_gpu_s", "planned_gpu_s")
IN_WORDS = {
    FIXED: "the fixed layout of each job",
    BEST: "the best plan of each job",
    OFFLOAD: "the best plan of each job, which may put state away,",
}


class LayoutFigures(NamedTuple):
    """Figures of each scenario under one layout of its jobs, all of shape (scenarios,)."""

    mean_jct_s: NDArray[np.float64]
    held_gpu_s: NDArray[np.float64]  # GPU-time that jobs held: also of slow links, restarts and lost work
    planned_gpu_s: NDArray[np.float64]  # GPU-time on the reference placement, without faults


class LayoutComparison(NamedTuple):
    """One layout against another, under one policy."""

    policy: str
    layouts: dict[str, LayoutFigures]  # two: what is compared with, and what takes its place
    percent: dict[str, IntervalEstimates]  # change of each of LAYOUT_FIGURES, shape (1,)
    unit: NDArray[np.intp]  # (scenarios,) window or workload of each, which are the evidence
    jobs: int  # of all scenarios
    planned: int  # of these, with plans
    changed: int  # of these, by another plan than before


def compare_layouts(
    problems: Mapping[str, Problem], policy: Policy, before: str = FIXED, after: str = BEST
) -> LayoutComparison | None:
    """Run a policy on the same jobs and faults by two layouts; None where with one not all jobs end.

    Intervals are by a paired bootstrap over units of the same jobs.

    Args:
        problems: By layout.
        policy: What decides.
        before: Layout that is compared with.
        after: Layout that takes its place.
    """
    both = {name: problems[name] for name in (before, after)}
    layouts = {}
    for name, problem in both.items():
        outcome = run_to_end(problem, policy)
        if outcome is None:
            return None
        layouts[name] = layout_figures(problem, outcome)
    first, second = both[before].scenarios, both[after].scenarios
    jobs, planned, changed = count_planned_jobs(first, second)
    return layout_comparison(policy.name, layouts, same_jobs_labels(first), jobs=jobs, planned=planned, changed=changed)


def layout_figures(problem: Problem, outcome: Outcome) -> LayoutFigures:
    """Return the figures of a problem's layout from an outcome of its scenarios."""
    jobs = problem.scenarios
    jct_s = np.where(real_jobs(jobs), outcome.finish_s - jobs.submit_s, 0.0).sum(axis=1) / jobs.jobs
    return LayoutFigures(jct_s, outcome.busy_gpu_s, (jobs.gpus * jobs.work_s).sum(axis=1))


def count_planned_jobs(first: Scenarios, second: Scenarios) -> tuple[int, int, int]:
    """Return the numbers of all jobs, of those with plans, and of those with another plan in the second layout."""
    planned, same = first.pipeline > 0, np.ones(first.gpus.shape, dtype=np.bool_)
    for name in ("gpus", "pipeline", "tensor", "work_s"):
        same &= getattr(first, name) == getattr(second, name)
    return int(first.jobs.sum()), int(planned.sum()), int((planned & ~same).sum())


def layout_comparison(
    policy: str, layouts: dict[str, LayoutFigures], unit: NDArray[np.intp], *, jobs: int, planned: int, changed: int
) -> LayoutComparison:
    """Return both layouts compared, given the unit of each scenario, shape (scenarios,)."""
    other, mine = (np.array([getattr(figures, name) for name in LAYOUT_FIGURES]) for figures in layouts.values())
    percent = dict(
        zip(LAYOUT_FIGURES, map(_as_percent_change, _paired_ratio_estimates(mine, other, unit)), strict=True)
    )
    return LayoutComparison(policy, layouts, percent, unit, jobs, planned, changed)


def layouts_in_words(savings: LayoutComparison) -> str:
    """Return the comparison in one sentence."""
    jct, held, _ = (_estimate_text(savings.percent[figure], "+.1f", " %") for figure in LAYOUT_FIGURES)
    before, after = savings.layouts
    before_h, after_h = (figures.mean_jct_s.mean() / HOUR_S for figures in savings.layouts.values())
    return (
        f"under {savings.policy}, with {IN_WORDS[after]} in place of {IN_WORDS[before]} the mean JCT changes by "
        f"{jct}, from {before_h:.2f} h to {after_h:.2f} h, and the GPU-hours held by {held}; "
        f"of {savings.jobs} jobs {savings.planned} have plans, and {savings.changed} run by another one"
    )


def layouts_document(savings: LayoutComparison) -> dict[str, Any]:
    """Return the comparison as it is in JSON; means are over scenarios."""
    return {
        "policy": savings.policy,
        **{
            name: {
                "mean_jct_s": float(figures.mean_jct_s.mean()),
                "gpu_hours_held": float(figures.held_gpu_s.mean()) / HOUR_S,
                "gpu_hours_planned": float(figures.planned_gpu_s.mean()) / HOUR_S,
            }
            for name, figures in savings.layouts.items()
        },
        "jct_change_percent": _value_and_interval(savings.percent["mean_jct_s"]),
        "gpu_hours_held_change_percent": _value_and_interval(savings.percent["held_gpu_s"]),
        "gpu_hours_planned_change_percent": _value_and_interval(savings.percent["planned_gpu_s"]),
        "jobs": savings.jobs,
        "planned": savings.planned,
        "changed": savings.changed,
        "units": int(np.unique(savings.unit).size),
    }


PAIRS = (("what planning saves", FIXED, BEST), ("what offload saves", BEST, OFFLOAD))


class Aside(NamedTuple):
    """One such comparison."""

    title: str
    words: str
    document: dict[str, Any]  # for JSON

    @property
    def key(self) -> str:
        """Its key in JSON."""
        return self.title.replace(" ", "_")


def _unknown_aside(title: str) -> Aside:
    return Aside(title, "unknown: in one of both ways not all jobs end", {})


def switching_aside(problem: Problem, policy: Policy, outcome: Outcome, show: ShowStatus) -> list[Aside]:
    """Return what switching saves; nothing where no job met a fault.

    Args:
        problem: What was run, on a user's cluster.
        policy: The best one.
        outcome: Its outcome.
        show: Shows the step in progress.
    """
    if not (outcome.stops.any() or outcome.switches.any()):
        return []
    show(f"running {policy.name} with restarts and with switching")
    found = compare_handlings(problem, policy)
    if found is None:
        return [_unknown_aside("restart or switch")]
    return [Aside("restart or switch", handling_in_words(found), handling_document(found))]


def backup_aside(problem: Problem, policy: Policy, outcome: Outcome, show: ShowStatus) -> list[Aside]:
    """Return what backups save; nothing where there are none, or no job met a slow node.

    The arguments are those of `switching_aside`.
    """
    if problem.rules.backups == 0 or not outcome.slowed.any():
        return []
    show(f"running {policy.name} without backups and with them")
    found = compare_backups(problem, policy)
    if found is None:
        return [_unknown_aside("what backups save")]
    return [Aside("what backups save", backups_in_words(found), backups_document(found))]


def planning_aside(
    layouts: Mapping[str, Problem], compared: Collection[str], regime: Regime, policy: Policy, show: ShowStatus
) -> list[Aside]:
    """Return what plans save, and what offload adds to that where plans know of it; nothing where no job has a plan.

    Args:
        layouts: The problem by each layout of its jobs that fits the cluster.
        compared: Layouts to compare; none without plans.
        regime: Under which the policy runs.
        policy: The best one.
        show: Shows the step in progress.
    """
    ruled = {name: problem._replace(rules=regime.applied_to(problem.rules)) for name, problem in layouts.items()}
    asides = []
    for title, before, after in PAIRS:
        if after not in compared:
            continue
        show(f"running {policy.name} with the plans of two layouts: {before} and {after}")
        fits = before in ruled and after in ruled
        found = compare_layouts(ruled, policy, before, after) if fits else None
        if found is not None:
            asides.append(Aside(title, layouts_in_words(found), layouts_document(found)))
        elif fits:
            asides.append(_unknown_aside(title))
        else:
            asides.append(Aside(title, "unknown: the nodes of this cluster have no room for some of the plans", {}))
    return asides


def _paired_ratio_estimates(
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


def _as_percent_change(ratio: IntervalEstimates) -> IntervalEstimates:
    """Return a ratio as a change in per cent."""
    return IntervalEstimates(*(100.0 * (end - 1.0) for end in ratio))


def _estimate_text(estimates: IntervalEstimates, form: str, unit: str) -> str:
    """Return an estimate in words, with its interval if there is one."""
    value, low, high = (float(end[0]) for end in estimates)
    interval = "" if np.isnan(low) else f" [{low:{form}}, {high:{form}}]"
    return f"{value:{form}}{unit}{interval}"


def _value_and_interval(estimates: IntervalEstimates) -> list[float | None]:
    """Return an estimate and the ends of its interval for JSON, None for what is not known."""
    return [float(end[0]) if np.isfinite(end[0]) else None for end in estimates]
