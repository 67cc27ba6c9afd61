"""What can be trained by name: problems to train and validate on, and hyper-parameters that work there."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ..cluster.errors import InputError
from ..cluster.traces.detect import read_trace
from ..envs.batch import Problem
from ..envs.problems import Regime, hetero64_problem, window_problem

TRAINING_SCENARIOS = 16_384
VALIDATION_SCENARIOS = 1000
TRAINING_SEED, VALIDATION_SEED = 1_000_000, 1  # of scenarios: no training seed below a million meets another set
TRAINED_PART, VALIDATED_PART = (0.0, 0.6), (0.6, 0.7)  # of a trace, in order of time; the rest is for tests


@dataclass(frozen=True, slots=True)
class Hyperparameters:
    """Of masked PPO; gamma is 1 (rewards telescope to what is minimised)."""

    rows: int = 512  # environments
    steps: int = 128  # of each environment between two updates
    epochs: int = 3
    minibatch: int = 8192
    learning_rate: float = 1e-3  # falls linearly to 0
    gae_lambda: float = 0.98
    clip: float = 0.2
    entropy: float = 0.003
    value: float = 0.5


@dataclass(frozen=True, slots=True)
class GroupParameters:
    """Of the group-relative policy gradient."""

    groups: int = 64  # scenarios between two updates
    runs: int = 8  # of each, on the same faults
    group_minibatch: int = 2048  # decisions
    group_learning_rate: float = 3e-3  # falls linearly to 0
    group_clip: float = 0.2
    group_entropy: float = 0.02


@dataclass(frozen=True, slots=True)
class Preset:
    """A problem that can be trained on by name.

    Args:
        about: One line of description.
        needs_trace: Whether it trains on windows of a trace.
        build: From the seed, the trace and the regime to the problems to train and to validate on.
        reward: The reward that fits it.
    """

    about: str
    needs_trace: bool
    build: Callable[[int, Path | None, Regime], tuple[Problem, Problem]]
    reward: str


def _hetero64(seed: int, trace: Path | None, regime: Regime) -> tuple[Problem, Problem]:
    del trace
    return (
        hetero64_problem(TRAINING_SCENARIOS, TRAINING_SEED + seed, regime),
        hetero64_problem(VALIDATION_SCENARIOS, VALIDATION_SEED, regime),
    )


def _windows(seed: int, trace: Path | None, regime: Regime) -> tuple[Problem, Problem]:
    if trace is None:
        raise InputError("this preset trains on windows of a trace", "give its file", field="--trace")
    workload = read_trace(trace)
    return (
        window_problem(workload, regime, windows=1024, runs=4, part=TRAINED_PART, seed=TRAINING_SEED + seed),
        window_problem(workload, regime, windows=32, runs=8, part=VALIDATED_PART, seed=VALIDATION_SEED, disjoint=True),
    )


PRESETS = {
    "hetero64": Preset(
        "64 jobs at once on 64 GPUs of two speeds, a lemon node", needs_trace=False, build=_hetero64, reward="potential"
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
}
