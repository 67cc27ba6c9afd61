"""A user's file that ends the process is no training that succeeded, wherever it does so and whatever the status."""

import json
import sys
from pathlib import Path

import pytest

from longshore.cluster.files.processes import free_port
from longshore.cluster.files.signals import SigtermExit
from longshore.planner.execution.cutting import refuse_exit
from longshore.planner.execution.worker import main

PLAN = {"data": 1, "pipeline": 1, "micro_batch": 4, "batch": 4, "stages": [{"layers": ["0"]}]}
SCRIPT = """\
import sys, torch
from torch import nn

def reach(place):
    if place == {place!r}:
        {leave}

class Model(nn.Linear):
    def forward(self, x):
        reach("forward")
        return super().forward(x)

def build():
    reach("build")
    return nn.Sequential(Model(4, 4)), torch.zeros(4, 4), loss, torch.zeros(4, 4)

def loss(output, target):
    reach("loss")
    return (output - target).square().mean()

def optimizer(parameters):
    reach("optimizer")
    return torch.optim.SGD(parameters, lr=0.1)

def data(first, samples):
    reach("data")
    return torch.zeros(samples, 4), torch.zeros(samples, 4)

reach("import")
"""


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make this process the only one of a plan; a file that runs changes the path of modules."""
    alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    for name, value in alone.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setattr(sys, "path", list(sys.path))


def status_of(folder: Path, place: str, leave: str) -> int:
    (folder / "plan.json").write_text(json.dumps(PLAN))
    (folder / "train.py").write_text(SCRIPT.format(place=place, leave=leave))
    return main([str(folder / "plan.json"), str(folder / "train.py"), "--steps", "1"])


@pytest.mark.parametrize("leave", ["sys.exit()", "sys.exit(0)", "sys.exit(3)", "sys.exit('done')", "raise SystemExit"])
@pytest.mark.parametrize("place", ["import", "build", "optimizer", "data", "forward", "loss"])
def test_a_file_that_exits_fails_its_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], place: str, leave: str
) -> None:
    assert status_of(tmp_path, place, leave) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_file_that_does_not_exit_is_trained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of(tmp_path, "nowhere", "sys.exit(0)") == 0
    assert "step 1 of 1" in capsys.readouterr().out


def test_a_stop_by_a_signal_is_no_exit_of_the_file() -> None:
    with pytest.raises(SigtermExit), refuse_exit():
        raise SigtermExit(143)
