"""What `longshore evaluate` and `simulate` run: trace or drawn jobs, cluster, faults, and a tuned `patient`."""

import logging
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..agents.heuristics import HEURISTICS, Heuristic, patient_of_least_cost, patient_with_factor
from ..agents.protocol import Policy
from ..cluster.faults.recorded import read_fault_trace
from ..cluster.files.errors import InputError
from ..cluster.files.input_problems import name_advice
from ..cluster.model.outcome import Weighting
from ..cluster.model.problem import BEST, FIXED, OFFLOAD, Problem, with_layout
from ..cluster.model.workload import Workload, describe, with_gpus_cut
from ..cluster.presets.cluster_file import ClusterSetup, read_cluster
from ..cluster.presets.named import NAMED
from ..cluster.presets.problems import (
    HETERO64_CAPACITY,
    HETERO64_LARGEST,
    LOAD,
    WINDOW_JOBS,
    Regime,
    Stream,
    capacity_of,
    check_memory,
    cluster_problem,
    disjoint_window_count,
    draw_windows,
    evaluation_key,
    job_count_within,
    runs_per_window,
    stream,
    window_problem,
)
from ..cluster.traces.read import read_trace
from ..cluster.workloads.estimates import EstimateKind, with_estimates, with_scenario_estimates
from ..cluster.workloads.generator import PROFILES, Arrivals, generate
from .comparison import run_one, scenario_metrics
from .table import ShowStatus

PROFILE = "philly"


@dataclass(frozen=True, slots=True)
class JobsRequest:
    """What generated jobs are like; None where the user gave no option."""

    profile: str | None = None  # of PROFILES
    arrivals: Arrivals | None = None

    def check(self, trace: Path | None, load: float | None) -> None:
        """Refuse options that do not go together.

        Raises:
            InputError: Naming the option.
        """
        for option, value in (("--profile", self.profile), ("--arrivals", self.arrivals)):
            if value is not None and trace is not None:
                raise InputError("a trace has its own jobs", "omit one of the two", field=option)
        if self.profile is not None and self.profile not in PROFILES:
            problem = f"there is no profile {self.profile!r}"
            raise InputError(problem, name_advice(self.profile, PROFILES), field="--profile")
        if self.arrivals == "batch" and load is not None:
            raise InputError("a batch submits all jobs at once", "omit one of the two", field="--load")

    def draw(self, jobs: int, *, load: float, capacity: int, rng: np.random.Generator) -> Workload:
        """Return one workload for a cluster that is worth `capacity` GPUs of speed 1."""
        profile = PROFILES[self.profile or PROFILE]
        return generate(profile, jobs, load=load, cluster_gpus=capacity, rng=rng, arrivals=self.arrivals or "profile")

    @property
    def text(self) -> str:
        """What is drawn, in words; empty if the user gave no option."""
        if self.profile is None and self.arrivals is None:
            return ""
        arrivals = "its own" if self.arrivals in (None, "profile") else self.arrivals
        return f"drawn from the profile {self.profile or PROFILE}, arrivals {arrivals}"


log = logging.getLogger(__name__)

TESTED_PART = (0.7, 1.0)  # of a trace, in order of time: presets train and validate on what comes before
PAST_PART = (0.0, 0.7)  # on which heuristics are tuned for an objective
WORKLOADS = 200
WINDOWS = 24  # of a trace


@dataclass(frozen=True, slots=True)
class EvaluationRequest:
    """What to compare, and where the results go. Paths that are None are not read or written."""

    policies: tuple[str, ...]
    trace: Path | None
    cluster: Path | None
    faults: Path | None
    regime: Regime
    workloads: int | None
    runs: int | None
    load: float | None
    max_gpus: int | None
    estimates: EstimateKind | None  # of the trace if None, and exact where jobs are drawn
    sigma: float
    drawn: JobsRequest
    seed: int
    heuristics: bool
    report: Path | None
    pictures: Path | None  # a folder
    json_out: Path | None
    command: str
    date: str
    objective: Weighting | None = None  # None: what is usual for the jobs
    plans: str = FIXED  # by which of its plans each job runs, one of LAYOUTS
    part: tuple[float, float] | None = None  # of the trace; None: what no policy may have been trained or tuned on
    preset: str | None = None  # one of cluster/presets/named.py; None: hetero64 where nothing is brought
    every_order: bool = False  # all order regimes side by side, with the ageing and the waiting of `regime`


class Setting(NamedTuple):
    """What is run."""

    problem: Problem
    title: str
    facts: dict[str, str]  # what is not run as it was recorded or drawn
    layouts: dict[str, Problem] = {}  # noqa: RUF012  # the same jobs by each layout that fits; empty without plans
    compared: tuple[str, ...] = ()  # layouts to compare, whether they fit or not


def setting_of(request: EvaluationRequest) -> Setting:
    """Return what is to be run, drawn by keys that no training has.

    Raises:
        InputError: If a file or an option cannot be used, or it would take too much memory.
        PluginError: If a trace format cannot be used.
    """
    request = replace(request, seed=evaluation_key(request.seed))
    setting = _read_or_draw_setting(request)
    if request.regime.oracle:
        setting = setting._replace(facts=setting.facts | {"fault rates": "policies know the true ones"})
    if request.estimates is None:
        return setting
    if request.estimates == "history" and request.trace is not None:  # made where users and earlier jobs are known
        return setting._replace(facts=setting.facts | {"estimates": "history"})
    spread = f", sigma {request.sigma:g}" if request.estimates == "log-normal" else ""
    facts = setting.facts | {"estimates": request.estimates + spread}
    problem = _problem_with_estimates(setting.problem, request.estimates, request)
    layouts = {
        name: _problem_with_estimates(each, request.estimates, request) for name, each in setting.layouts.items()
    }
    return setting._replace(problem=problem, facts=facts, layouts=layouts)


def _problem_with_estimates(problem: Problem, kind: EstimateKind, request: EvaluationRequest) -> Problem:
    """Return a problem with estimates of a kind; jobs of equal number have equal errors, whatever their plans."""
    rng = stream(request.seed, Stream.ESTIMATES)
    scenarios = with_scenario_estimates(problem.scenarios, kind, sigma=request.sigma, rng=rng)
    return problem._replace(scenarios=scenarios)


def _read_or_draw_setting(request: EvaluationRequest) -> Setting:
    if request.cluster is not None:
        return _setting_on_cluster(request, read_cluster(request.cluster))
    if request.trace is None:
        preset = request.preset or "hetero64"
        draw = NAMED[preset].draw
        assert draw is not None
        return Setting(draw(request.workloads or WORKLOADS, request.seed, request.regime), f"preset {preset}", {})
    largest = request.max_gpus or HETERO64_LARGEST
    workload, part, facts = _read_trace_part(request, request.trace, largest)
    problem = window_problem(
        workload,
        request.regime,
        windows=request.workloads or WINDOWS,
        runs=request.runs,
        part=part,
        seed=request.seed,
        load=request.load or LOAD,
        max_gpus=largest,
        disjoint=True,
    )
    facts |= _load_fact(request, workload, HETERO64_CAPACITY)
    return Setting(problem, f"windows of {request.trace.name}", facts)


def _setting_on_cluster(request: EvaluationRequest, setup: ClusterSetup) -> Setting:
    largest = request.max_gpus or max(1, setup.cluster.gpu_node.size * 3 // 4)
    if request.trace is None:
        runs, what = request.runs or 1, f"generated jobs on {setup.name}"
        workloads, facts = _generate_workloads(request, setup, largest)
    else:
        trace, part, facts = _read_trace_part(request, request.trace, largest)
        workloads = draw_windows(
            trace, request.workloads or WINDOWS, part=part, seed=request.seed, load=request.load or LOAD,
            max_gpus=largest, capacity=capacity_of(setup.cluster), disjoint=True,
        )  # fmt: skip
        facts |= _load_fact(request, trace, capacity_of(setup.cluster))
        runs, what = request.runs or runs_per_window(len(workloads)), f"windows of {request.trace.name} on {setup.name}"
    faults = read_fault_trace(request.faults) if request.faults else None

    def by(layout: str) -> Problem:
        laid = [with_layout(workload, layout) for workload in workloads]
        return cluster_problem(setup, laid, request.regime, runs=runs, seed=request.seed, faults=faults)

    problem, compared = by(request.plans), _layouts_to_compare(workloads)
    if not compared:
        return Setting(problem, what, facts)
    facts["plans of jobs"] = request.plans
    layouts = {request.plans: problem}
    for name in compared:
        with suppress(InputError):  # not the requested one, and no node has room for one of its plans
            layouts[name] = layouts.get(name) or by(name)
    return Setting(problem, what, facts, layouts, compared)


def _layouts_to_compare(workloads: Sequence[Workload]) -> tuple[str, ...]:
    """Return the layouts to compare: none where no job has plans, two where no plan puts state away."""
    plans = [plan for workload in workloads for of_job in workload.plans or () for plan in of_job]
    if not plans:
        return ()
    return (FIXED, BEST, OFFLOAD) if any(plan.away_bytes for plan in plans) else (FIXED, BEST)


def _generate_workloads(
    request: EvaluationRequest, setup: ClusterSetup, largest: int
) -> tuple[list[Workload], dict[str, str]]:
    gpus, capacity = setup.cluster.gpu_node.size, capacity_of(setup.cluster)
    count = request.workloads or WORKLOADS
    check_memory(count * (request.runs or 1), WINDOW_JOBS, gpus, setup.cluster.speed.size)
    rng = stream(request.seed, Stream.JOBS)
    load = request.load or LOAD
    drawn = [request.drawn.draw(WINDOW_JOBS, load=load, capacity=capacity, rng=rng) for _ in range(count)]
    max_gpus = min(largest, gpus)
    cut = sum(int((workload.gpus > max_gpus).sum()) for workload in drawn)
    facts = {"jobs": request.drawn.text} if request.drawn.text else {}
    facts |= _cut_fact(cut, count * WINDOW_JOBS, max_gpus)
    return [with_gpus_cut(workload, max_gpus) for workload in drawn], facts


def _read_trace_part(
    request: EvaluationRequest, path: Path, largest: int
) -> tuple[Workload, tuple[float, float], dict[str, str]]:
    """Return the jobs of a trace, the part that is run, and what is not run as recorded, which is also logged."""
    workload = read_trace(path)
    if request.estimates == "history":
        workload = with_estimates(workload, "history")
    untrained = request.every_order and not request.policies and request.objective is None
    enough = has_enough_after_past(workload)
    part = request.part or (TESTED_PART if enough and not untrained else (0.0, 1.0))
    facts = _cut_fact(int((workload.gpus > largest).sum()), workload.jobs, largest)
    if workload.left_out:
        facts["jobs dropped"] = f"{workload.left_out} rows need no GPU or never ran, and are dropped"
    if not enough and not untrained:
        facts["part of the trace"] = (
            f"only {workload.jobs} jobs, too few to keep the first 70 % for training; windows come from all of it"
        )
    windows, room = request.workloads or WINDOWS, disjoint_window_count(workload, part)
    if room < windows:
        facts["windows"] = f"{room} of {windows} windows: more would overlap"
    for fact in facts.values() if request.part is None else ():
        log.warning("%s: %s", path, fact)
    if untrained:
        facts["part of the trace"] = (
            "windows come from all of it, as no policy was named that may have been trained on it"
        )
    return workload, part, facts


def has_enough_after_past(workload: Workload) -> bool:
    """Return whether a trace is long enough to run only what follows its past."""
    return job_count_within(workload, TESTED_PART) >= WINDOW_JOBS


def _load_fact(request: EvaluationRequest, workload: Workload, capacity: int) -> dict[str, str]:
    """Return which load is run, and which one was recorded."""
    whole = describe(workload)
    if not math.isfinite(recorded := whole.offered_load(capacity)):
        return {}
    return {
        "load": f"arrivals are scaled to {request.load or LOAD:g} of what the cluster can do; as recorded, the whole "
        f"trace needs {recorded:.2g} (--load {recorded:.2g} runs that)"
    }


def _cut_fact(cut: int, jobs: int, largest: int) -> dict[str, str]:
    if not cut:
        return {}
    return {"jobs cut": f"{cut} of {jobs} jobs need more than {largest} GPUs, and get {largest}"}


TUNING_SEED_OFFSET = 10_000  # added to the seed: the cluster's faults are drawn anew


def tune_patient_by_order(
    request: EvaluationRequest, regimes: Sequence[Regime], show: ShowStatus
) -> dict[str, Heuristic]:
    """Return `patient` with the factor that does best on the trace's past, by order; empty if nothing can be tuned.

    Nothing is tuned if the user gave no objective, no policy may wait, or there is no past.
    """
    weighting, trace = request.objective, request.trace
    if weighting is None or trace is None or not request.heuristics or not request.regime.waiting:
        return {}
    if not has_enough_after_past(read_trace(trace)):
        return {}
    problem = setting_of(replace(request, part=PAST_PART, seed=request.seed + TUNING_SEED_OFFSET)).problem
    found = {}
    for regime in regimes:
        show(f"tuning patient under {regime.order}")
        ruled = problem._replace(rules=regime.applied_to(problem.rules))
        found[regime.order] = patient_of_least_cost(partial(_mean_objective, ruled, weighting))
    return found


def _mean_objective(problem: Problem, weighting: Weighting, policy: Heuristic) -> float:
    """Return the mean of the objective under a policy, inf if a run did not end or was cut off."""
    outcome = run_one(problem, policy)
    if outcome is None or (outcome.finished < problem.scenarios.jobs).any():
        return math.inf
    figures = scenario_metrics(outcome, problem.scenarios, problem.cluster.gpu_node.size)
    return float(weighting.cost(figures).mean())


def is_heuristic(policy: Policy) -> bool:
    """Return whether a policy is one of the heuristics, or `patient` with another factor."""
    return policy.name in HEURISTICS or (
        isinstance(policy, Heuristic) and policy == patient_with_factor(policy.patience)
    )


def tuned_text(tuned: Mapping[str, Heuristic]) -> str:
    """Return what was tuned, in words; empty if nothing was."""
    if not tuned:
        return ""
    each = ", ".join(f"{policy.name} under {order}" for order, policy in tuned.items())
    return f"{each}, on the first {100 * PAST_PART[1]:.0f} % of the trace"
