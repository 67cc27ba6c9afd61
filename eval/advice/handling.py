"""What switching saves where GPUs fail, and what backups save where nodes become slow: the same scenarios both ways."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...agents.protocol import Policy
from ...cluster.model.intervals import Estimates
from ...cluster.model.outcome import Outcome, metrics
from ...cluster.model.problem import Problem
from ...cluster.model.scenarios import same_jobs
from ..run import run_all
from .intervals import ends, in_percent, ratios_by_unit, with_interval

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


def words_of(handlings: Handlings) -> str:
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


def document_of(handlings: Handlings) -> dict[str, Any]:
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
