"""A training by a plan that ends goes on from its last checkpoint, as if nothing had been."""

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from longshore.planner.execution.worker import MeasuredTraining
from tests.command_line import Command
from tests.support import processes

pytestmark = [pytest.mark.full, pytest.mark.long]

HERE = Path(__file__).parent
COUNTING = f"{HERE / 'counting.py'}:dropping"  # random numbers are part of what goes on
BLOCKS = [f"blocks.{i}" for i in range(5)]
STAGES = [{"layers": ["words", "places", *BLOCKS[:2]]}, {"layers": [*BLOCKS[2:], "head"]}]
PLAN: dict[str, Any] = {"data": 2, "pipeline": 2, "micro_batch": 2, "batch": 8, "stages": STAGES}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plan.json").write_text(json.dumps(PLAN))
    (tmp_path / "two.json").write_text(json.dumps({**PLAN, "data": 1}))
    (tmp_path / "larger.json").write_text(json.dumps({**PLAN, "data": 1, "batch": 16}))
    (tmp_path / "other.json").write_text(json.dumps({**PLAN, "data": 1, "stages": [{"layers": ["words"]}, STAGES[1]]}))
    return tmp_path


def losses(longshore: Command, steps: int, *options: object, plan: str = "plan.json") -> tuple[float, ...]:
    done = longshore("plan", "run", plan, COUNTING, "--steps", steps, "--json", "took.json", *options)
    assert done.status == 0, done.err
    return MeasuredTraining.model_validate_json(Path("took.json").read_text()).losses


def names(folder: Path) -> list[str]:
    return sorted(it.name for it in folder.iterdir())


def test_a_training_that_goes_on_is_bit_equal_to_one_that_never_ended(longshore: Command, folder: Path) -> None:
    whole = losses(longshore, 9, "--save", "whole")
    every = ("--checkpoints", "kept", "--checkpoint-s", 0)
    begun = losses(longshore, 6, *every, "--offload", "auto", "--offload-folder", ".")
    assert names(folder / "kept") == ["step-000000004-a0", "step-000000005-a0"]  # the newest of several
    draft = folder / "kept" / ".step-000000001-a0.draft"  # of one that was killed while it wrote
    draft.mkdir()
    (draft / "stage-0.pt").write_bytes(b"half")
    later = losses(longshore, 9, "--checkpoints", "kept", "--save", "later")
    assert begun + later == whole
    assert names(folder / "kept") == ["step-000000005-a0", "step-000000008-a0"]
    for stage in (0, 1):
        one, other = (torch.load(folder / it / f"stage-{stage}.pt") for it in ("whole", "later"))
        assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_checkpoint_that_cannot_be_gone_on_from_is_reported_in_one_line(
    longshore: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = ("plan", "run", "two.json", COUNTING, "--checkpoints")
    assert longshore(*run, "kept", "--steps", 1).status == 0
    again = longshore(*run, "kept", "--steps", 1)
    assert (again.status, again.err) == (0, "")  # nothing is left to do
    (kept,) = (folder / "kept").iterdir()
    for name in ("torn", "strange", "mixed"):
        shutil.copytree(kept, folder / name / kept.name)
    file = kept.name, "stage-1.pt"
    folder.joinpath("torn", *file).write_bytes((kept / "stage-1.pt").read_bytes()[:1000])
    torch.save({"step": 0}, folder.joinpath("strange", *file))
    torch.save({**torch.load(kept / "stage-1.pt"), "step": 1}, folder.joinpath("mixed", *file))
    for plan, where, words in [
        ("other.json", "kept", "the checkpoint is of another plan"),
        ("larger.json", "kept", "the checkpoint is of a plan with a batch of 8, and this one has 16"),
        ("two.json", "torn", "it is no checkpoint of a stage"),
        ("two.json", "strange", "it is no checkpoint of a stage"),
        ("two.json", "mixed", "its stages are of several steps"),
    ]:
        done = longshore("plan", "run", plan, COUNTING, "--steps", 3, "--checkpoints", where)
        assert (done.status, words in done.err) == (2, True), done.err
        assert sum(line.startswith("longshore: ") for line in done.err.splitlines()) == 1
    monkeypatch.setenv("LONGSHORE_CHECKPOINT", "/nowhere")
    done = longshore("plan", "run", "two.json", COUNTING, "--steps", 3)
    assert (done.status, "the checkpoint cannot be read" in done.err) == (2, True), done.err


def test_a_checkpoint_that_cannot_be_written_stops_no_training(folder: Path) -> None:
    (folder / "kept").write_text("a file")
    command = [sys.executable, "-m", "longshore", "plan", "run", "two.json", COUNTING]
    done = processes.run(
        [*command, "--steps", "2", "--checkpoints", "kept"], capture_output=True, check=True, env=os.environ
    )
    assert "no checkpoint of step 2: " in done.stdout
    assert "step 2 of 2: loss" in done.stdout


def test_an_attempt_that_has_been_followed_by_another_takes_nothing_from_it(
    longshore: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = []
    for attempt, steps in (("ls-job-2", 2), ("ls-job-1", 6), ("ls-job-3", 3)):
        monkeypatch.setenv("LONGSHORE_ATTEMPT", attempt)
        taken.append(len(losses(longshore, steps, "--checkpoints", "kept", "--checkpoint-s", 0, plan="two.json")))
    assert taken == [2, 4, 1]  # the last goes on from what the second attempt has written
    assert names(folder / "kept" / "job") == ["step-000000001-a2", "step-000000002-a3"]
