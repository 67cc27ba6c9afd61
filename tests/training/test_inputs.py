"""A folder belongs to a run on certain files: what they hold counts, not their names."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from longshore.cluster.files.errors import InputError
from longshore.cluster.files.output_file import LOCK, locked_folder
from longshore.training.config import TrainingConfig
from longshore.training.problems import PRESETS, TRACES, Problems
from longshore.training.run import learn, open_run
from longshore.training.tuning import tune
from tests.envs.random_run import small_problem

CHECKPOINTS = Path(__file__).parents[2] / "checkpoints"
FILES = ("traces", "history", "cluster", "faults", "init")


def config_in(folder: Path) -> TrainingConfig:
    """Return a configuration all of whose files are there."""
    files = {name: folder / f"{name}.txt" for name in FILES}
    for path in files.values():
        path.write_text("1")
    shutil.copyfile(CHECKPOINTS / "traces.zip", files["init"])
    named: dict[str, Any] = {name: str(path) for name, path in files.items()}
    named["traces"] = (named["traces"],)
    return TrainingConfig(
        preset=TRACES, algorithm="group", steps=100, seed=0, network="candidates", action="candidate", reward="jct",
        **named,
    )  # fmt: skip


def train_again(config: TrainingConfig, folder: Path) -> object:
    return open_run(config, folder)


def tune_again(config: TrainingConfig, folder: Path) -> object:
    runner: Any = SimpleNamespace(close=lambda: None)
    return tune(config, folder, lambda: runner, lambda _: None, trials=0, jobs=1)


@pytest.fixture(autouse=True)
def small_preset(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = small_problem()
    preset = replace(PRESETS[TRACES], build=lambda _: Problems((problem,), (problem,)))
    monkeypatch.setitem(PRESETS, TRACES, preset)


@pytest.mark.parametrize("again", [train_again, tune_again])
def test_a_run_or_a_study_goes_on_with_the_files_with_which_it_began_and_with_no_others(
    again: Callable[[TrainingConfig, Path], object], tmp_path: Path
) -> None:
    config, logdir = config_in(tmp_path), tmp_path / "runs"
    again(config, logdir)
    again(config, logdir)
    for name in FILES:
        path = tmp_path / f"{name}.txt"
        before = path.read_bytes()
        path.write_bytes((CHECKPOINTS / "hetero64-wait-1.zip").read_bytes() if name == "init" else b"2")
        with pytest.raises(InputError, match=rf"content of \S*{name}\.txt"):
            again(config, logdir)
        path.write_bytes(before)
        again(config, logdir)
    for kept in logdir.glob("*/inputs.json"):
        kept.write_text("[")
    with pytest.raises(InputError, match=r"inputs\.json"):
        again(config, logdir)


def learn_again(config: TrainingConfig, folder: Path) -> object:
    return learn(open_run(config, folder))


@pytest.mark.parametrize("again", [learn_again, tune_again])
def test_a_folder_in_which_another_process_writes_is_left_to_it(
    again: Callable[[TrainingConfig, Path], object], tmp_path: Path
) -> None:
    config, logdir = config_in(tmp_path), tmp_path / "runs"
    folder = logdir / (f"tune-{config.name}" if again is tune_again else config.name)
    folder.mkdir(parents=True)
    with locked_folder(folder), pytest.raises(InputError, match="another process"):
        again(config, logdir)
    assert {path.name for path in folder.iterdir()} <= {LOCK, "config.json", "inputs.json"}
    with locked_folder(folder):
        pass
