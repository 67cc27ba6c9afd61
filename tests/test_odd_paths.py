"""Commands take files of any name, and write files of any name."""

import json
import shutil
from pathlib import Path

import pytest

from longshore.cluster.files.output_file import encodable_text, in_one_line
from longshore.training.config import TrainingConfig
from tests.checkout import ROOT, SMALL
from tests.command_line import Command

# Bytes that are no UTF-8, what pages, figures, progress and formats take for their own, and what a shell does.
ODD = "caf\udce9 @20ms 日本 🏖 %s {x} $x $\\frac <b>&amp;'\" ~ [red]x[bold]\nb\x1b[31m\tc"
CHECKPOINTS = ROOT / "src" / "longshore" / "checkpoints"
JOBS = "id,gpus,work_s,submit_s\n" + "".join(f"{at},{1 + at % 2},{100 + at},{10 * at}\n" for at in range(200))


class Files:
    """A cluster, a trace and a policy, each of one name."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        self.cluster, self.trace, self.policy = (folder / f"{name}{end}" for end in (".yaml", ".csv", ".zip"))
        shutil.copy(SMALL, self.cluster)
        shutil.copy(CHECKPOINTS / "traces.zip", self.policy)
        self.trace.write_text(JOBS)


def assert_plain(said: str) -> None:
    """Nothing of it steers a terminal, and no name is cut in two."""
    assert "\x1b" not in said
    assert "\nb" not in said
    assert all(it.isprintable() for it in said.split("\n"))


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path, ODD)


@pytest.mark.full
def test_a_comparison_takes_and_writes_them(longshore: Command, files: Files) -> None:
    page, figures = files.folder / f"{ODD}.html", files.folder / f"{ODD}.json"
    done = longshore(
        "evaluate", "--cluster", files.cluster, "--trace", files.trace, "--policy", files.policy, "--policy", "pack",
        "--order", "fifo", "--report", page, "--json", figures,
    )  # fmt: skip
    assert done.status == 0, done.err
    assert_plain(done.err)
    assert "</html>" in page.read_text(encoding="utf-8")
    assert in_one_line(files.policy.stem) in json.loads(figures.read_text("utf-8"))["policies"]


def test_a_simulation_takes_and_writes_them(longshore: Command, files: Files) -> None:
    jobs, events = files.folder / f"{ODD}.jobs", files.folder / f"{ODD}.events"
    done = longshore(
        "simulate", "--cluster", files.cluster, "--trace", files.trace, "--policy", files.policy, "--jobs-out", jobs,
        "--events", events,
    )  # fmt: skip
    assert done.status == 0, done.err
    assert_plain(done.err)
    assert len(json.loads(jobs.read_text())) == 200


@pytest.mark.full
def test_a_training_takes_and_writes_them(longshore: Command, files: Files) -> None:
    logdir = files.folder / encodable_text(ODD)
    asked = ["train", "--trace", files.trace, "--cluster", files.cluster, "--steps", 64, "--preset", "traces"]
    done = longshore(*asked, "--logdir", logdir)
    assert done.status == 0, done.err
    assert_plain(done.err)
    assert list(logdir.glob("*/best.zip"))


@pytest.mark.full
def test_a_folder_that_tensorboard_could_not_write_is_refused_in_one_line(longshore: Command, tmp_path: Path) -> None:
    done = longshore("train", "--preset", "patent4", "--steps", 64, "--logdir", tmp_path / "caf\udce9")
    assert done.status == 2
    assert done.err.splitlines()[-1].startswith("longshore: ")
    assert "Traceback" not in done.err


@pytest.mark.parametrize("letters", [10, 100, 240])
def test_the_folder_of_a_run_has_a_name_that_file_systems_take(letters: int) -> None:
    traces = ["\udce9" * letters + end for end in ("a.csv", "b.csv")]
    names = {TrainingConfig(preset="traces", steps=1, seed=0, reward="jct", traces=(it,)).name for it in traces}
    assert len(names) == 2
    for it in names:
        assert len(it.encode()) <= 200
        assert it.isprintable()


def test_a_configuration_that_is_none_is_refused_however_deep_it_is() -> None:
    for text in ("", "null", "[" * 100_000, '{"steps": ' * 100_000):
        with pytest.raises(ValueError):  # noqa: PT011
            TrainingConfig.of_text(text)
