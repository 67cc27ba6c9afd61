"""A data-parallel plan whose replicas have the seats of a ring: it trains as ever, also where one is killed."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from longshore.planner.execution.worker import MakeRing, main
from tests.command_line import Command
from tests.support import processes
from tests.support.processes import PYTHON_PATH

pytestmark = pytest.mark.full

HERE = Path(__file__).parent
STEPS = 12
BATCH = 12  # three micro-batches of two samples for each replica: no power of two
PLAN: dict[str, Any] = {
    "data": 2, "pipeline": 1, "micro_batch": 2, "batch": BATCH, "step_s": 0.5,
    "stages": [{"layers": ["words", "places", *(f"blocks.{i}" for i in range(5)), "head"]}],
}  # fmt: skip
# The first process that computes shard 1 of step 5 kills itself.
KILLED = """\
import os, signal
from pathlib import Path
from tests.planner.execution.counting import build as made
from tests.planner.execution.counting import data as counted

build = made

def data(first, samples):
    if first == 5 * 12 + 6:
        try:
            Path("killed").touch(exist_ok=False)
        except FileExistsError:
            return counted(first, samples)
        os.kill(os.getpid(), signal.SIGKILL)
    return counted(first, samples)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plan.json").write_text(json.dumps(PLAN))
    (tmp_path / "killed.py").write_text(KILLED)
    return tmp_path


def in_ring(*options: str, model: str = "killed.py", kept: str = "kept", status: int = 0) -> str:
    command = [sys.executable, "-m", "longshore.ring", *options, "--"]
    command += [sys.executable, "-m", "longshore.stage", "plan.json", model, "--steps", str(STEPS)]
    command += ["--save", "ring", "--checkpoints", kept, "--checkpoint-s", "0"]
    environment = {**os.environ, "PYTHONPATH": PYTHON_PATH, "OMP_NUM_THREADS": "1"}
    done = processes.run(command, env=environment, capture_output=True, check=False)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize("spares", ["1", pytest.param("0", marks=pytest.mark.full)])
def test_a_replica_that_is_killed_changes_no_bit(longshore: Command, folder: Path, spares: str) -> None:
    """With a spare that takes its seat; and without one, when the other one computes both shards."""
    done = longshore("plan", "run", "plan.json", f"{HERE / 'counting.py'}:build", "--steps", STEPS, "--save", "all")
    assert done.status == 0, done.err
    message = in_ring("--seats", "2", "--spares", spares)
    assert (folder / "killed").exists()
    assert f"step {STEPS} of {STEPS}: loss of this replica" in message
    assert "in the median; predicted 0.500 s" in message
    all_ranks, ring = (torch.load(folder / name / "stage-0.pt", weights_only=True) for name in ("all", "ring"))
    assert all_ranks.keys() == ring.keys()
    for name, tensor in all_ranks.items():
        if spares == "1":
            assert torch.equal(ring[name], tensor), name
        else:  # sums of another order
            torch.testing.assert_close(ring[name], tensor, rtol=1e-5, atol=1e-7)
    assert [it.name[:14] for it in sorted((folder / "kept").iterdir())][-1] == f"step-{STEPS:09d}"


@pytest.mark.full
def test_the_same_command_resumes_from_the_newest_checkpoint(folder: Path) -> None:
    (folder / "killed").touch()
    in_ring("--seats", "2")
    assert "loss of this replica" not in in_ring("--seats", "2")


def test_a_checkpoint_that_cannot_be_written_ends_no_training(folder: Path) -> None:
    (folder / "killed").touch()
    (folder / "file").touch()
    message = in_ring("--seats", "2", kept="file/kept")
    assert "no checkpoint of step 3: Not a directory; training continues" in message
    assert f"step {STEPS} of {STEPS}: loss of this replica" in message
    assert "Traceback" not in message


@pytest.mark.full
def test_what_is_no_checkpoint_of_this_training_is_reported_in_one_line(folder: Path) -> None:
    (folder / "killed").touch()
    for number, spoil in enumerate((cut_short, of_another_model, without_a_ring)):
        kept = folder / f"kept-{number}"
        kept.mkdir()
        message = spoil(kept)
        message = in_ring("--seats", "2", kept=kept.name, status=3)
        assert message in message, message
        assert "Traceback" not in message


def cut_short(kept: Path) -> str:
    (kept / "step-000000005-g1-m0.pt").write_bytes(b"PK and no more")
    return "it is no checkpoint of a ring; name another folder"


def of_another_model(kept: Path) -> str:
    torch.save({"step": 5, "model": {"a": torch.zeros(3)}}, kept / "step-000000005-g1-m0.pt")
    return "the newest checkpoint is of another model"


def without_a_ring(kept: Path) -> str:
    (kept / "step-000000005-a0").mkdir()
    return "its checkpoints are of a training without a ring"


def unused(*_: object, **__: object) -> Any:
    raise AssertionError("no ring is made")


@pytest.mark.parametrize(
    ("plan", "options", "message"),
    [
        ({}, ("--offload", "auto"), "--offload: a ring does not have this option"),
        ({}, ("--ranks-per-device", "2"), "--ranks-per-device: a ring does not have this option"),
        ({}, ("--schedule", "gpipe"), "--schedule: a ring does not have this option"),
        ({}, ("--json", "x.json"), "--json: a ring does not have this option"),
        (
            {"pipeline": 2, "stages": [{"layers": ["words"]}, {"layers": ["head"]}]}, (),
            "only the replicas of a data-parallel plan have seats",
        ),
        ({"saving": "recompute"}, (), "recompute is not implemented"),
    ],
)  # fmt: skip
def test_what_no_ring_does_is_refused_in_one_line(
    folder: Path, capsys: pytest.CaptureFixture[str], plan: dict[str, Any], options: tuple[str, ...], message: str
) -> None:
    (folder / "plan.json").write_text(json.dumps({**PLAN, **plan}))
    make: MakeRing = unused
    assert main(["plan.json", str(HERE / "counting.py"), *options], ring=make) == 2
    reported = capsys.readouterr().err
    assert message in reported
    assert reported.count("\n") == 1


def test_a_ring_of_other_seats_than_the_plan_has_replicas_is_refused(folder: Path) -> None:
    command = [sys.executable, "-m", "longshore.ring", "--seats", "1", "--"]
    command += [sys.executable, "-m", "longshore.stage", "plan.json", str(HERE / "counting.py")]
    environment = {**os.environ, "PYTHONPATH": PYTHON_PATH}
    done = processes.run(command, env=environment, capture_output=True, check=False)
    assert done.returncode != 0
    assert "the ring has 1 seats, and the plan is for 2" in done.stdout + done.stderr
