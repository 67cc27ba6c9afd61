"""What a last update with a rate below 0 did to the runs by PPO and A2C of docs/results.md; a run shows both ends.

`python -m benchmarks.last_update SEED ...` trains each way with these seeds by the former rates, and compares the
weights before and after the last update on the held-out workloads. Runs whose policy cannot have changed are left out.
Each run is stored as soon as it is finished in benchmarks/last_update.json, which docs/results.md shows: the same
command goes on after a stop. Two seeds of all ways take about 40 minutes of one core.
"""

import copy
import itertools
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from torch import Tensor

from longshore.agents.learned.checkpoint import policy_of
from longshore.agents.learned.network import Network
from longshore.agents.learned.schema import Schema
from longshore.eval.comparison import run_all
from longshore.training import ppo
from longshore.training.config import TrainingConfig, config_of
from longshore.training.run import train
from longshore.training.run_folder import RunFolder

from .harness import progress
from .learning import here, problem_of
from .learning_pages import endings_of
from .learning_ways import ENDINGS, HELD_OUT, SEED, STORE, Measured, key, read_endings, read_runs


class Validated(NamedTuple):
    """A network at a validation."""

    percent: float
    network: Network


class Watched:
    """Keeps what a run comes to: its validations, and the weights before an update with a rate below 0."""

    def __init__(self) -> None:
        self.validated: list[Validated] = []
        self.before: dict[str, Tensor] = {}
        self.folder: RunFolder | None = None

    def update_learning_rate(self, plain: Callable[..., None]) -> Callable[..., None]:
        """Return what SB3 does before each update, which notes the weights first."""

        def noted(model: Any, optimizers: Any) -> None:
            if model._current_progress_remaining < 0.0 and not self.before:
                self.before = copy.deepcopy(model.policy.network.state_dict())
            plain(model, optimizers)

        return noted

    def validate(self, plain: Callable[..., None]) -> Callable[..., None]:
        """Return what a run does at a validation, which notes the network."""

        def noted(folder: RunFolder, network: Network, steps: int, **others: Any) -> None:
            plain(folder, network, steps, **others)
            assert folder.latest is not None
            self.folder = folder
            self.validated.append(Validated(folder.latest.percent, copy.deepcopy(network)))

        return noted


def former(start: float, steps: int, rollout: int) -> Callable[[float], float]:
    """Return the rate by which the runs of docs/results.md were trained."""
    del steps, rollout
    return lambda left: start * left


def config_by(line: str) -> TrainingConfig:
    """Return the configuration of a command of `make bench-learning`."""
    words = line.split()
    given = {word: value for word, value in itertools.pairwise(words) if word.startswith("--")}
    return config_of(
        preset=given["--preset"], algorithm=given["--algo"], steps=float(given["--steps"]), seed=int(given["--seed"]),
        network=given.get("--network"), action=given.get("--action"), observation=None, reward=given.get("--reward"),
        replay=given.get("--replay"), waiting=True if "--waiting" in words else None, threads=1, oracle=True,
    )  # fmt: skip


def longer_percent(line: str) -> float:
    """Train by a command; return by how much the mean held-out makespan is longer without the last update."""
    config, watched = config_by(line), Watched()
    with (
        tempfile.TemporaryDirectory() as name,
        mock.patch.object(ppo, "falling_rate", former),
        mock.patch.object(
            BaseAlgorithm, "_update_learning_rate", watched.update_learning_rate(BaseAlgorithm._update_learning_rate)
        ),
        mock.patch.object(RunFolder, "validate", watched.validate(RunFolder.validate)),
    ):
        train(config, Path(name))
    folder = watched.folder
    assert folder is not None
    *earlier, after = watched.validated
    network = copy.deepcopy(after.network)
    network.load_state_dict(watched.before)
    before = Validated(folder.validation.score(policy_of("before", folder.schema, network)).percent, network)
    chosen = [min([*earlier, last], key=lambda it: it.percent).network for last in (after, before)]
    if chosen[0] is chosen[1]:
        return 0.0
    made_s = [_held_out_s(config, folder.schema, it) for it in chosen]
    return 100.0 * (made_s[1] / made_s[0] - 1.0)


def _held_out_s(config: TrainingConfig, schema: Schema, network: Network) -> float:
    problem = problem_of(config.preset, HELD_OUT, SEED, waiting=config.waiting)
    return float(run_all(problem, [policy_of("it", schema, network)])["it"].makespan_s.mean())


def lines_of(seeds: list[int]) -> Iterator[str]:
    """Yield the commands of all runs by PPO and A2C whose policy may have changed."""
    runs = read_runs(STORE)
    for seed in seeds:
        for _, line, stays in endings_of(runs, seed, 1.0):
            if not stays:
                yield line


def main(seeds: list[int]) -> None:
    """Measure what is missing."""
    torch.set_num_threads(1)
    found = read_endings(ENDINGS)
    for line in lines_of(seeds):
        name = key((line,))
        if name not in found.longer_percent:
            longer = round(longer_percent(line), 4)
            found = Measured(machine=here(), longer_percent={**found.longer_percent, name: longer})
            ENDINGS.write_text(found.model_dump_json(indent=1) + "\n", encoding="utf-8")
            progress(f"{name}: {longer:+.4f} %")


if __name__ == "__main__":
    main([int(word) for word in sys.argv[1:]])
