"""What a training run learns from: windows of traces, or of a live scheduler's own past, and presets of all by name.

A preset builds the problems to train and to validate on, and has hyper-parameters that work there. Decision on a
scheduler's past: docs/decisions/0013-learning-from-the-past.md.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from ..cluster.faults.recorded import FaultTrace, read_fault_trace
from ..cluster.files.errors import InputError
from ..cluster.model.problem import FaultProcess, Problem, Scenarios, fault_sources, joined, stack
from ..cluster.model.topology import Cluster
from ..cluster.model.workload import Workload
from ..cluster.presets.cluster_file import ClusterSetup, read_cluster
from ..cluster.presets.drawn import HETERO64_SITE, PresetSite
from ..cluster.presets.named import NAMED
from ..cluster.presets.problems import (
    RUNS,
    VALIDATION_SEED,
    WINDOW_JOBS,
    Regime,
    Stream,
    capacity_of,
    check_memory,
    cluster_problem,
    draw_windows,
    rules_until_overload,
    runs_per_window,
    stream,
    training_key,
    window_problem,
)
from ..cluster.state.border import checked_scenarios
from ..cluster.traces.read import read_trace
from ..cluster.workloads.estimates import EstimateKind, with_scenario_estimates
from .history import ClusterPast, History, InitialState, read_history

TRAINING_SCENARIOS = 16_384
VALIDATION_SCENARIOS = 1000
VALIDATIONS = 12  # in a run, spread evenly
TRAINED_PART, VALIDATED_PART = (0.0, 0.6), (0.6, 0.7)  # of a trace, in order of time
LATER_PART = (0.7, 1.0)  # on which a policy is compared when it is done; `evaluate` runs it too

KnownEstimates = Literal["exact", "log-normal", "class-mean", "mixed"]
ESTIMATES: tuple[KnownEstimates, ...] = get_args(KnownEstimates)
# A policy trained on all of these works with each. Errors of users' own estimates are the commonest.
MIXED_ESTIMATES: tuple[EstimateKind, ...] = ("log-normal", "exact", "log-normal", "class-mean")
SIGMA = 0.5  # of log-normal errors: a factor of 1.65
LOADS = (0.3, 0.5, 0.7, 0.85, 1.1)  # offered: from hardly any queue to one that grows


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of a run that are no options of it."""

    trained: int = TRAINING_SCENARIOS  # where the problem is drawn; a trace has a fixed number of windows
    validated: int = VALIDATION_SCENARIOS
    validations: int = VALIDATIONS


DEFAULT_SIZES = Sizes()


class ProblemRequest(NamedTuple):
    """What the problems of a run are built from."""

    seed: int
    regimes: tuple[Regime, ...]
    sizes: Sizes = DEFAULT_SIZES
    traces: tuple[Path, ...] = ()
    cluster: Path | None = None  # cluster file; the cluster of `hetero64` if None
    faults: Path | None = None  # recorded faults, in place of the cluster file's
    loads: tuple[float, ...] = LOADS
    estimates: KnownEstimates = "mixed"
    history: Path | None = None  # decisions of a live scheduler


class Problems(NamedTuple):
    """What a run trains on, and what it is validated on: one problem for each order regime."""

    trained: tuple[Problem, ...]
    validated: tuple[Problem, ...]


TRAINED_WINDOWS, TRAINED_RUNS = 4096, 2  # in all, overlapping at random; draws of the cluster and its faults for each
VALIDATED_WINDOWS = 16  # of each trace at most, of which no two share a job
# Where no cluster file is given, a part of the training is on clusters of other sizes, speeds and fault rates.
OTHER_CLUSTERS = (
    PresetSite(nodes=4, node_gpus=4, faults=0.0),
    PresetSite(nodes=32, speeds=(3.0, 1.7, 1.0)),
    PresetSite(nodes=16, node_gpus=4, faults=10.0),
)
OTHER_WINDOWS = 1024  # of each, in all
TRACE_LOAD = 0.85  # offered where policies are compared
MIN_TRACE_JOBS = 2 * WINDOW_JOBS  # of a trace, so that its parts have any


class WindowSelection(NamedTuple):
    """Which windows of a trace are taken."""

    part: tuple[float, float]  # of the trace, in order of time
    most: int
    runs: int | None  # draws of faults for each; enough for an interval if None
    seed: int
    disjoint: bool


def trace_problems(request: ProblemRequest) -> Problems:
    """Return windows of the first 60 % of each trace to train on, and of the next 10 % to validate on.

    Raises:
        InputError: If a file cannot be used, or a trace has too few jobs.
    """
    own = _training_windows(request, TRAINED_WINDOWS)
    trained = [trace_windows(request, regime, own, request.loads) for regime in request.regimes]
    if request.cluster is None:
        other = _training_windows(request, OTHER_WINDOWS)
        trained += [
            trace_windows(request, regime, other, request.loads, drawn)
            for regime, drawn in regimes_on_other_clusters(request)
        ]
    # Many traces have many windows together: more draws of each would only take longer.
    runs = None if len(request.traces) == 1 else RUNS
    validated = WindowSelection(VALIDATED_PART, VALIDATED_WINDOWS, runs, VALIDATION_SEED, disjoint=True)
    return Problems(
        tuple(trained), tuple(trace_windows(request, regime, validated, (TRACE_LOAD,)) for regime in request.regimes)
    )


def _training_windows(request: ProblemRequest, windows: int) -> WindowSelection:
    each = max(1, windows // len(request.traces) // len(request.loads))
    return WindowSelection(TRAINED_PART, each, TRAINED_RUNS, training_key(request.seed), disjoint=False)


def regimes_on_other_clusters(request: ProblemRequest) -> list[tuple[Regime, PresetSite]]:
    """Return pairs of order regime and other cluster to train on, in which each of both occurs."""
    count = max(len(request.regimes), len(OTHER_CLUSTERS))
    return [
        (request.regimes[place % len(request.regimes)], OTHER_CLUSTERS[place % len(OTHER_CLUSTERS)])
        for place in range(count)
    ]


def trace_windows(
    request: ProblemRequest,
    regime: Regime,
    windows: WindowSelection,
    loads: tuple[float, ...],
    site: PresetSite = HETERO64_SITE,
) -> Problem:
    """Return windows of every trace at every load, in one problem: on the cluster file's cluster, or on those drawn."""
    setup = read_cluster(request.cluster) if request.cluster else None
    faults = read_fault_trace(request.faults) if request.faults else None
    parts = []
    for number, (path, load) in enumerate(product(request.traces, loads)):
        workload = read_trace(path)
        if workload.jobs < MIN_TRACE_JOBS:
            short = f"{path} has {workload.jobs} jobs, too few to train on the first and compare on the later"
            raise InputError(short, f"give a trace of at least {MIN_TRACE_JOBS}", field="--trace")
        own = windows._replace(seed=windows.seed + number)
        if setup is not None:
            problem = _windows_on_cluster(setup, faults, workload, regime, own, load)
        else:
            problem = window_problem(
                workload, regime, windows=own.most, runs=own.runs, part=own.part, seed=own.seed, load=load,
                disjoint=own.disjoint, site=site,
            )  # fmt: skip
        parts.append(_with_estimates(problem, _estimate_kind(request.estimates, number), own.seed))
    return _join_problems(parts)


def _windows_on_cluster(
    setup: ClusterSetup,
    faults: FaultTrace | None,
    workload: Workload,
    regime: Regime,
    windows: WindowSelection,
    load: float,
) -> Problem:
    cluster = setup.cluster
    found = draw_windows(
        workload, windows.most, part=windows.part, seed=windows.seed, load=load, capacity=capacity_of(cluster),
        max_gpus=max(1, cluster.gpu_node.size * 3 // 4), disjoint=windows.disjoint,
    )  # fmt: skip
    runs = windows.runs or runs_per_window(len(found))
    return cluster_problem(setup, found, regime, runs=runs, seed=windows.seed, faults=faults)


def _estimate_kind(estimates: KnownEstimates, number: int) -> EstimateKind:
    return MIXED_ESTIMATES[number % len(MIXED_ESTIMATES)] if estimates == "mixed" else estimates


def _with_estimates(problem: Problem, kind: EstimateKind, seed: int) -> Problem:
    rng = stream(seed, Stream.ESTIMATES)
    return problem._replace(scenarios=with_scenario_estimates(problem.scenarios, kind, sigma=SIGMA, rng=rng))


def _join_problems(parts: list[Problem]) -> Problem:
    """Return problems of one cluster in one, which is cut off as late as the last of them."""
    limit_s = max(part.rules.limit_s for part in parts)
    scenarios, suits = [], dict[bytes, int]()  # classes of needs are renumbered, as each part has its own numbers
    for part in parts:
        number = np.array([suits.setdefault(row.tobytes(), len(suits)) for row in part.cluster.suits], dtype=np.int32)
        scenarios.append(part.scenarios._replace(needs=number[part.scenarios.needs]))
    cluster = parts[0].cluster
    rows = [np.frombuffer(row, dtype=cluster.suits.dtype) for row in suits]
    return parts[0]._replace(
        cluster=cluster._replace(suits=np.stack(rows)), scenarios=joined(scenarios),
        rules=parts[0].rules._replace(limit_s=limit_s),
    )  # fmt: skip


HISTORY_WINDOWS, HISTORY_RUNS, HISTORY_VALIDATED_WINDOWS, HISTORY_LATER_WINDOWS = 1024, 4, 16, 24
HISTORY_LATER_SEED = VALIDATION_SEED + 3000  # of draws that no training uses


def history_problems(request: ProblemRequest) -> Problems:
    """Return windows of the first 60 % of a history's jobs to train on, and of the next 10 % to validate on."""
    assert request.history is not None
    history = read_history(request.history)
    trained = history_windows(
        history, TRAINED_PART, HISTORY_WINDOWS, HISTORY_RUNS, training_key(request.seed), disjoint=False
    )
    return Problems(
        (trained,), (_disjoint_windows(history, VALIDATED_PART, HISTORY_VALIDATED_WINDOWS, VALIDATION_SEED),)
    )


def later_problem(history: History) -> Problem:
    """Return windows of the last 30 % of a history's jobs, which training never uses."""
    return _disjoint_windows(history, LATER_PART, HISTORY_LATER_WINDOWS, HISTORY_LATER_SEED)


def tuning_problem(history: History) -> Problem:
    """Return windows of the part that was trained on, for rivals that are tuned there."""
    return _disjoint_windows(history, TRAINED_PART, HISTORY_LATER_WINDOWS, HISTORY_LATER_SEED + 1)


def _disjoint_windows(history: History, part: tuple[float, float], windows: int, seed: int) -> Problem:
    return history_windows(history, part, windows, None, seed, disjoint=True)


def history_windows(
    history: History, part: tuple[float, float], windows: int, runs: int | None, seed: int, *, disjoint: bool
) -> Problem:
    """Return windows of a past's jobs with draws of faults for each.

    Jobs arrive as recorded, with their estimates and priorities, under the scheduler's own rules.

    Args:
        history: The history.
        part: Of its jobs, in order of submission.
        windows: At most.
        runs: Draws of faults for each; enough for an interval if None.
        seed: Of windows and draws.
        disjoint: Take windows that share no job.
    """
    state = history.past.initial
    assert state is not None
    cluster, kinds = _with_needs_classes(state, history.past)
    found = draw_windows(
        history.workload, windows, part=part, seed=seed, load=None, max_gpus=cluster.gpu_node.size,
        capacity=capacity_of(cluster), disjoint=disjoint,
    )  # fmt: skip
    runs = runs or runs_per_window(len(found))
    check_memory(len(found) * runs, found[0].jobs, cluster.gpu_node.size, cluster.speed.size)
    each = [window for window in found for _ in range(runs)]
    scenarios = stack(
        cluster, each, fault_seed=stream(seed, Stream.FAULTS).integers(0, 2**32, len(each)),
        source_rate_per_s=fault_rates_per_s(history.past), hazard_per_s=state.hazard_per_s,
        needs=[np.array([kinds[job] for job in window.ids], dtype=np.int32) for window in each],
    )  # fmt: skip
    ranks = np.array([[history.rank[job] for job in window.ids] for window in each])
    scenarios = checked_scenarios(with_ranks(scenarios, ranks - ranks.min()), cluster)
    return Problem(
        cluster, scenarios, _fault_process(history.past), rules_until_overload(cluster, scenarios, state.rules)
    )


def with_ranks(scenarios: Scenarios, rank: NDArray[np.int64]) -> Scenarios:
    """Return scenarios whose jobs have ranks, shape (scenarios, jobs): users take turns within each rank."""
    if not scenarios.line.size:
        return scenarios._replace(rank=rank)
    line = np.empty_like(scenarios.line)
    for row, (users, ranks) in enumerate(zip(scenarios.line.tolist(), rank.tolist(), strict=True)):
        pairs = list(zip(users, ranks, strict=True))
        numbers = {pair: number for number, pair in enumerate(dict.fromkeys(pairs))}
        line[row] = [numbers[pair] for pair in pairs]
    return scenarios._replace(rank=rank, line=line)


def _with_needs_classes(state: InitialState, past: ClusterPast) -> tuple[Cluster, dict[str, int]]:
    """Return a cluster that knows which nodes suit the jobs of a past, and the class of each job's needs."""
    types = list(dict.fromkeys([(), *past.types.values()]))
    suits = np.array([state.suitable_nodes(kind) for kind in types], dtype=np.int32)
    number = {kind: place for place, kind in enumerate(types)}
    return state.cluster._replace(suits=suits), {name: number[kind] for name, kind in past.types.items()}


def fault_rates_per_s(past: ClusterPast) -> NDArray[np.float64]:
    """Return the rate of faults of each source, shape (sources,): what was counted, with one fault at the fleet's rate.

    A GPU that has not failed yet may still fail, and one that failed once may not do so often.
    """
    state = past.initial
    assert state is not None
    gpus, nodes = state.cluster.gpu_node.size, state.cluster.speed.size
    rates = np.zeros(fault_sources(state.cluster))
    for first, size, counted in ((0, gpus, past.gpu_faults), (gpus, nodes, past.node_faults)):
        faults = np.array([counted[number] for number in range(size)], dtype=np.float64)
        if faults.any() and past.observed_s > 0.0:
            mean_per_s = float(faults.mean()) / past.observed_s
            rates[first : first + size] = (faults + 1.0) / (past.observed_s + 1.0 / mean_per_s)
    return rates


def _fault_process(past: ClusterPast) -> FaultProcess:
    """Return repairs of the mean recorded length, or of that in the cluster file if nothing failed."""
    state = past.initial
    assert state is not None
    mean_s = float(np.mean(past.repairs_s)) if past.repairs_s else state.repair_mean_s
    none = np.zeros(0)
    return FaultProcess(
        shape=1.0, repair_mean_s=max(mean_s, 1.0), repair_sigma=0.0, transient_probability=0.0,
        outage_first=np.zeros(fault_sources(state.cluster) + 1, dtype=np.int32), outage_start_s=none,
        outage_end_s=none,
    )  # fmt: skip


TRACES = "traces"  # the preset that takes what users bring
HISTORY = "history"  # the preset that takes a scheduler's own past


@dataclass(frozen=True, slots=True)
class Hyperparameters:
    """Of masked PPO and A2C; gamma is 1 (rewards telescope to what is minimised)."""

    rows: int = 512  # environments
    steps: int = 128  # of each environment between two updates
    epochs: int = 3
    minibatch: int = 8192
    learning_rate: float = 1e-3  # falls linearly to 0
    gae_lambda: float = 0.98
    clip: float = 0.2
    entropy: float = 0.003
    value: float = 0.5
    kept: int = 4  # rollouts that replay draws on, the newest among them


# A2C takes one step for each rollout, so rollouts are short, and advantages are those of its paper.
A2C = Hyperparameters(steps=16, epochs=1, minibatch=512 * 16, learning_rate=7e-4, gae_lambda=1.0)


@dataclass(frozen=True, slots=True)
class GroupParameters:
    """Of the group-relative policy gradient."""

    groups: int = 64  # scenarios between two updates
    runs: int = 8  # of each, on the same faults
    group_minibatch: int = 2048  # decisions
    group_learning_rate: float = 3e-3  # falls linearly to 0
    group_clip: float = 0.2
    group_entropy: float = 0.02
    group_average: float = 0.04  # weight of each update in the average of weights that is the policy
    group_tail: float = 0.0  # share of the p99 of JCT in what is minimised, the rest is the mean
    group_horizon: float = 0.0  # mean JCTs after a decision that it is credited with; 0: with its whole run


# Of a network that knows much: its runs differ by little, and large steps forget.
TAUGHT = GroupParameters(
    groups=256, group_minibatch=16384, group_learning_rate=1e-3, group_entropy=0.003, group_average=0.1
)


# Where jobs arrive over time: the tail counts, and a decision is credited with what came after it.
OVER_TIME = GroupParameters(group_tail=0.15, group_horizon=4.0)


@dataclass(frozen=True, slots=True)
class DistilParameters:
    """Of distillation. Gains are in units of the mean estimate."""

    rounds: int = 4  # of labelling and learning; from the second on the network itself runs the imagined futures
    distil_first: float = 0.15  # share of the decisions that are labelled in the first, where futures cost least
    futures: int = 4  # imagined for each label
    width: int = 15  # candidates that are tried beside the first, of at most 15
    distil_horizon: int = 16  # jobs that are started in a future before the network's value replaces what is to come
    distil_share: float = 0.1  # of the decisions of a run: neighbours are much alike
    distil_own: float = 0.75  # of the scenarios of later rounds that the network runs, the others by the heuristic
    distil_block: int = 32  # scenarios between two snapshots
    distil_members: int = 4  # networks that learn in the last round; the policy is their mean
    distil_epochs: int = 10
    distil_minibatch: int = 512  # decisions
    distil_learning_rate: float = 2e-3  # falls linearly to 0
    distil_prior: float = 0.07  # standard deviation of what the network cannot predict
    distil_temperature: float = 0.02  # of the softmax of the expected cost
    distil_cost: float = 1.0  # weight of the expected cost beside the regression


@dataclass(frozen=True, slots=True)
class Preset:
    """A problem that can be trained on by name.

    Args:
        about: One line of description.
        needs_trace: Whether it trains on windows of a trace.
        build: Builds the problems to train and to validate on.
        reward: The reward that fits it.
        action: Default action of a step; the next three are defaults, too, for PPO and A2C.
        observation: Default observation.
        network: Default network.
        replay: Default use of earlier rollouts.
        ppo: Hyper-parameters of PPO.
        a2c: Of A2C.
        algorithm: Default algorithm.
        group: Hyper-parameters of the group-relative policy gradient from random weights.
        waiting: Whether policies may wait by default.
        orders: Default order regimes.
    """

    about: str
    needs_trace: bool
    build: Callable[[ProblemRequest], Problems]
    reward: str
    action: str = "node"
    observation: str = "full"
    network: str = "set"
    replay: str = "off"
    ppo: Hyperparameters = Hyperparameters()
    a2c: Hyperparameters = A2C
    algorithm: str = "ppo"
    group: GroupParameters = GroupParameters()
    waiting: bool = False
    orders: tuple[str, ...] = ("fifo",)

    def hyperparameters(self, algorithm: str, replay: str = "off") -> Hyperparameters:
        """Return those that an algorithm has on this problem, with a kind of replay."""
        if replay == "geppo":
            # Its updates go half as far, so there are twice as many; two rollouts are a batch of PPO's, three are kept.
            return replace(self.ppo, steps=self.ppo.steps // 2, kept=3)
        return self.a2c if algorithm == "a2c" else self.ppo


def _drawn_problems(name: str, request: ProblemRequest) -> Problems:
    """Return what is drawn of a preset, once for each order regime."""
    draw, sizes = NAMED[name].draw, request.sizes
    assert draw is not None
    # On 64 GPUs, a workload of the patent takes 400 steps: validations of all would take most of a run.
    validated = sizes.validated // (5 if name.startswith("patent64") else 1)
    return Problems(
        tuple(draw(sizes.trained, training_key(request.seed), regime) for regime in request.regimes),
        tuple(draw(validated, VALIDATION_SEED, regime) for regime in request.regimes),
    )


def _one_trace_problems(request: ProblemRequest) -> Problems:
    """Return windows of one trace on the cluster of `hetero64`, at one load."""
    workload, seed = read_trace(request.traces[0]), training_key(request.seed)
    return Problems(
        tuple(
            window_problem(workload, regime, windows=1024, runs=4, part=TRAINED_PART, seed=seed)
            for regime in request.regimes
        ),
        # A short trace has room for one or two windows there: under 8 draws each, the best of 12 would be luck.
        tuple(
            window_problem(
                workload, regime, windows=32, runs=None, part=VALIDATED_PART, seed=VALIDATION_SEED, disjoint=True
            )
            for regime in request.regimes
        ),
    )


def _patent_preset(name: str, about: str, rows: int) -> Preset:
    """Return the patent's method to the letter: R2's state, R3's network, R4's action, R5's reward, R6's replay."""
    return Preset(
        about, needs_trace=False, build=partial(_drawn_problems, name), reward="best_of_random", action="gpu",
        observation="patent-literal", network="mlp", replay="literal",
        ppo=Hyperparameters(rows=rows, minibatch=1024), a2c=replace(A2C, rows=2 * rows, minibatch=2 * rows * A2C.steps),
    )  # fmt: skip


def _our_variant(preset: Preset) -> Preset:
    """Return a preset of the patent in our reading: the state is of what is left of the job, rollouts are kept."""
    about = f"{preset.about} in our reading: the state of what is left of a job, batches from whole rollouts"
    return replace(preset, about=about, observation="patent", replay="dynamic")


_PATENT4 = _patent_preset("patent4", "16 jobs at once on 4 GPUs alike but for their faults, the patent's method", 64)
_PATENT64 = _patent_preset(
    "patent64", "64 jobs at once on 64 GPUs alike but for their faults, the patent's method", 128
)

PRESETS = {
    "hetero64": Preset(
        "64 jobs at once on 64 GPUs of two speeds, a lemon node",
        needs_trace=False,
        build=partial(_drawn_problems, "hetero64"),
        reward="potential",
    ),
    "hetero64-stream": Preset(
        "the same cluster, 128 jobs that arrive one by one at a load of 0.85",
        needs_trace=False,
        build=partial(_drawn_problems, "hetero64-stream"),
        reward="jct",
    ),
    TRACES: Preset(
        "windows of one trace or several, at several loads, on the same cluster or that of a cluster file",
        needs_trace=True,
        build=trace_problems,
        reward="jct",
        action="candidate",
        network="candidates",
        algorithm="group",
        group=OVER_TIME,
        waiting=NAMED[TRACES].waiting,
        orders=(NAMED[TRACES].order,),
    ),
    HISTORY: Preset(
        "windows of the jobs of a live scheduler's decisions (--history), on its cluster and under its rules",
        needs_trace=False,
        build=history_problems,
        reward="jct",
        action="candidate",
        network="candidates",
        algorithm="group",
        group=OVER_TIME,
        waiting=True,
    ),
    "philly": Preset(
        "windows of a Philly trace on the same cluster, arrivals over time",
        needs_trace=True,
        build=_one_trace_problems,
        reward="jct",
    ),
    "itp": Preset(
        "windows of an ITP trace on the same cluster, arrivals over time",
        needs_trace=True,
        build=_one_trace_problems,
        reward="jct",
    ),
    "patent4": _PATENT4,
    "patent64": _PATENT64,
    "patent4-ours": _our_variant(_PATENT4),
    "patent64-ours": _our_variant(_PATENT64),
}
