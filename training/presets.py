"""What can be trained by name: problems to train and validate on, and hyper-parameters that work there."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from ..cluster.files.errors import InputError
from ..cluster.model.problem import Problem
from ..cluster.presets.problems import Regime, hetero64_problem, patent_problem, window_problem
from ..cluster.presets.streams import VALIDATION_SEED, training_key
from ..cluster.traces.detect import read_trace

TRAINING_SCENARIOS = 16_384
VALIDATION_SCENARIOS = 1000
VALIDATIONS = 12  # in a run, spread evenly
STREAM_JOBS, STREAM_LOAD = 128, 0.85
TRAINED_PART, VALIDATED_PART = (0.0, 0.6), (0.6, 0.7)  # of a trace, in order of time; the rest is for tests


@dataclass(frozen=True, slots=True)
class Sizes:
    """Of a run, beside those that can be asked for."""

    trained: int = TRAINING_SCENARIOS  # where the problem is drawn; windows of a trace are as many as there are
    validated: int = VALIDATION_SCENARIOS
    validations: int = VALIDATIONS


SIZES = Sizes()


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


# Of a network that knows much: its runs differ by little, and large steps forget.
TAUGHT = GroupParameters(
    groups=256, group_minibatch=16384, group_learning_rate=1e-3, group_entropy=0.003, group_average=0.1
)


@dataclass(frozen=True, slots=True)
class DistilParameters:
    """Of distillation. Gains are in units of the mean estimate."""

    rounds: int = 4  # of labelling and learning; from the second on the network itself runs the imagined futures
    distil_first: float = 0.15  # share of the decisions that are labelled in the first, where futures cost least
    futures: int = 4  # imagined for each label
    width: int = 15  # candidates that are tried beside the first, of at most 15
    distil_horizon: int = 16  # jobs that are started in a future before the network's value stands for what is to come
    distil_share: float = 0.1  # of the decisions met: neighbours tell much the same
    distil_own: float = 0.75  # of the scenarios of later rounds that the network runs, the others by the heuristic
    distil_block: int = 32  # scenarios between two snapshots
    distil_members: int = 4  # networks that learn in the last round; the policy is their mean
    distil_epochs: int = 10
    distil_minibatch: int = 512  # decisions
    distil_learning_rate: float = 2e-3  # falls linearly to 0
    distil_prior: float = 0.07  # standard deviation of what the network cannot tell
    distil_temperature: float = 0.02  # of the softmax of the expected cost
    distil_cost: float = 1.0  # weight of the expected cost beside the regression


@dataclass(frozen=True, slots=True)
class Preset:
    """A problem that can be trained on by name.

    Args:
        about: One line of description.
        needs_trace: Whether it trains on windows of a trace.
        build: From the seed, the trace, the regime and the sizes to the problems to train and to validate on.
        reward: The reward that fits it.
        action: What one step picks if nothing is said; so are the next three, for PPO and A2C.
        observation: What is seen.
        network: What decides.
        replay: How earlier rollouts are learned from.
        ppo: Hyper-parameters of PPO.
        a2c: Of A2C.
    """

    about: str
    needs_trace: bool
    build: Callable[[int, Path | None, Regime, Sizes], tuple[Problem, Problem]]
    reward: str
    action: str = "node"
    observation: str = "full"
    network: str = "set"
    replay: str = "off"
    ppo: Hyperparameters = Hyperparameters()
    a2c: Hyperparameters = A2C

    def hyperparameters(self, algorithm: str, replay: str = "off") -> Hyperparameters:
        """Return those that an algorithm has on this problem, with a kind of replay."""
        if replay == "geppo":
            # Its updates go half as far, so there are twice as many; two rollouts are a batch of PPO's, three are kept.
            return replace(self.ppo, steps=self.ppo.steps // 2, kept=3)
        return self.a2c if algorithm == "a2c" else self.ppo


def _hetero64(seed: int, trace: Path | None, regime: Regime, sizes: Sizes) -> tuple[Problem, Problem]:
    del trace
    return (
        hetero64_problem(sizes.trained, training_key(seed), regime),
        hetero64_problem(sizes.validated, VALIDATION_SEED, regime),
    )


def _stream(seed: int, trace: Path | None, regime: Regime, sizes: Sizes) -> tuple[Problem, Problem]:
    del trace
    return (
        hetero64_problem(sizes.trained, training_key(seed), regime, jobs=STREAM_JOBS, load=STREAM_LOAD),
        hetero64_problem(sizes.validated, VALIDATION_SEED, regime, jobs=STREAM_JOBS, load=STREAM_LOAD),
    )


def _windows(seed: int, trace: Path | None, regime: Regime, sizes: Sizes) -> tuple[Problem, Problem]:
    del sizes
    if trace is None:
        raise InputError("this preset trains on windows of a trace", "give its file", field="--trace")
    workload = read_trace(trace)
    return (
        window_problem(workload, regime, windows=1024, runs=4, part=TRAINED_PART, seed=training_key(seed)),
        # A short trace has room for one or two windows there: under 8 draws each, the best of 12 would be luck.
        window_problem(
            workload, regime, windows=32, runs=None, part=VALIDATED_PART, seed=VALIDATION_SEED, disjoint=True
        ),
    )


def _patent(gpus: int, seed: int, trace: Path | None, regime: Regime, sizes: Sizes) -> tuple[Problem, Problem]:
    del trace
    return (
        patent_problem(gpus, sizes.trained, training_key(seed), regime),
        # On 64 GPUs a workload takes 400 steps: validations of all would take most of a run.
        patent_problem(gpus, sizes.validated // (5 if gpus == 64 else 1), VALIDATION_SEED, regime),
    )


def _patent_preset(gpus: int, about: str, rows: int) -> Preset:
    """Return the patent's method as printed: R2's state, R3's network, R4's action, R5's reward, R6's replay."""
    return Preset(
        about, needs_trace=False, build=partial(_patent, gpus), reward="best_of_random", action="gpu",
        observation="patent", network="mlp", replay="dynamic",
        ppo=Hyperparameters(rows=rows, minibatch=1024), a2c=replace(A2C, rows=2 * rows, minibatch=2 * rows * A2C.steps),
    )  # fmt: skip


PRESETS = {
    "hetero64": Preset(
        "64 jobs at once on 64 GPUs of two speeds, a lemon node", needs_trace=False, build=_hetero64, reward="potential"
    ),
    "hetero64-stream": Preset(
        "the same cluster, 128 jobs that arrive one by one at a load of 0.85",
        needs_trace=False,
        build=_stream,
        reward="jct",
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
    "patent4": _patent_preset(4, "16 jobs at once on 4 GPUs alike but for their faults, the patent's method", 64),
    "patent64": _patent_preset(64, "64 jobs at once on 64 GPUs alike but for their faults, the patent's method", 128),
}
