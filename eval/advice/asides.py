"""What an evaluation adds for its best policy: gains from switching, backups, and plans."""

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...agents.protocol import Policy
from ...cluster.model.intervals import Estimates
from ...cluster.model.outcome import Outcome, metrics
from ...cluster.model.problem import BEST, FIXED, OFFLOAD, Problem, Scenarios, same_jobs
from ...cluster.presets.problems import Regime
from ..comparison import run_all
from ..table import Tell
from .choice import ends, in_percent, ratios_by_unit, with_interval

HOUR_S = 3600.0
RESTART, SWITCH = "restart", "switch"


class Held(NamedTuple):
    """What a handling of faults made of each scenario, all of shape (scenarios,)."""

    lost_gpu_s: NDArray[np.float64]  # GPU-time that jobs held without progress that was kept
    jct_s: NDArray[np.float64]  # mean over the jobs
    stops: NDArray[np.float64]
    switches: NDArray[np.float64]


class Handlings(NamedTuple):
    """Restart against switch under one policy."""

    policy: str
    held: dict[str, Held]  # by handling
    lost: Estimates  # GPU-time lost with switching over that with restarting, shape (1,)
    jct_percent: Estimates  # change of the mean JCT by switching, shape (1,)
    units: int  # windows or workloads, which are the evidence; draws of faults for the same jobs are averaged


def compare_handlings(problem: Problem, policy: Policy) -> Handlings:
    """Run a policy on the scenarios of a problem with both handlings of faults.

    All else that the rules say holds for both: checks before starts and detection. Spares are kept with switching
    only. Intervals are by a paired bootstrap over units of the same jobs.
    """
    held = {}
    for handling in (RESTART, SWITCH):
        rules = problem.rules._replace(switching=handling == SWITCH)
        outcome = run_all(problem._replace(rules=rules), [policy])[policy.name]
        held[handling] = held_of(problem, outcome)
    return handlings_of(policy.name, held, same_jobs(problem.scenarios))


def held_of(problem: Problem, outcome: Outcome) -> Held:
    """Return what an outcome of a problem's scenarios says of faults."""
    scenarios = problem.scenarios
    figures = metrics(
        outcome, scenarios.jobs, scenarios.gpus, scenarios.submit_s, problem.cluster.gpu_node.size, scenarios.work_s
    )
    return Held(
        lost_gpu_s=figures.lost_gpu_s + outcome.overhead_gpu_s,
        jct_s=figures.mean_jct_s,
        stops=figures.restarts,
        switches=outcome.switches.astype(np.float64),
    )


def handlings_of(policy: str, held: dict[str, Held], unit: NDArray[np.intp]) -> Handlings:
    """Return both handlings compared, given the unit of each scenario, shape (scenarios,)."""
    switch, restart = held[SWITCH], held[RESTART]
    mine, other = (np.array([it.lost_gpu_s, it.jct_s]) for it in (switch, restart))
    lost, jct = ratios_by_unit(mine, other, unit)
    return Handlings(policy, held, lost, in_percent(jct), int(np.unique(unit).size))


def words_of_handling(handlings: Handlings) -> str:
    """Return the comparison in one sentence."""
    lost_h = {name: held.lost_gpu_s.mean() / HOUR_S for name, held in handlings.held.items()}
    stops = {name: held.stops.mean() for name, held in handlings.held.items()}
    times = with_interval(handlings.lost, ".2f", " times")
    jct = with_interval(handlings.jct_percent, "+.1f", " %")
    return (
        f"under {handlings.policy}, jobs that switch lose {lost_h[SWITCH]:.1f} GPU-hours to faults, checks and "
        f"restarts in a scenario, jobs that restart {lost_h[RESTART]:.1f}: {times} as many; the mean JCT changes by "
        f"{jct}, and {stops[SWITCH]:.1f} stops take the place of {stops[RESTART]:.1f}"
    )


def document_of_handling(handlings: Handlings) -> dict[str, Any]:
    """Return the comparison as JSON has it; means are over scenarios."""
    return {
        "policy": handlings.policy,
        **{
            name: {
                "gpu_hours_lost": float(held.lost_gpu_s.mean()) / HOUR_S,
                "mean_jct_s": float(held.jct_s.mean()),
                "stops": float(held.stops.mean()),
                "switches": float(held.switches.mean()),
            }
            for name, held in handlings.held.items()
        },
        "lost_ratio": ends(handlings.lost),
        "jct_change_percent": ends(handlings.jct_percent),
        "units": handlings.units,
    }


class Backed(NamedTuple):
    """Backups against none under one policy; means are over scenarios."""

    policy: str
    most: int  # GPUs of a job that may have one at a time
    jct_s: tuple[float, float]  # mean JCT without and with backups
    jct_percent: Estimates  # change of the mean JCT by backups, shape (1,)
    held_percent: Estimates  # change of the GPU-time that jobs hold, shape (1,)
    slowed: float  # how often a running job met slow nodes, with backups
    backups: float
    backup_gpu_s: float
    units: int


def compare_backups(problem: Problem, policy: Policy) -> Backed:
    """Run a policy on the scenarios of a problem without backups and with those that its rules allow.

    Intervals are by a paired bootstrap over units of the same jobs.
    """
    both = []
    for backups in (0, problem.rules.backups):
        outcome = run_all(problem._replace(rules=problem.rules._replace(backups=backups)), [policy])[policy.name]
        held_gpu_s = outcome.busy_gpu_s + outcome.backup_gpu_s
        both.append(np.array([held_of(problem, outcome).jct_s, held_gpu_s]))
    without, backed = both
    unit = same_jobs(problem.scenarios)
    jct, held = map(in_percent, ratios_by_unit(backed, without, unit))
    return Backed(
        policy=policy.name,
        most=problem.rules.backups,
        jct_s=(float(without[0].mean()), float(backed[0].mean())),
        jct_percent=jct,
        held_percent=held,
        slowed=float(outcome.slowed.mean()),
        backups=float(outcome.backups.mean()),
        backup_gpu_s=float(outcome.backup_gpu_s.mean()),
        units=int(np.unique(unit).size),
    )


def backups_in_words(found: Backed) -> str:
    """Return the comparison in one sentence."""
    jct, held = (with_interval(each, "+.1f", " %") for each in (found.jct_percent, found.held_percent))
    before_h, after_h = (jct_s / HOUR_S for jct_s in found.jct_s)
    return (
        f"under {found.policy}, backups for up to {found.most} GPUs of a job change the mean JCT by {jct}, from "
        f"{before_h:.2f} h to {after_h:.2f} h, and the GPU-hours held by {held}; in a scenario jobs meet slow nodes "
        f"{found.slowed:.1f} times, and {found.backups:.1f} backups take {found.backup_gpu_s / HOUR_S:.1f} GPU-hours"
    )


def backups_document(found: Backed) -> dict[str, Any]:
    """Return the comparison as JSON has it; means are over scenarios."""
    return {
        "policy": found.policy,
        "most_backups": found.most,
        "mean_jct_s": dict(zip(("without", "with"), found.jct_s, strict=True)),
        "jct_change_percent": ends(found.jct_percent),
        "gpu_hours_held_change_percent": ends(found.held_percent),
        "met_slow_nodes": found.slowed,
        "backups": found.backups,
        "backup_gpu_hours": found.backup_gpu_s / HOUR_S,
        "units": found.units,
    }


FIGURES = ("mean_jct_s", "held_gpu_s", "planned_gpu_s")
IN_WORDS = {
    FIXED: "the fixed layout of each job",
    BEST: "the best plan of each job",
    OFFLOAD: "the best plan of each job, which may put state away,",
}


class Planned(NamedTuple):
    """What a layout made of each scenario, all of shape (scenarios,)."""

    mean_jct_s: NDArray[np.float64]
    held_gpu_s: NDArray[np.float64]  # GPU-time that jobs held: also of slow links, restarts and lost work
    planned_gpu_s: NDArray[np.float64]  # GPU-time on the reference placement, without faults
    finished: NDArray[np.bool_]  # whether all jobs ended


class Counts(NamedTuple):
    """Jobs of all scenarios."""

    jobs: int
    planned: int  # of these, with plans
    changed: int  # of these, whose plan is another one


class Savings(NamedTuple):
    """One layout against another, under one policy."""

    policy: str
    layouts: dict[str, Planned]  # two: what is compared with, and what takes its place
    percent: dict[str, Estimates]  # change of each of FIGURES, shape (1,)
    counts: Counts
    unit: NDArray[np.intp]  # (scenarios,) window or workload of each, which are the evidence


def compare_layouts(
    problems: Mapping[str, Problem], policy: Policy, before: str = FIXED, after: str = BEST
) -> Savings | None:
    """Run a policy on the same jobs and faults by two layouts; None where jobs of one did not all end.

    Intervals are by a paired bootstrap over units of the same jobs.

    Args:
        problems: By layout.
        policy: Who runs.
        before: Layout that is compared with.
        after: Layout that takes its place.
    """
    both = {name: problems[name] for name in (before, after)}
    layouts = {name: planned_of(it, run_all(it, [policy])[policy.name]) for name, it in both.items()}
    if not all(it.finished.all() for it in layouts.values()):
        return None
    first, second = both[before].scenarios, both[after].scenarios
    return savings_of(policy.name, layouts, counts_of(first, second), same_jobs(first))


def planned_of(problem: Problem, outcome: Outcome) -> Planned:
    """Return what an outcome of a problem's scenarios says of its layout."""
    jobs = problem.scenarios
    real = np.arange(jobs.gpus.shape[1]) < jobs.jobs[:, None]
    jct_s = np.where(real, outcome.finish_s - jobs.submit_s, 0.0).sum(axis=1) / jobs.jobs
    return Planned(jct_s, outcome.busy_gpu_s, (jobs.gpus * jobs.work_s).sum(axis=1), outcome.finished == jobs.jobs)


def counts_of(first: Scenarios, second: Scenarios) -> Counts:
    """Return how many jobs have plans and run by another one, given the scenarios of two layouts."""
    planned, same = first.pipeline > 0, np.ones(first.gpus.shape, dtype=np.bool_)
    for name in ("gpus", "pipeline", "tensor", "work_s"):
        same &= getattr(first, name) == getattr(second, name)
    return Counts(int(first.jobs.sum()), int(planned.sum()), int((planned & ~same).sum()))


def savings_of(policy: str, layouts: dict[str, Planned], counts: Counts, unit: NDArray[np.intp]) -> Savings:
    """Return both layouts compared, given the unit of each scenario, shape (scenarios,)."""
    other, mine = (np.array([getattr(it, figure) for figure in FIGURES]) for it in layouts.values())
    percent = dict(zip(FIGURES, map(in_percent, ratios_by_unit(mine, other, unit)), strict=True))
    return Savings(policy, layouts, percent, counts, unit)


def words_of_plans(savings: Savings) -> str:
    """Return the comparison in one sentence."""
    jct, held, _ = (with_interval(savings.percent[figure], "+.1f", " %") for figure in FIGURES)
    jobs, planned, changed = savings.counts
    before, after = savings.layouts
    before_h, after_h = (it.mean_jct_s.mean() / HOUR_S for it in savings.layouts.values())
    return (
        f"under {savings.policy}, with {IN_WORDS[after]} in place of {IN_WORDS[before]} the mean JCT changes by "
        f"{jct}, from {before_h:.2f} h to {after_h:.2f} h, and the GPU-hours held by {held}; "
        f"of {jobs} jobs {planned} have plans, and {changed} run by another one"
    )


def document_of_plans(savings: Savings) -> dict[str, Any]:
    """Return the comparison as JSON has it; means are over scenarios."""
    return {
        "policy": savings.policy,
        **{
            name: {
                "mean_jct_s": float(it.mean_jct_s.mean()),
                "gpu_hours_held": float(it.held_gpu_s.mean()) / HOUR_S,
                "gpu_hours_planned": float(it.planned_gpu_s.mean()) / HOUR_S,
            }
            for name, it in savings.layouts.items()
        },
        "jct_change_percent": ends(savings.percent["mean_jct_s"]),
        "gpu_hours_held_change_percent": ends(savings.percent["held_gpu_s"]),
        "gpu_hours_planned_change_percent": ends(savings.percent["planned_gpu_s"]),
        **savings.counts._asdict(),
        "units": int(np.unique(savings.unit).size),
    }


PAIRS = (("what planning saves", FIXED, BEST), ("what offload saves", BEST, OFFLOAD))


class Aside(NamedTuple):
    """One such answer."""

    title: str
    words: str
    document: dict[str, Any]  # as JSON has it

    @property
    def key(self) -> str:
        """Under which JSON has it."""
        return self.title.replace(" ", "_")


def switching_aside(problem: Problem, policy: Policy, outcome: Outcome, tell: Tell) -> list[Aside]:
    """Return what switching saves; nothing where no job met a fault.

    Args:
        problem: What was run, on a user's cluster.
        policy: The best one.
        outcome: Its outcome.
        tell: Told what is done.
    """
    if not (outcome.stops.any() or outcome.switches.any()):
        return []
    tell(f"running {policy.name} with restarts and with switching")
    found = compare_handlings(problem, policy)
    return [Aside("restart or switch", words_of_handling(found), document_of_handling(found))]


def backup_aside(problem: Problem, policy: Policy, outcome: Outcome, tell: Tell) -> list[Aside]:
    """Return what backups save; nothing where there are none, or no job met a slow node.

    The arguments are those of `switching_aside`.
    """
    if problem.rules.backups == 0 or not outcome.slowed.any():
        return []
    tell(f"running {policy.name} without backups and with them")
    found = compare_backups(problem, policy)
    return [Aside("what backups save", backups_in_words(found), backups_document(found))]


def planning_aside(
    layouts: Mapping[str, Problem], compared: Collection[str], regime: Regime, policy: Policy, tell: Tell
) -> list[Aside]:
    """Return what plans save, and what offload adds to that where plans know of it; nothing where no job has a plan.

    Args:
        layouts: The problem by each layout of its jobs that fits the cluster.
        compared: Layouts that are to be compared; none without plans.
        regime: Under which the policy runs.
        policy: The best one.
        tell: Told what is done.
    """
    ruled = {name: it._replace(rules=regime.over(it.rules)) for name, it in layouts.items()}
    asides = []
    for title, before, after in PAIRS:
        if after not in compared:
            continue
        tell(f"running {policy.name} with the plans of two layouts: {before} and {after}")
        if before in ruled and after in ruled:
            found = compare_layouts(ruled, policy, before, after)
            words = "not told: with one of the layouts jobs had not ended at the cut"
        else:
            found, words = None, "not told: the nodes of this cluster have no room for some of the plans"
        if found is not None:
            words = words_of_plans(found)
        asides.append(Aside(title, words, {} if found is None else document_of_plans(found)))
    return asides
