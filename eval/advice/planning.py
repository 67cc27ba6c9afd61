"""What plans save: the same jobs and faults with the plans of two layouts, such as a fixed one and the best."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...agents.protocol import Policy
from ...cluster.model.intervals import Estimates
from ...cluster.model.layouts import BEST, FIXED, OFFLOAD
from ...cluster.model.outcome import Outcome
from ...cluster.model.problem import Problem
from ...cluster.model.scenarios import Scenarios, same_jobs
from ..run import run_all
from .intervals import ends, in_percent, ratios_by_unit, with_interval

HOUR_S = 3600.0
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


def words_of(savings: Savings) -> str:
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


def document_of(savings: Savings) -> dict[str, Any]:
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
