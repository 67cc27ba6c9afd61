"""What can be trained by name: problems to train and validate on, and hyper-parameters that work there."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..cluster.errors import InputError
from ..cluster.hetero64 import hetero64
from ..cluster.scenarios import Scenarios, stack
from ..cluster.traces.detect import read_trace
from ..cluster.windows import sample_windows
from ..envs.batch import Problem, View

TRAINING_SCENARIOS = 16_384
VALIDATION_SCENARIOS = 1000
TRAINING_SEED, VALIDATION_SEED = 1_000_000, 1  # of scenarios: no training seed below a million meets another set
WINDOW_JOBS = 96
TRAINED_PART, VALIDATED_PART = (0.0, 0.6), (0.6, 0.7)  # of a trace, in order of time; the rest is for tests
LOAD = 0.85
CAPACITY = 112  # GPUs of speed 1 that 32 of speed 1 and 32 of speed 2.5 are worth


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
class Preset:
    """A problem that can be trained on by name.

    Args:
        about: One line of description.
        trace: Format of the trace that it needs, empty if none.
        build: From the seed, the trace and whether waiting is allowed to the problems to train and to validate on.
        reward: The reward that fits it.
    """

    about: str
    trace: str
    build: Callable[[int, Path | None, bool], tuple[Problem, Problem]]
    reward: str


def _hetero64(seed: int, trace: Path | None, waiting: bool) -> tuple[Problem, Problem]:  # noqa: FBT001
    del trace
    return (
        hetero64_problem(TRAINING_SCENARIOS, TRAINING_SEED + seed, waiting=waiting),
        hetero64_problem(VALIDATION_SCENARIOS, VALIDATION_SEED, waiting=waiting),
    )


def hetero64_problem(scenarios: int, seed: int, *, waiting: bool) -> Problem:
    """Return scenarios of the preset `hetero64`."""
    cluster, drawn, process, rules = hetero64(scenarios, seed)
    return Problem(cluster, drawn, process, rules._replace(waiting=waiting))


def window_problem(
    trace: Path, *, windows: int, runs: int, part: tuple[float, float], seed: int, waiting: bool, load: float = LOAD
) -> Problem:
    """Return windows of a trace on clusters of the preset `hetero64`, several fault seeds for each window.

    Scenario i plays window i // runs. Jobs that ask more than 48 GPUs get 48: all 64 are rarely up at once.

    Args:
        trace: A file of any known format.
        windows: Windows of 96 consecutive jobs.
        runs: Draws of speeds, lemon and faults for each window.
        part: The share of the trace, in order of time, that windows come from.
        seed: Of windows and draws.
        waiting: Whether policies may wait.
        load: Offered load that arrivals are scaled to, on the cluster's speed.
    """
    cluster, drawn, process, rules = hetero64(windows * runs, seed, jobs=1)
    rng = np.random.default_rng(seed)
    workload = read_trace(trace)
    jobs = min(WINDOW_JOBS, max(1, int(workload.jobs * (part[1] - part[0]))))
    found = sample_windows(
        workload, jobs, windows, rng, first=part[0], last=part[1], max_gpus=48, load=load, cluster_gpus=CAPACITY
    )
    scenarios: Scenarios = stack(
        cluster,
        [window for window in found for _ in range(runs)],
        fault_seed=drawn.fault_seed,
        source_rate_per_s=drawn.source_rate_per_s,
        speed=drawn.speed,
    )
    return Problem(cluster, scenarios, process, rules._replace(waiting=waiting))


def _windows(seed: int, trace: Path | None, waiting: bool) -> tuple[Problem, Problem]:  # noqa: FBT001
    if trace is None:
        raise InputError("this preset trains on windows of a trace", "give its file", field="--trace")
    return (
        window_problem(trace, windows=1024, runs=4, part=TRAINED_PART, seed=TRAINING_SEED + seed, waiting=waiting),
        window_problem(trace, windows=32, runs=8, part=VALIDATED_PART, seed=VALIDATION_SEED, waiting=waiting),
    )


PRESETS = {
    "hetero64": Preset("64 jobs at once on 64 GPUs of two speeds, a lemon node", "", _hetero64, "potential"),
    "philly": Preset("windows of a Philly trace on the same cluster, arrivals over time", "philly", _windows, "jct"),
    "itp": Preset("windows of an ITP trace on the same cluster, arrivals over time", "itp", _windows, "jct"),
}
DEFAULT_VIEW = View()
