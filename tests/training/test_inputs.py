"""A folder belongs to a run on certain files: what they hold counts, not their names."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from longshore.cluster.files.errors import InputError
from longshore.training import run, tuning
from longshore.training.config import TrainingConfig
from longshore.training.problems import PRESETS, TRACES, Problems
from longshore.training.run import open_run
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
    named = {name: str(path) for name, path in files.items()}
    return TrainingConfig(
        preset=TRACES, algorithm="group", steps=100, seed=0, network="candidates", action="candidate", reward="jct",
        **named | {"traces": (named["traces"],)},  # type: ignore[arg-type]
    )  # fmt: skip


def train_again(config: TrainingConfig, folder: Path) -> object:
    return open_run(config, folder)


def tune_again(config: TrainingConfig, folder: Path) -> object:
    runner = SimpleNamespace(close=lambda: None)
    return tune(config, folder, lambda: runner, lambda _: None, trials=0, jobs=1)  # type: ignore[arg-type,return-value]


@pytest.mark.parametrize("again", [train_again, tune_again])
def test_a_run_or_a_study_goes_on_with_the_files_with_which_it_began_and_with_no_others(
    again: Callable[[TrainingConfig, Path], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = small_problem()
    preset = replace(PRESETS[TRACES], build=lambda _: Problems((problem,), (problem,)))
    for module in (run, tuning):
        monkeypatch.setitem(module.PRESETS, TRACES, preset)
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
