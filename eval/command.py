"""`longshore evaluate`: from what was asked to tables, figures and files."""

import logging
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..agents.heuristics import HEURISTICS, rivals
from ..agents.protocol import Policy
from ..agents.registry import find_policy
from ..cluster.cluster_file import read_cluster
from ..cluster.errors import InputError
from ..cluster.fault_trace import read_fault_trace
from ..cluster.generator import generate
from ..cluster.outcome import Event, Outcome
from ..cluster.output_file import check_outputs
from ..cluster.profiles import PROFILES
from ..cluster.scenarios import Scenarios
from ..cluster.streams import Stream, stream
from ..cluster.traces.detect import read_trace
from ..cluster.windows import with_gpus_cut
from ..cluster.workload import Workload
from ..envs.batch import Problem
from ..envs.problems import (
    HETERO64_LARGEST,
    LOAD,
    WINDOW_JOBS,
    Regime,
    capacity_of,
    cluster_problem,
    enough_runs,
    hetero64_problem,
    jobs_within,
    window_problem,
    windows_of,
)
from .comparison import Comparison, compare
from .figures import pictures
from .play import play_all, play_recorded
from .report import write_json, write_report
from .table import terminal_tables
from .terminal import Progress

if TYPE_CHECKING:
    from rich.console import Console

log = logging.getLogger(__name__)

TESTED_PART = (0.7, 1.0)  # of a trace, in order of time: presets train and validate on what comes before
WORKLOADS = 200
WINDOWS = 24  # of a trace


@dataclass(frozen=True, slots=True)
class EvaluationRequest:
    """What is to be compared, and where the results go. Paths left None are not read or written."""

    policies: tuple[str, ...]
    trace: Path | None
    cluster: Path | None
    faults: Path | None
    regime: Regime
    workloads: int | None
    runs: int | None
    load: float | None
    seed: int
    heuristics: bool
    report: Path | None
    json_out: Path | None
    command: str
    date: str


def evaluate_request(request: EvaluationRequest, console: "Console", progress: Progress) -> None:
    """Play all policies, print the table, and write the report.

    Raises:
        InputError: If a file, an option or a combination of them cannot be used.
        PluginError: If a policy is not known.
        CheckpointError: If a checkpoint cannot be used.
    """
    _check(request)
    with progress("reading the input"):
        named = [find_policy(name) for name in dict.fromkeys(request.policies)]
        problem, what = _problem(request)
    policies = _policies(request, named, problem)
    _introduce(console, what, problem, policies)
    with progress("setting up") as tell:
        places = {policy.name: place for place, policy in enumerate(policies, start=1)}
        outcomes = play_all(problem, policies, lambda name: tell(f"playing {name} ({places[name]} of {len(policies)})"))
        tell("computing intervals")
        comparison = compare(
            outcomes,
            problem.scenarios,
            problem.cluster.gpu_node.size,
            heuristics=[policy.name for policy in policies if policy.name in HEURISTICS],
            groups=same_jobs(problem.scenarios),
        )
    for table in terminal_tables(comparison, console.width):
        console.print(table)
    facts = _facts(request, problem, what, named)
    title = f"Longshore: {what}"
    if request.json_out:
        write_json(request.json_out, comparison, title=title, facts=facts)
        console.print(f"figures: {request.json_out}", soft_wrap=True)
    if request.report:
        with progress("drawing the report"):
            events = _events(problem, policies, comparison, outcomes)
            drawn = pictures(comparison, outcomes, problem.scenarios, events=events, gpu_node=problem.cluster.gpu_node)
            write_report(request.report, comparison, drawn, title=title, facts=facts)
        console.print(f"report: {request.report}", soft_wrap=True)


def _check(request: EvaluationRequest) -> None:
    """Refuse options that cannot be followed, before anything takes time."""
    inputs = {"--trace": request.trace, "--cluster": request.cluster, "--faults": request.faults}
    inputs |= {f"--policy {name}": Path(name) for name in request.policies if name.endswith(".zip")}
    check_outputs({"--report": request.report, "--json": request.json_out}, inputs)
    if request.cluster is not None:
        return
    if request.faults is not None:
        raise InputError("recorded faults need a cluster", "give --cluster", field="--faults")
    if request.trace is None and request.load is not None:
        raise InputError("the preset submits all jobs at once", "give --trace or --cluster", field="--load")
    if request.trace is None and request.runs is not None:
        raise InputError("the preset draws faults anew for each workload", "set --workloads", field="--runs")


def _introduce(console: "Console", what: str, problem: Problem, policies: list[Policy]) -> None:
    """Say what is played, and which policies cannot do here what they are made for."""
    count = problem.scenarios.jobs.size
    jobs = ", ".join(
        dict.fromkeys(str(number) for number in (problem.scenarios.jobs.min(), problem.scenarios.jobs.max()))
    )
    console.print(f"{what}: {count} scenarios of {jobs} jobs, {len(policies)} policies, the same faults for each")
    if problem.rules.waiting:
        return
    playing = {policy.name for policy in policies}
    absent = [policy.name for policy in HEURISTICS.values() if policy.waits and policy.name not in playing]
    if absent:
        console.print(f"left out: {', '.join(absent)}, which differ from others only with --waiting")
    bound = [policy.name for policy in policies if policy.waits]
    if bound:
        log.warning("%s would wait for better GPUs, but may not; allow it with --waiting", ", ".join(bound))


def _policies(request: EvaluationRequest, named: list[Policy], problem: Problem) -> list[Policy]:
    """Return who plays: those asked for, and all heuristics that have the same actions."""
    asked = {policy.name: policy for policy in named}
    if len(asked) < len(named):
        raise InputError("two policies have one name", "rename a checkpoint", field="--policy")
    for policy in named:
        if HEURISTICS.get(policy.name, policy) != policy:
            raise InputError(f"{policy.name!r} is the name of a heuristic", "rename the checkpoint", field="--policy")
    if request.heuristics:
        others: list[Policy] = [*rivals(problem.rules)]
    else:  # someone must be the bar
        others = [] if asked.keys() & HEURISTICS.keys() else [HEURISTICS["eft"]]
    return [*named, *(policy for policy in others if policy.name not in asked)]


def _problem(request: EvaluationRequest) -> tuple[Problem, str]:
    """Return what is played, and what to call it."""
    if request.cluster is not None:
        return _cluster_problem(request, request.cluster)
    if request.trace is None:
        return hetero64_problem(request.workloads or WORKLOADS, request.seed, request.regime), "preset hetero64"
    workload = _trace(request.trace, HETERO64_LARGEST)
    part = _tested_part(request.trace, workload)
    problem = window_problem(
        workload,
        request.regime,
        windows=request.workloads or WINDOWS,
        runs=request.runs,
        part=part,
        seed=request.seed,
        load=request.load or LOAD,
        disjoint=True,
    )
    return problem, f"windows of {request.trace.name}"


def _trace(path: Path, largest: int) -> Workload:
    """Return the jobs of a trace, and say what is not played as it was recorded."""
    workload = read_trace(path)
    if workload.left_out:
        log.warning("%s: %d rows ask no GPU or never ran, and are left out", path, workload.left_out)
    cut = int((workload.gpus > largest).sum())
    if cut:
        log.warning("%s: %d of %d jobs ask more than %d GPUs, and get so many", path, cut, workload.jobs, largest)
    return workload


def _tested_part(path: Path, workload: Workload) -> tuple[float, float]:
    """Return the last part of a trace, or all of it where that part does not hold a window."""
    if jobs_within(workload, TESTED_PART) >= WINDOW_JOBS:
        return TESTED_PART
    log.warning(
        "%s: only %d jobs, too few to keep the first 70 %% for training; windows come from all of it",
        path, workload.jobs,
    )  # fmt: skip
    return 0.0, 1.0


def _cluster_problem(request: EvaluationRequest, path: Path) -> tuple[Problem, str]:
    setup = read_cluster(path)
    capacity, largest = capacity_of(setup.cluster), max(1, setup.cluster.gpu_node.size * 3 // 4)
    load = request.load or LOAD
    workloads: list[Workload]
    if request.trace is None:
        runs = request.runs or 1
        rng = stream(request.seed, Stream.JOBS)
        workloads = [
            with_gpus_cut(generate(PROFILES["philly"], WINDOW_JOBS, load=load, cluster_gpus=capacity, rng=rng), largest)
            for _ in range(request.workloads or WORKLOADS)
        ]
        what = f"generated jobs on {setup.name}"
    else:
        trace = _trace(request.trace, largest)
        workloads = windows_of(
            trace, request.workloads or WINDOWS, part=_tested_part(request.trace, trace), seed=request.seed,
            load=load, max_gpus=largest, capacity=capacity, disjoint=True,
        )  # fmt: skip
        runs = request.runs or enough_runs(len(workloads))
        what = f"windows of {request.trace.name} on {setup.name}"
    faults = read_fault_trace(request.faults) if request.faults else None
    return cluster_problem(setup, workloads, request.regime, runs=runs, seed=request.seed, faults=faults), what


def same_jobs(scenarios: Scenarios) -> NDArray[np.intp]:
    """Return a label of each scenario, shape (scenarios,), the same where the jobs are the same.

    Such scenarios are no independent evidence, however their faults differ.
    """
    jobs = np.hstack([scenarios.submit_s, scenarios.work_s, scenarios.gpus])
    labels: NDArray[np.intp] = np.unique(jobs, axis=0, return_inverse=True)[1]
    return labels


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


def _facts(request: EvaluationRequest, problem: Problem, what: str, named: list[Policy]) -> dict[str, str]:
    cluster, regime = problem.cluster, request.regime
    ageing = "" if np.isinf(regime.ageing_s) else f", ageing bound {regime.ageing_s / 3600:g} h"
    return {
        "command": request.command,
        "workload": what,
        **{f"policy {policy.name}": policy.about for policy in named if policy.name not in HEURISTICS},
        "cluster": f"{cluster.gpu_node.size} GPUs on {cluster.speed.size} nodes",
        "order": f"{regime.order}{ageing}; policies {'may' if regime.waiting else 'may not'} wait for better GPUs",
        "seed": str(request.seed),
        "version": f"Longshore {version('longshore')}",
        "date": request.date,
    }
