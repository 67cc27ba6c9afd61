"""A training by a plan that ends goes on from its last checkpoint, as if nothing had been."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from longshore.planner.execution.measured import Measured
from tests.command_line import Command

HERE = Path(__file__).parent
COUNTING, SKIPPING = f"{HERE / 'counting.py'}:build", str(HERE / "skipping.py")
BLOCKS = [f"blocks.{i}" for i in range(5)]
PLAN = {
    "data": 2, "pipeline": 2, "micro_batch": 2, "batch": 8,
    "stages": [{"layers": ["words", "places", *BLOCKS[:2]]}, {"layers": [*BLOCKS[2:], "head"]}],
}  # fmt: skip


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plan.json").write_text(json.dumps(PLAN))
    return tmp_path


def losses(longshore: Command, steps: int, *options: object, plan: str = "plan.json") -> tuple[float, ...]:
    done = longshore("planner", "run", plan, COUNTING, "--steps", steps, "--json", "took.json", *options)
    assert done.status == 0, done.err
    return Measured.model_validate_json(Path("took.json").read_text()).losses


def names(folder: Path) -> list[str]:
    return sorted(it.name for it in folder.iterdir())


@pytest.mark.parametrize("options", [(), ("--offload", "auto", "--offload-folder", ".")], ids=["kept", "offloaded"])
def test_a_training_that_goes_on_is_bit_equal_to_one_that_never_ended(
    longshore: Command, folder: Path, options: tuple[str, ...]
) -> None:
    whole = losses(longshore, 9, "--save", "whole", *options)
    begun = losses(longshore, 6, "--checkpoints", "kept", "--checkpoint-s", 0, *options)
    assert names(folder / "kept") == ["step-000000004-a0", "step-000000005-a0"]  # of the steps before there were others
    draft = folder / "kept" / ".step-000000001-a0.draft"  # of one that was killed while it wrote
    draft.mkdir()
    (draft / "stage-0.pt").write_bytes(b"half")
    later = losses(longshore, 9, "--checkpoints", "kept", "--save", "later", *options)
    assert begun + later == whole
    assert names(folder / "kept") == ["step-000000005-a0", "step-000000008-a0"]
    for stage in (0, 1):
        one, other = (torch.load(folder / it / f"stage-{stage}.pt") for it in ("whole", "later"))
        assert all(torch.equal(one[name], other[name]) for name in one)
    done = longshore("planner", "run", "plan.json", COUNTING, "--steps", 9, "--checkpoints", "kept", *options)
    assert done.status == 0, done.err  # nothing is left to do


def test_what_no_training_can_go_on_from_is_told_in_one_line(
    longshore: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses(longshore, 1, "--checkpoints", "kept")
    (kept,) = (folder / "kept").iterdir()
    (folder / "other.json").write_text(json.dumps({**PLAN, "stages": [{"layers": ["words"]}, PLAN["stages"][1]]}))  # type: ignore[index]
    torn, strange = folder / "torn", folder / "strange"
    shutil.copytree(kept, torn / kept.name)
    (torn / kept.name / "stage-1.pt").write_bytes((kept / "stage-1.pt").read_bytes()[:1000])
    shutil.copytree(kept, strange / kept.name)
    torch.save({"step": 1}, strange / kept.name / "stage-0.pt")
    for plan, where, words in [
        ("other.json", "kept", "the checkpoint is of another plan"),
        ("plan.json", "torn", "it is no checkpoint of a stage"),
        ("plan.json", "strange", "it is no checkpoint of a stage"),
    ]:
        done = longshore("planner", "run", plan, COUNTING, "--steps", 3, "--checkpoints", where)
        assert (done.status, words in done.err) == (2, True), done.err
        assert sum(line.startswith("longshore: ") for line in done.err.splitlines()) == 1
    monkeypatch.setenv("LONGSHORE_CHECKPOINT", "/nowhere")
    done = longshore("planner", "run", "plan.json", COUNTING, "--steps", 3)
    assert (done.status, "the checkpoint cannot be read" in done.err) == (2, True), done.err


def test_a_checkpoint_that_cannot_be_written_stops_nobody(
    longshore: Command, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (folder / "kept").write_text("a file")
    assert len(losses(longshore, 2, "--checkpoints", "kept")) == 2
    assert "no checkpoint of step 2: " in capfd.readouterr().out
