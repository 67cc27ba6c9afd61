"""`longshore evaluate`: policies run on the same scenarios, compared, and reported."""

import itertools
import logging
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..agents.heuristics import HEURISTICS, PACK, rival_heuristics
from ..agents.learned.schema import UsedUnder, conditions_of_use, training_mismatch
from ..agents.protocol import Policy
from ..agents.registry import checkpoint_in, find_policy
from ..agents.rehearsals import rehearsals_of
from ..cluster.files.errors import InputError
from ..cluster.files.output_file import check_outputs, in_one_line, make_folder
from ..cluster.model.outcome import Event, Outcome, overloaded
from ..cluster.model.problem import Problem, Scenarios, same_jobs_labels
from ..cluster.presets.named import NAMED
from ..cluster.presets.problems import Regime
from .answer import answer_document, headline, remarks_on, report_sections, sentences, terminal_ranking
from .asides import Aside, backup_aside, planning_aside, switching_aside
from .bounds import lower_bounds
from .comparison import Comparison, compare, run_all, run_with_events
from .every_order import OrderAdvice, advice_of, every_order, figures_by_ageing_bound, run_grid
from .figures import report_pictures, write_pictures
from .report import write_json, write_report
from .setting import EvaluationRequest, Setting, is_heuristic, setting_of, tune_patient_by_order, tuned_text
from .table import CompileFirst, OpenStatus, ShowStatus, compile_nothing, terminal_tables

if TYPE_CHECKING:
    from rich.console import Console

log = logging.getLogger(__name__)

WARN_OVERLOADED_SHARE = 0.5  # of the scenarios: a burst at the end of a few of them is no overload


class EvaluationRun(NamedTuple):
    """What was run."""

    problem: Problem  # under the requested order, or the recommended one
    regime: Regime
    policies: list[Policy]
    outcomes: dict[str, Outcome]  # under that order, by policy
    advice: OrderAdvice | None = None  # where all orders were run
    remarks: tuple[str, ...] = ()  # on what was run, in addition to the advice
    tuned: str = ""  # what was tuned for the objective, in words


def evaluate_request(
    request: EvaluationRequest,
    console: "Console",
    progress: OpenStatus,
    compile_first: CompileFirst = compile_nothing,
) -> None:
    """Evaluate policies on scenarios.

    1. Check the options, load the policies and read the setting: cluster, jobs and faults.
    2. Run every scenario under every policy, or under every order and policy, on the same faults.
    3. Compare the policies with the best heuristic, with confidence intervals.
    4. Print the tables, or the recommended order and policy.
    5. Compare what switching, backups and plans save under the best policy.
    6. Write the figures as JSON, the report and the pictures.

    Raises:
        InputError: If a file, an option or a combination of them cannot be used.
        PluginError: If a policy is not known, or a metric of another package gives no numbers.
        CheckpointError: If a checkpoint cannot be used.
    """
    _check_options(request)
    with progress("reading the input"):
        named = make_names_distinct([(name, find_policy(name)) for name in dict.fromkeys(request.policies)])
        setting = _with_objective(setting_of(request), request)
    if request.pictures is not None:
        make_folder(request.pictures, "--pictures")
    policies = _policies_to_run(request, named, setting.problem)
    introduction = _introduction_text(setting.title, setting.problem, policies, every_order=request.every_order)
    if not request.every_order:  # else the answer comes first
        console.print(introduction)
        if request.objective is not None:
            console.print(f"objective: {setting.facts['objective']}")
    _warn_about_policies(console, setting.problem, policies, _used_under(request, setting.problem))
    compile_first(rehearsals_of(named))
    with progress("setting up") as show:
        run = (_run_every_order if request.every_order else _run_one_order)(request, setting, policies, show)
        scenarios = run.problem.scenarios
        overload = overload_text(run.outcomes, scenarios, least_share=0.0)
        if heavy := overload_text(run.outcomes, scenarios, least_share=WARN_OVERLOADED_SHARE):
            log.warning("overload: the queue grew until the last submission, or the run was cut off, under %s", heavy)
        show("computing intervals")
        comparison = compare(
            run.outcomes,
            scenarios,
            run.problem.cluster.gpu_node.size,
            heuristics=[policy.name for policy in run.policies if is_heuristic(policy)],
            groups=same_jobs_labels(scenarios),
            objective=request.objective,
        )
    _print_result(console, run, comparison, introduction)
    facts = _report_facts(request, setting, named, run.regime) | {"overload": overload or "in no scenario"}
    facts |= {"tuned": run.tuned} if run.tuned else {}
    asides: list[Aside] = []
    try:
        with progress("comparing under the best policy") as show:
            asides = _all_asides(request, setting, run, comparison, show)
        for aside in asides:
            console.print(f"{aside.title}: {aside.words}")
    finally:  # Ctrl-C in these comparisons does not lose the answer
        facts |= {aside.title: aside.words for aside in asides}
        _write_files(request, console, progress, run, comparison, asides, f"Longshore: {setting.title}", facts)


def _write_files(
    request: EvaluationRequest, console: "Console", progress: OpenStatus, run: EvaluationRun, comparison: Comparison,
    asides: Sequence[Aside], title: str, facts: dict[str, str],
) -> None:  # fmt: skip
    """Write the figures as JSON, the report and the pictures, as far as they are requested."""
    if request.json_out:
        more = answer_document(run.advice, run.regime.ageing_s, run.remarks) if run.advice else {}
        more |= {aside.key: aside.document for aside in asides}
        write_json(request.json_out, comparison, title=title, facts=facts, more=more)
        console.print(f"figures: {request.json_out}", soft_wrap=True)
    if request.report or request.pictures:
        _write_report_and_pictures(request, console, progress, run, comparison, title=title, facts=facts)


def _run_one_order(
    request: EvaluationRequest, setting: Setting, policies: list[Policy], show: ShowStatus
) -> EvaluationRun:
    """Run the policies under the requested order."""
    problem = setting.problem
    tuned = tune_patient_by_order(request, [request.regime], show)
    policies = [*policies, *tuned.values()]
    outcomes = run_all(problem, policies, _status_of_runs(show, policies, problem.scenarios.jobs.size))
    return EvaluationRun(problem, request.regime, policies, outcomes, tuned=tuned_text(tuned))


def _run_every_order(
    request: EvaluationRequest, setting: Setting, policies: list[Policy], show: ShowStatus
) -> EvaluationRun:
    """Run the policies under every order, and choose."""
    problem = setting.problem
    regimes = every_order(request.regime)
    tuned = tune_patient_by_order(request, regimes, show)
    pairs, scenarios = len(regimes) * len(policies) + len(tuned), problem.scenarios.jobs.size
    places = itertools.count(1)

    def show_run(candidate: str, done: int) -> None:
        place = f" ({next(places)} of {pairs})" if not done else f", {done:,} of {scenarios:,}"
        show(f"running {candidate}{place}")

    grid = run_grid(problem, regimes, policies, show_run, weighting=request.objective, tuned=tuned)
    regime = next(regime for regime in regimes if regime.order == grid.candidates[grid.chosen].order)
    ruled = problem._replace(rules=regime.applied_to(problem.rules))
    policies = [*policies, *(policy for order, policy in tuned.items() if order == regime.order)]
    policy = next(policy for policy in policies if policy.name == grid.candidates[grid.chosen].policy)
    ended = [policy for policy in policies if _has_ended(grid.outcomes.get(policy.name), problem.scenarios)]
    if not any(map(is_heuristic, ended)):
        what = f"under {regime.order} no heuristic ended all jobs, so that there is none to compare {policy.name} with"
        raise InputError(what, "lower the fault rate or the load, or omit --no-heuristics")
    show("computing what is possible")
    least_s = lower_bounds(
        problem, grid.objective_name, np.flatnonzero(grid.is_reported),
        lambda done, count: show(f"computing what is possible, {done:,} of {count:,}"),
    )  # fmt: skip
    ageing = figures_by_ageing_bound(grid, ruled, policy, lambda *_: show("running the best under other ageing bounds"))
    show("computing intervals of all orders")
    advice = advice_of(grid, problem, least_s, ageing, "window" if request.trace else "workload")
    facts = setting.facts | ({"tuned": tuned_text(tuned)} if tuned else {})
    remarks = remarks_on(advice, ruled, policy, facts)
    outcomes = {policy.name: grid.outcomes[policy.name] for policy in ended}
    return EvaluationRun(ruled, regime, ended, outcomes, advice, remarks, tuned_text(tuned))


def _has_ended(outcome: Outcome | None, scenarios: Scenarios) -> bool:
    return outcome is not None and bool((outcome.finished >= scenarios.jobs).all())


def _all_asides(
    request: EvaluationRequest, setting: Setting, run: EvaluationRun, comparison: Comparison, show: ShowStatus
) -> list[Aside]:
    """Return the other comparisons, under the best policy."""
    policy = next(policy for policy in run.policies if policy.name == comparison.policies[0])
    best = run.problem, policy, run.outcomes[policy.name], show
    asides = [*switching_aside(*best), *backup_aside(*best)] if request.cluster is not None else []
    return [*asides, *planning_aside(setting.layouts, setting.compared, run.regime, policy, show)]


def _with_objective(setting: Setting, request: EvaluationRequest) -> Setting:
    """Return a setting with the objective of a user among its facts, if there is one."""
    if request.objective is None:
        return setting
    by = request.objective
    what = by.title if len(by.weights) == 1 else f"weighted geometric mean of {by.text}"
    return setting._replace(facts=setting.facts | {"objective": what})


def _print_result(console: "Console", run: EvaluationRun, comparison: Comparison, introduction: str) -> None:
    """Print the answer and the ranking of all orders, or the tables of one order."""
    if run.advice is None:
        for table in terminal_tables(comparison, console.width):
            console.print(table)
        if run.tuned:
            console.print(f"tuned for the objective: {run.tuned}")
        return
    console.print(f"{headline(run.advice, run.regime.ageing_s)}", style="bold")
    console.print(f"\n{introduction}\n")
    for sentence in (*sentences(run.advice), *run.remarks):
        console.print(f"- {sentence}")
    console.print(terminal_ranking(run.advice))


def _write_report_and_pictures(
    request: EvaluationRequest, console: "Console", progress: OpenStatus, run: EvaluationRun, comparison: Comparison,
    *, title: str, facts: dict[str, str],
) -> None:  # fmt: skip
    """Write the report and its pictures."""
    with progress("drawing") as show:
        scenario_text, events = _typical_events(run.problem, run.policies, comparison, run.outcomes, show)
        show("drawing the figures")
        gpu_node, scenarios = run.problem.cluster.gpu_node, run.problem.scenarios
        drawn = report_pictures(
            comparison, run.outcomes, scenarios, events=events, scenario_text=scenario_text, gpu_node=gpu_node
        )
    if request.report:
        answer = report_sections(run.advice, run.regime.ageing_s, run.remarks) if run.advice else None
        write_report(request.report, comparison, drawn, title=title, facts=facts, answer=answer)
        console.print(f"report: {request.report}", soft_wrap=True)
    if request.pictures:
        write_pictures(request.pictures, drawn)
        console.print(f"pictures: {request.pictures}", soft_wrap=True)


def _check_options(request: EvaluationRequest) -> None:
    """Refuse options that do not go together, before anything takes time."""
    inputs = {"--trace": request.trace, "--cluster": request.cluster, "--faults": request.faults}
    inputs |= {f"--policy {name}": Path(name) for name in request.policies if name.endswith(".zip")}
    check_outputs({"--report": request.report, "--json": request.json_out}, inputs)
    _check_preset(request)
    request.drawn.check(request.trace, request.load)
    if request.cluster is not None:
        return
    if request.faults is not None:
        raise InputError("recorded faults need a cluster", "give --cluster", field="--faults")
    if request.drawn.text and request.trace is None:
        field = "--profile" if request.drawn.profile else "--arrivals"
        raise InputError("the preset draws its own jobs", "give --cluster", field=field)
    if request.trace is None and request.load is not None:
        raise InputError("the preset draws its own arrivals", "give --trace or --cluster", field="--load")
    if request.trace is None and request.max_gpus is not None:
        raise InputError("the preset's jobs need 32 GPUs at most", "give --trace or --cluster", field="--max-gpus")
    if request.trace is None and request.runs is not None:
        raise InputError("the preset draws faults anew for each workload", "set --workloads", field="--runs")


def _check_preset(request: EvaluationRequest) -> None:
    """Refuse a preset that cannot be run, and options that it does not use."""
    if (preset := request.preset) is None:
        return
    if preset == "history":
        raise InputError(
            "its windows are of a live scheduler's past",
            "run `longshore policy replay` or `longshore train --history`",
            field="--preset",
        )  # fmt: skip
    if NAMED[preset].draw is None and request.trace is None:
        raise InputError(f"{preset} has windows of a trace", "give its file", field="--trace")
    brought = {"--cluster": request.cluster, "--faults": request.faults}
    if NAMED[preset].draw is not None:
        brought["--trace"] = request.trace
    elif preset == "traces":
        brought = {}
    for field in (field for field, path in brought.items() if path is not None):
        raise InputError(f"{preset} has its own", "omit it, or omit --preset", field=field)


def _introduction_text(title: str, problem: Problem, policies: list[Policy], *, every_order: bool) -> str:
    """Return what is run."""
    count = problem.scenarios.jobs.size
    jobs = ", ".join(
        dict.fromkeys(str(number) for number in (problem.scenarios.jobs.min(), problem.scenarios.jobs.max()))
    )
    under = " under every order" if every_order else ""
    return f"{title}: {count} scenarios of {jobs} jobs, {len(policies)} policies{under}, the same faults for each"


def _warn_about_policies(console: "Console", problem: Problem, policies: list[Policy], use: UsedUnder) -> None:
    """Log which policies were trained under something else, or cannot do here what they are made for."""
    for policy in policies:
        if remark := training_mismatch(policy, use):
            log.warning("%s: %s", policy.name, remark)
    if problem.rules.waiting:
        return
    running = {policy.name for policy in policies}
    absent = [policy.name for policy in HEURISTICS.values() if policy.waits and policy.name not in running]
    if absent:
        console.print(f"not run: {', '.join(absent)}, which differ from others only with --waiting")
    bound = [policy.name for policy in policies if policy.waits]
    if bound:
        log.warning("%s would wait for better GPUs, but may not; allow it with --waiting", ", ".join(bound))


def _used_under(request: EvaluationRequest, problem: Problem) -> UsedUnder:
    """Return what policies are used under."""
    use = conditions_of_use(problem.rules, request.estimates or ("exact" if request.trace is None else "trace"))
    return use._replace(orders=()) if request.every_order else use


def make_names_distinct(named: Sequence[tuple[str, Policy]]) -> list[Policy]:
    """Rename checkpoints of the same name after the folders in which they differ, and return all policies.

    Args:
        named: Policies with the names that they were found by.
    """
    alike: dict[str, list[tuple[Policy, tuple[str, ...]]]] = {}
    for name, policy in named:
        if (path := checkpoint_in(name)) is not None:
            alike.setdefault(policy.name, []).append((policy, path.resolve().with_suffix("").parts))
    for checkpoints in alike.values():
        longest = max(len(parts) for _, parts in checkpoints)
        for count in range(2, longest + 1):
            tails = [in_one_line("/".join(parts[-count:])) for _, parts in checkpoints]
            if len(set(tails)) == len(tails) > 1:
                for (policy, _), tail in zip(checkpoints, tails, strict=True):
                    base: Any = getattr(policy, "base", policy)
                    base.name = tail
                break
    return [policy for _, policy in named]


def _status_of_runs(show: ShowStatus, policies: list[Policy], scenarios: int) -> Callable[[str, int], None]:
    """Return a function that shows which policy runs, and how many scenarios it has run."""
    places = {policy.name: place for place, policy in enumerate(policies, start=1)}

    def show_run(name: str, done: int) -> None:
        so_far = f", {done:,} of {scenarios:,}" if done else ""
        show(f"running {name} ({places[name]} of {len(policies)}){so_far}")

    return show_run


def _policies_to_run(request: EvaluationRequest, named: list[Policy], problem: Problem) -> list[Policy]:
    """Return the policies to run: those that are named, and all heuristics that have the same actions."""
    by_name = {policy.name: policy for policy in named}
    for name in (policy.name for policy in named if by_name[policy.name] is not policy):
        raise InputError(f"two policies are called {name!r}", "rename one of the checkpoints", field="--policy")
    for policy in named:
        if HEURISTICS.get(policy.name, policy) != policy:
            raise InputError(f"{policy.name!r} is the name of a heuristic", "rename the checkpoint", field="--policy")
    if request.heuristics:
        others: list[Policy] = [*rival_heuristics(problem.rules)]
    elif request.every_order:
        others = [PACK]  # what is common today
    else:  # one heuristic must be the bar
        others = [] if by_name.keys() & HEURISTICS.keys() else [HEURISTICS["eft"]]
    return [*named, *(policy for policy in others if policy.name not in by_name)]


def _typical_events(
    problem: Problem, policies: list[Policy], comparison: Comparison, outcomes: dict[str, Outcome], show: ShowStatus
) -> tuple[str, dict[str, list[Event]]]:
    """Return a typical scenario in words, and its events under the best heuristic and its challengers."""
    best = comparison.best_heuristic
    shown = [*comparison.challengers[:2], best]
    rival, own = outcomes[best].makespan_s, outcomes[shown[0]].makespan_s
    typical = int(np.argsort(own - rival, kind="stable")[own.size // 2])
    by_name = {policy.name: policy for policy in policies}
    events = {}
    for name in dict.fromkeys(shown):
        show(f"running a typical scenario under {name}")
        events[name] = run_with_events(problem, by_name[name], typical)[1]
    return _typical_scenario_text(typical, own.size, shown[0], best), events


def _typical_scenario_text(scenario: int, scenarios: int, policy: str, best: str) -> str:
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


def _report_facts(request: EvaluationRequest, setting: Setting, named: list[Policy], regime: Regime) -> dict[str, str]:
    cluster = setting.problem.cluster
    turns = "; users take turns" if regime.turns and setting.problem.scenarios.line.size else ""
    waits = "may" if regime.waiting else "may not"
    ageing = "" if np.isinf(regime.ageing_s) else f", ageing bound {regime.ageing_s / 3600:g} h"
    return {
        "command": request.command,
        "workload": setting.title,
        **setting.facts,
        **{f"policy {policy.name}": policy.about for policy in named if policy.name not in HEURISTICS},
        "cluster": f"{cluster.gpu_node.size} GPUs on {cluster.speed.size} nodes",
        "order": f"{regime.order}{ageing}; policies {waits} wait for better GPUs{turns}",
        "seed": str(request.seed),
        "version": f"Longshore {version('longshore')}",
        "date": request.date,
    }
