"""`longshore evaluate`: from what was asked to tables, figures and files."""

from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..agents.heuristics import HEURISTICS
from ..agents.protocol import Policy
from ..agents.registry import find_policy
from ..cluster.cluster_file import read_cluster
from ..cluster.errors import InputError
from ..cluster.fault_trace import read_fault_trace
from ..cluster.generator import generate
from ..cluster.outcome import Event, Outcome
from ..cluster.profiles import PROFILES
from ..cluster.topology import speed_sum
from ..cluster.traces.detect import read_trace
from ..cluster.windows import with_gpus_cut
from ..cluster.workload import Workload
from ..envs.batch import Problem
from ..envs.problems import LOAD, WINDOW_JOBS, Regime, cluster_problem, hetero64_problem, window_problem, windows_of
from .comparison import Comparison, compare
from .figures import pictures
from .play import play_all, play_recorded, rivals
from .report import write_json, write_report
from .table import terminal_table

if TYPE_CHECKING:
    from rich.console import Console

TESTED_PART = (0.7, 1.0)  # of a trace, in order of time: presets train and validate on what comes before
RUNS = 8
WINDOWS = 24


@dataclass(frozen=True, slots=True)
class EvaluationRequest:
    """What is to be compared, and where the results go. Paths left None are not read or written."""

    policies: tuple[str, ...]
    trace: Path | None
    cluster: Path | None
    faults: Path | None
    regime: Regime
    workloads: int
    runs: int | None
    load: float | None
    seed: int
    heuristics: bool
    report: Path | None
    json_out: Path | None
    command: str
    date: str


def evaluate_request(request: EvaluationRequest, console: "Console") -> None:
    """Play all policies, print the table, and write the report.

    Raises:
        InputError: If a file, an option or a combination of them cannot be used.
        PluginError: If a policy is not known.
        CheckpointError: If a checkpoint cannot be used.
    """
    learned = [find_policy(name) for name in request.policies]
    problem, runs, what = _problem(request)
    policies = _policies(request, learned, problem)
    scenarios = problem.scenarios.jobs.size
    console.print(f"{what}: {scenarios} scenarios, {len(policies)} policies, the same faults for each")
    with console.status("starting ...") as status:
        outcomes = play_all(problem, policies, lambda name: status.update(f"playing {name} ..."))
        status.update("intervals ...")
        comparison = compare(
            outcomes,
            problem.scenarios,
            problem.cluster.gpu_node.size,
            heuristics=[policy.name for policy in policies if policy.name in HEURISTICS],
            groups=np.arange(scenarios) // runs,
        )
    console.print(terminal_table(comparison))
    facts = _facts(request, problem, what)
    title = f"Longshore: {what}"
    if request.json_out:
        write_json(request.json_out, comparison, title=title, facts=facts)
        console.print(f"figures: {request.json_out}")
    if request.report:
        with console.status("drawing the report ..."):
            events = _events(problem, policies, comparison, outcomes)
            drawn = pictures(comparison, outcomes, problem.scenarios, events=events, gpu_node=problem.cluster.gpu_node)
            write_report(request.report, comparison, drawn, title=title, facts=facts)
        console.print(f"report: {request.report}")


def _policies(request: EvaluationRequest, learned: list[Policy], problem: Problem) -> list[Policy]:
    """Return who plays: those asked for, and all heuristics that have the same actions."""
    asked = {policy.name: policy for policy in learned}
    if len(asked) < len(learned):
        raise InputError("two policies have one name", "rename a checkpoint", field="--policy")
    others = rivals(list(HEURISTICS.values()), problem) if request.heuristics else [HEURISTICS["eft"]]
    return [*asked.values(), *(policy for policy in others if policy.name not in asked)]


def _problem(request: EvaluationRequest) -> tuple[Problem, int, str]:
    """Return what is played, how many scenarios in a row share a workload, and what to call it."""
    if request.cluster is not None:
        return _cluster_problem(request, request.cluster)
    if request.faults is not None:
        raise InputError("recorded faults need a cluster", "give --cluster", field="--faults")
    if request.trace is None:
        return hetero64_problem(request.workloads, request.seed, request.regime), 1, "preset hetero64"
    runs = request.runs or RUNS
    problem = window_problem(
        read_trace(request.trace),
        request.regime,
        windows=min(request.workloads, WINDOWS),
        runs=runs,
        part=TESTED_PART,
        seed=request.seed,
        load=request.load or LOAD,
    )
    return problem, runs, f"windows of {request.trace.name}"


def _cluster_problem(request: EvaluationRequest, path: Path) -> tuple[Problem, int, str]:
    setup = read_cluster(path)
    gpus, capacity = setup.cluster.gpu_node.size, round(speed_sum(setup.cluster))
    workloads: list[Workload]
    if request.trace is None:
        runs, load = request.runs or 1, request.load or LOAD
        rng = np.random.default_rng(request.seed)
        workloads = [
            with_gpus_cut(
                generate(PROFILES["philly"], WINDOW_JOBS, load=load, cluster_gpus=capacity, rng=rng), gpus * 3 // 4
            )
            for _ in range(request.workloads)
        ]
        what = f"generated jobs on {setup.name}"
    else:
        runs = request.runs or RUNS
        workloads = windows_of(
            read_trace(request.trace), min(request.workloads, WINDOWS), part=TESTED_PART, seed=request.seed,
            load=request.load or LOAD, max_gpus=max(1, gpus * 3 // 4), capacity=capacity,
        )  # fmt: skip
        what = f"windows of {request.trace.name} on {setup.name}"
    faults = read_fault_trace(request.faults) if request.faults else None
    return cluster_problem(setup, workloads, request.regime, runs=runs, seed=request.seed, faults=faults), runs, what


def _events(
    problem: Problem, policies: list[Policy], comparison: Comparison, outcomes: dict[str, Outcome]
) -> dict[str, list[Event]]:
    """Return the events of a typical scenario under the best heuristic and the policies that challenge it."""
    best = comparison.best_heuristic
    shown = [*comparison.challengers[:2], best]
    rival, own = outcomes[best].makespan_s, outcomes[shown[0]].makespan_s
    typical = int(np.argsort(own - rival, kind="stable")[own.size // 2])
    by_name = {policy.name: policy for policy in policies}
    return {name: play_recorded(problem, by_name[name], typical)[1] for name in dict.fromkeys(shown)}


def _facts(request: EvaluationRequest, problem: Problem, what: str) -> dict[str, str]:
    cluster, regime = problem.cluster, request.regime
    ageing = "" if np.isinf(regime.ageing_s) else f", ageing bound {regime.ageing_s / 3600:g} h"
    return {
        "command": request.command,
        "workload": what,
        "cluster": f"{cluster.gpu_node.size} GPUs on {cluster.speed.size} nodes",
        "order": f"{regime.order}{ageing}; policies {'may' if regime.waiting else 'may not'} wait for better GPUs",
        "seed": str(request.seed),
        "version": f"Longshore {version('longshore')}",
        "date": request.date,
    }
