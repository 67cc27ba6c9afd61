"""Runs that are interrupted before their first update or in their last, or whose disk is full."""

import errno
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from longshore.agents.learned.checkpoint import load_policy
from longshore.cluster.files.errors import InputError
from longshore.cluster.model.problem import Problem
from longshore.training import run
from longshore.training.config import TrainingConfig
from longshore.training.problems import A2C, DistilParameters, GroupParameters, Hyperparameters, Sizes
from longshore.training.run import TrainingResult, train
from longshore.training.run_folder import RunFolder

SIZES = Sizes(64, 16)
CONFIGS: dict[str, dict[str, Any]] = {
    "group": {"steps": 500, "group": GroupParameters(groups=4, runs=4, group_minibatch=256)},
    "ppo": {"steps": 512, "hyperparameters": Hyperparameters(rows=16, steps=16, minibatch=128, epochs=1)},
    "a2c": {"steps": 512, "hyperparameters": replace(A2C, rows=16, minibatch=256)},
    "distil": {
        "steps": 40,
        "distil": DistilParameters(rounds=2, futures=2, distil_block=2, distil_epochs=2, distil_minibatch=32),
    },
}


def config_of(algorithm: Any) -> TrainingConfig:
    by_candidates: dict[str, Any] = {}
    if algorithm in ("group", "distil"):
        by_candidates = {"network": "candidates", "action": "candidate"}
    return TrainingConfig(
        preset="hetero64", algorithm=algorithm, seed=0, reward="dt", threads=1, **by_candidates, **CONFIGS[algorithm]
    )


@pytest.mark.few(1)
@pytest.mark.parametrize("algorithm", list(CONFIGS))
def test_a_run_that_is_interrupted_before_its_first_update_can_be_continued(
    algorithm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = RunFolder.begin

    def interrupted(run_folder: RunFolder, steps: int) -> None:
        begin(run_folder, steps)
        run_folder.interrupt()

    config = config_of(algorithm)
    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "begin", interrupted)
        stopped = train(config, tmp_path / "stopped", sizes=SIZES)
    assert not stopped.finished
    load_policy(stopped.best)
    again, whole = train(config, tmp_path / "stopped", sizes=SIZES), train(config, tmp_path / "whole", sizes=SIZES)
    assert again.finished
    assert again.score == whole.score
    one, other = (load_policy(result.best).network.state_dict() for result in (again, whole))
    assert all(np.array_equal(one[name], other[name]) for name in other)


def test_a_signal_in_the_last_update_ends_the_command_before_the_comparison(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learn = run.LEARNERS["group"]

    def interrupted(problems: Sequence[Problem], run_folder: RunFolder) -> int:
        steps = learn(problems, run_folder)
        signal.raise_signal(signal.SIGTERM)
        return steps

    monkeypatch.setitem(run.LEARNERS, "group", interrupted)
    monkeypatch.setattr(run, "_compare_later", lambda *_: pytest.fail("compared"))
    result = train(config_of("group"), tmp_path, sizes=SIZES)
    assert result.finished
    assert (result.interrupted_by, result.later) == (signal.SIGTERM, ())


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> TrainingResult:
    return train(config_of("group"), tmp_path_factory.mktemp("whole"), sizes=SIZES)


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "name", ["policy.zip", "snapshot.npz", "best.zip", "score.json", "spent.json", "inputs.json", "config.json"]
)
def test_a_run_whose_disk_is_full_leaves_no_part_of_a_file_and_goes_on_when_there_is_room(
    name: str, whole: TrainingResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_file = Path.replace

    def refused(part: Path, target: Path) -> Path:
        if target.name == name:
            raise OSError(errno.ENOSPC, "No space left on device", str(part))
        return replace_file(part, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", refused)
        with pytest.raises(InputError, match="No space left on device"):
            train(config_of("group"), tmp_path, sizes=SIZES)
    assert not list(tmp_path.rglob("*.part"))
    again = train(config_of("group"), tmp_path, sizes=SIZES)
    assert again.score == whole.score
    assert again.best.read_bytes() == whole.best.read_bytes()
