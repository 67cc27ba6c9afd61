"""`longshore evaluate`: from what was asked to tables, figures and files."""

import logging
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..agents.heuristics.heuristics import HEURISTICS, rivals
from ..agents.protocol import Policy
from ..agents.registry import find_policy
from ..cluster.files.errors import InputError
from ..cluster.files.output_file import check_outputs, make_folder
from ..cluster.model.outcome import Event, Outcome, overloaded
from ..cluster.model.problem import Problem
from ..cluster.model.scenarios import Scenarios, same_jobs
from .comparison import Comparison, compare
from .figures.pictures import pictures, write_pictures
from .report import write_json, write_report
from .run import run_all, run_recorded
from .setting import EvaluationRequest, Setting, setting_of
from .table import terminal_tables
from .terminal import Progress, Tell

if TYPE_CHECKING:
    from rich.console import Console

log = logging.getLogger(__name__)

OVERLOADED_SHARE = 0.5  # of the scenarios: a burst at the end of a few of them is no overload


def evaluate_request(request: EvaluationRequest, console: "Console", progress: Progress) -> None:
    """Run all policies, print the table, and write the report.

    Raises:
        InputError: If a file, an option or a combination of them cannot be used.
        PluginError: If a policy is not known, or a metric of another package gives no numbers.
        CheckpointError: If a checkpoint cannot be used.
    """
    _check(request)
    with progress("reading the input"):
        named = [find_policy(name) for name in dict.fromkeys(request.policies)]
        setting = setting_of(request)
    problem, what = setting.problem, setting.what
    policies = _policies(request, named, problem)
    _introduce(console, what, problem, policies)
    with progress("setting up") as tell:
        outcomes = run_all(problem, policies, _teller(tell, policies, problem.scenarios.jobs.size))
        overload = overload_text(outcomes, problem.scenarios, least_share=0.0)
        if heavy := overload_text(outcomes, problem.scenarios, least_share=OVERLOADED_SHARE):
            log.warning("overload: the queue grew until the last submission, or the run was cut off, under %s", heavy)
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
    facts = _facts(request, setting, named) | {"overload": overload or "in no scenario"}
    title = f"Longshore: {what}"
    if request.json_out:
        write_json(request.json_out, comparison, title=title, facts=facts)
        console.print(f"figures: {request.json_out}", soft_wrap=True)
    if request.report or request.pictures:
        with progress("drawing") as tell:
            which, events = _events(problem, policies, comparison, outcomes, tell)
            tell("drawing the figures")
            drawn = pictures(
                comparison, outcomes, problem.scenarios, events=events, which=which, gpu_node=problem.cluster.gpu_node
            )
        if request.report:
            write_report(request.report, comparison, drawn, title=title, facts=facts)
            console.print(f"report: {request.report}", soft_wrap=True)
        if request.pictures:
            write_pictures(request.pictures, drawn)
            console.print(f"pictures: {request.pictures}", soft_wrap=True)


def _check(request: EvaluationRequest) -> None:
    """Refuse options that cannot be followed, before anything takes time."""
    inputs = {"--trace": request.trace, "--cluster": request.cluster, "--faults": request.faults}
    inputs |= {f"--policy {name}": Path(name) for name in request.policies if name.endswith(".zip")}
    check_outputs({"--report": request.report, "--json": request.json_out}, inputs)
    if request.pictures is not None:
        make_folder(request.pictures, "--pictures")
    request.drawn.check(request.trace, request.load)
    if request.cluster is not None:
        return
    if request.faults is not None:
        raise InputError("recorded faults need a cluster", "give --cluster", field="--faults")
    if request.drawn.text and request.trace is None:
        field = "--profile" if request.drawn.profile else "--arrivals"
        raise InputError("the preset hetero64 draws its own jobs", "give --cluster", field=field)
    if request.trace is None and request.load is not None:
        raise InputError("the preset submits all jobs at once", "give --trace or --cluster", field="--load")
    if request.trace is None and request.max_gpus is not None:
        raise InputError("the preset's jobs ask 32 GPUs at most", "give --trace or --cluster", field="--max-gpus")
    if request.trace is None and request.runs is not None:
        raise InputError("the preset draws faults anew for each workload", "set --workloads", field="--runs")


def _introduce(console: "Console", what: str, problem: Problem, policies: list[Policy]) -> None:
    """Say what is run, and which policies cannot do here what they are made for."""
    count = problem.scenarios.jobs.size
    jobs = ", ".join(
        dict.fromkeys(str(number) for number in (problem.scenarios.jobs.min(), problem.scenarios.jobs.max()))
    )
    console.print(f"{what}: {count} scenarios of {jobs} jobs, {len(policies)} policies, the same faults for each")
    if problem.rules.waiting:
        return
    running = {policy.name for policy in policies}
    absent = [policy.name for policy in HEURISTICS.values() if policy.waits and policy.name not in running]
    if absent:
        console.print(f"left out: {', '.join(absent)}, which differ from others only with --waiting")
    bound = [policy.name for policy in policies if policy.waits]
    if bound:
        log.warning("%s would wait for better GPUs, but may not; allow it with --waiting", ", ".join(bound))


def _teller(tell: Tell, policies: list[Policy], scenarios: int) -> Callable[[str, int], None]:
    """Return what says who runs, and how many scenarios it has run."""
    places = {policy.name: place for place, policy in enumerate(policies, start=1)}

    def say(name: str, run: int) -> None:
        stand = f", {run:,} of {scenarios:,}" if run else ""
        tell(f"running {name} ({places[name]} of {len(policies)}){stand}")

    return say


def _policies(request: EvaluationRequest, named: list[Policy], problem: Problem) -> list[Policy]:
    """Return who runs: those asked for, and all heuristics that have the same actions."""
    asked = {policy.name: policy for policy in named}
    for name in (policy.name for policy in named if asked[policy.name] is not policy):
        raise InputError(f"two policies are called {name!r}", "rename one of the checkpoints", field="--policy")
    for policy in named:
        if HEURISTICS.get(policy.name, policy) != policy:
            raise InputError(f"{policy.name!r} is the name of a heuristic", "rename the checkpoint", field="--policy")
    if request.heuristics:
        others: list[Policy] = [*rivals(problem.rules)]
    else:  # someone must be the bar
        others = [] if asked.keys() & HEURISTICS.keys() else [HEURISTICS["eft"]]
    return [*named, *(policy for policy in others if policy.name not in asked)]


def _events(
    problem: Problem, policies: list[Policy], comparison: Comparison, outcomes: dict[str, Outcome], tell: Tell
) -> tuple[str, dict[str, list[Event]]]:
    """Return a typical scenario in words, and its events under the best heuristic and who challenges it."""
    best = comparison.best_heuristic
    shown = [*comparison.challengers[:2], best]
    rival, own = outcomes[best].makespan_s, outcomes[shown[0]].makespan_s
    typical = int(np.argsort(own - rival, kind="stable")[own.size // 2])
    by_name = {policy.name: policy for policy in policies}
    events = {}
    for name in dict.fromkeys(shown):
        tell(f"running a typical scenario under {name}")
        events[name] = run_recorded(problem, by_name[name], typical)[1]
    return _which(typical, own.size, shown[0], best), events


def _which(scenario: int, scenarios: int, policy: str, best: str) -> str:
    """Return which scenario is drawn, in words."""
    if scenarios == 1:
        return "the only scenario"
    why = (
        f", the typical one: the makespan of {policy} against {best} is the middle one of all" if policy != best else ""
    )
    return f"scenario {scenario} of {scenarios}, the first being 0{why}"


def overload_text(outcomes: dict[str, Outcome], scenarios: Scenarios, *, least_share: float) -> str:
    """Return the policies under which more than a share of the scenarios were overloaded; empty if there are none."""
    counts = {name: int(overloaded(outcome, scenarios).sum()) for name, outcome in outcomes.items()}
    total = scenarios.jobs.size
    named = [f"{name} ({count} of {total} scenarios)" for name, count in counts.items() if count > least_share * total]
    return ", ".join(named)


def _facts(request: EvaluationRequest, setting: Setting, named: list[Policy]) -> dict[str, str]:
    cluster, regime = setting.problem.cluster, request.regime
    ageing = "" if np.isinf(regime.ageing_s) else f", ageing bound {regime.ageing_s / 3600:g} h"
    return {
        "command": request.command,
        "workload": setting.what,
        **setting.facts,
        **{f"policy {policy.name}": policy.about for policy in named if policy.name not in HEURISTICS},
        "cluster": f"{cluster.gpu_node.size} GPUs on {cluster.speed.size} nodes",
        "order": f"{regime.order}{ageing}; policies {'may' if regime.waiting else 'may not'} wait for better GPUs",
        "seed": str(request.seed),
        "version": f"Longshore {version('longshore')}",
        "date": request.date,
    }
