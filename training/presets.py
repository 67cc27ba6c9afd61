"""The presets of training: a problem to learn from by name, with hyper-parameters that work there."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from ..cluster.presets.drawn import VALIDATION_SEED, training_key
from ..cluster.presets.named import NAMED
from ..cluster.presets.problems import window_problem
from ..cluster.traces.read import read_trace
from .problems import TRAINED_PART, VALIDATED_PART, ProblemRequest, Problems, history_problems, trace_problems

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


def _drawn(name: str, request: ProblemRequest) -> Problems:
    """Return what is drawn of a preset, once for each order regime."""
    draw, sizes = NAMED[name].draw, request.sizes
    assert draw is not None
    # On 64 GPUs, a workload of the patent takes 400 steps: validations of all would take most of a run.
    validated = sizes.validated // (5 if name.startswith("patent64") else 1)
    return Problems(
        tuple(draw(sizes.trained, training_key(request.seed), regime) for regime in request.regimes),
        tuple(draw(validated, VALIDATION_SEED, regime) for regime in request.regimes),
    )


def _windows(request: ProblemRequest) -> Problems:
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
        about, needs_trace=False, build=partial(_drawn, name), reward="best_of_random", action="gpu",
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
        build=partial(_drawn, "hetero64"),
        reward="potential",
    ),
    "hetero64-stream": Preset(
        "the same cluster, 128 jobs that arrive one by one at a load of 0.85",
        needs_trace=False,
        build=partial(_drawn, "hetero64-stream"),
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
        build=_windows,
        reward="jct",
    ),
    "itp": Preset(
        "windows of an ITP trace on the same cluster, arrivals over time",
        needs_trace=True,
        build=_windows,
        reward="jct",
    ),
    "patent4": _PATENT4,
    "patent64": _PATENT64,
    "patent4-ours": _our_variant(_PATENT4),
    "patent64-ours": _our_variant(_PATENT64),
}
