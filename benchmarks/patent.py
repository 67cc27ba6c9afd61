"""What replay costs in training: steps a second against the same run without it, and memory."""

import itertools
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path

import numpy as np

from longshore.agents.learned.checkpoint import schema_of
from longshore.cluster.model.problem import Problem
from longshore.cluster.presets.problems import Regime, hetero64_problem
from longshore.envs.layout import observation_size
from longshore.training.config import ACTOR_CRITICS, TrainingConfig
from longshore.training.ppo import learn_by_ppo
from longshore.training.problems import Hyperparameters
from longshore.training.replay import sample_bytes
from longshore.training.run_folder import Progress, RunFolder
from longshore.training.snapshot import SNAPSHOT
from longshore.training.validation import Validation

from .harness import Row, main, medians

SIZE = Hyperparameters(rows=128, steps=64, minibatch=2048)
UPDATES, ROUNDS, SEED = 9, 3, 2026
LEAST_RATIO, MOST_OVER = 0.7, 1.05


def learn(problem: Problem, algorithm: str, replay: str, folder: Path) -> float:
    """Train for some updates; return the steps a second of the median one, collecting and learning."""
    marks: list[tuple[int, float]] = []

    def show(state: Progress) -> None:
        marks.append((state.steps, time.perf_counter()))

    config = TrainingConfig.model_validate({
        "preset": "hetero64", "algorithm": algorithm, "steps": UPDATES * SIZE.rows * SIZE.steps, "seed": SEED,
        "reward": "potential", "replay": replay, "hyperparameters": asdict(SIZE), "threads": 1,
    })  # fmt: skip
    schema = schema_of(
        algorithm=config.algorithm, network="set", action="node", observation="full", waiting=False, node_gpus=(8,) * 8
    )
    validation = Validation(hetero64_problem(8, SEED, Regime(oracle=True)))
    learn_by_ppo(problem, RunFolder(folder, schema, validation, config, show))
    later = marks[SIZE.kept :]  # when the replay is full
    return statistics.median((b[0] - a[0]) / (b[1] - a[1]) for a, b in itertools.pairwise(later))


def kept_bytes(folder: Path) -> int:
    """Return the size of the rollouts in a run's snapshot."""
    with np.load(folder / SNAPSHOT) as file:
        return sum(file[name].nbytes for name in file.files if name.startswith("replay/"))


def measure() -> Iterator[Row]:
    """Yield steps a second with replay over those without, and kept bytes over those that are documented."""
    problem = hetero64_problem(512, 1_000_000, Regime(oracle=True))
    kept: dict[str, int] = {}

    def one(algorithm: str, replay: str) -> float:
        with tempfile.TemporaryDirectory() as folder:
            rate = learn(problem, algorithm, replay, Path(folder))
            if replay != "off":
                kept[replay] = kept_bytes(Path(folder))
        return rate

    for algorithm, replays in ACTOR_CRITICS.items():
        found = medians({replay: partial(one, algorithm, replay) for replay in replays}, ROUNDS)
        yield Row(f"{algorithm}: updates without replay", found["off"], "steps/s")
        for replay in replays[1:]:
            ratio = found[replay] / found["off"]
            yield Row(f"{algorithm}: the same with replay {replay}, over that", ratio, "", least=LEAST_RATIO)
    documented = SIZE.kept * SIZE.rows * SIZE.steps * sample_bytes(observation_size("full", "node", 64, 8), 8)
    for replay, size in kept.items():
        yield Row(f"memory that replay {replay} keeps", size / 2**20, "MiB")
        yield Row(
            f"memory that replay {replay} keeps, over what is documented",
            size / documented,
            "",
            least=1.0,
            most=MOST_OVER,
        )


if __name__ == "__main__":
    main(measure)
