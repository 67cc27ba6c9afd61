"""`longshore plan run`, `longshore plan find --out` and `--degrees` as a user meets them."""

import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from longshore.cluster.model.training_plan import PlanFile, StagePlan
from longshore.planner.execution.plan_file import read_plan
from longshore.planner.execution.worker import MeasuredTraining, StageMeasured, main, print_comparison
from longshore.planner.hardware import read_hardware, write_hardware
from tests.command_line import Command
from tests.planner.models import HOST

HERE = Path(__file__).parent
COUNTING = f"{HERE / 'counting.py'}:build"
PLAN: dict[str, Any] = {
    "data": 1, "pipeline": 2, "micro_batch": 2, "batch": 4,
    "stages": [{"layers": ["words", "places", "blocks.0"]}, {"layers": ["blocks.1", "blocks.2", "head"]}],
}  # fmt: skip

FEW, MORE = "2x1x1", ("1x1x1", "1x3x1", "2x2x1", "4x1x1")  # degrees: data, pipeline and tensor parallel


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder to work in, with a profile of a machine and a plan."""
    monkeypatch.chdir(tmp_path)
    write_hardware(tmp_path / "here.yaml", HOST)
    (tmp_path / "plan.json").write_text(json.dumps(PLAN))
    return tmp_path


def test_a_profile_of_a_machine_is_read_as_it_was_written(folder: Path) -> None:
    assert read_hardware(folder / "here.yaml") == HOST


@pytest.mark.parametrize("degrees", [FEW, *(pytest.param(it, marks=pytest.mark.full) for it in MORE)])
def test_a_plan_is_written_and_carried_out_as_asked(longshore: Command, folder: Path, degrees: str) -> None:
    options = ("--samples", 80, "--batch", 8, "--hardware", "here.yaml", "--degrees", degrees, "--out", "made.json")
    done = longshore("plan", "find", COUNTING, *options)
    assert done.status == 0, done.err
    assert "Measured on ours" in done.out
    plan = read_plan(folder / "made.json")
    assert f"{plan.data}x{plan.pipeline}x{plan.tensor}" == degrees
    layers = [name for stage in plan.stages for name in stage.layers]
    assert layers == ["words", "places", *(f"blocks.{i}" for i in range(5)), "head", "(outside of all layers)"]
    assert plan.stages[-1].layers[-2] == "head"  # what is computed outside is no stage
    assert plan.step_s >= max(stage.busy_s for stage in plan.stages) > 0.0


@pytest.mark.full
def test_a_run_writes_losses_and_what_each_stage_took(longshore: Command, folder: Path) -> None:
    options = ("--samples", 80, "--batch", 8, "--hardware", "here.yaml", "--degrees", "1x2x1", "--out", "made.json")
    longshore("plan", "find", COUNTING, *options)
    done = longshore("plan", "run", "made.json", COUNTING, "--steps", 2, "--json", "took.json")
    assert done.status == 0, done.err
    found = MeasuredTraining.model_validate_json((folder / "took.json").read_text())
    assert (len(found.losses), len(found.stages)) == (2, 2)


def test_predicted_times_stand_beside_measured_ones() -> None:
    stage = StagePlan(layers=("words", "head"), forward_s=0.2, backward_s=0.4, gradients_s=0.1, optimizer_s=0.0)
    plan = PlanFile(data=2, pipeline=1, micro_batch=1, batch=2, step_s=1.0, stages=(stage,), hardware="ours")
    took = StageMeasured(forward_s=0.25, backward_s=0.4, gradients_s=0.05, optimizer_s=0.0, wait_s=0.1)
    out = StringIO()
    found = MeasuredTraining(step_s=0.8, stages=(took,), losses=(1.0,))
    print_comparison(Console(file=out, width=120), plan, found)
    rows = [line.split() for line in out.getvalue().splitlines()[2:]]
    print_comparison(Console(file=out, width=120), plan, found, ranks_per_device=2)
    assert out.getvalue().count("shared one") == 1
    assert out.getvalue().endswith("Here 2 shared one.\n")
    assert rows == [
        ["0", "words", "...", "head", "forward", "200.0", "ms", "250.0", "ms", "-20", "%"],
        ["backward", "400.0", "ms", "400.0", "ms", "+0", "%"],
        ["gradients", "100.0", "ms", "50.0", "ms", "+100", "%"],
        ["wait", "300.0", "ms", "100.0", "ms", "+200", "%"],
        ["all", "2", "ranks", "iteration", "1000.0", "ms", "800.0", "ms", "+25", "%"],
    ]


# A model whose output is a dict.
NAMED = """\
import torch

class Named(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.it, self.last = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)

    def forward(self, x):
        return {"logits": self.last(self.it(x))}

def build():
    return Named(), torch.zeros(2, 3), lambda found, target: found["logits"].square().mean(), torch.zeros(2, 3)
"""


@pytest.mark.full
@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("plan find MODEL --samples 80 --hardware here.yaml --degrees 2x2", "--degrees: '2x2' is not data x pipeline"),
        (
            "plan find MODEL --samples 80 --hardware here.yaml --degrees 1x1x0",
            "--degrees: '1x1x0' is not data x pipeline",
        ),
        (
            "plan find MODEL --samples 80 --hardware here.yaml --degrees 3x1x1 --batch 8",
            "no plan has the degrees 3x1x1",
        ),
        ("plan find MODEL --samples 80 --hardware here.yaml --degrees 1x1x2", "no plan has the degrees 1x1x2"),
        ("plan find MODEL --samples 80 --hardware here.yaml --degrees 1x5x1", "no plan has the degrees 1x5x1"),
        (
            "plan find MODEL --samples 80 --hardware here.yaml --cluster here.yaml",
            "--cluster: the hardware profile is of",
        ),
        ("plan find MODEL --samples 80", "--cluster: there is no cluster file"),
        ("plan find MODEL --samples 80 --hardware few.yaml", "reduce should have 2 to 2 members"),
        ("plan run none.json MODEL", "none.json: cannot be read"),
        ("plan run here.yaml MODEL", "here.yaml: "),
        ("plan run list.json MODEL", "list.json: "),
        ("plan run uneven.json MODEL", "cannot share a batch of 5"),
        ("plan run stages.json MODEL", "there are 2 stages, and the pipeline degree is 3"),
        ("plan run strange.json MODEL", "Extra inputs are not permitted"),
        ("plan run tensor.json MODEL", "tensor parallelism splits layers inside"),
        ("plan run zero.json MODEL", "ZeRO-1 is not implemented"),
        ("plan run single.json none.py", "there is no file none.py"),
        ("plan run plan.json MODEL --json none/x.json", "--json: none/x.json: there is no folder none"),
        ("plan run other.json MODEL", "the model has no layer 'blocks.9'"),
        ("plan run single.json values.py", "the output of the model is no single number"),
        ("plan run unknown.json MODEL", "the model has no layer 'encoder'"),
        ("plan run plan.json MODEL --save file", "--save: file is not a folder: File exists"),
        ("plan run plan.json MODEL --save file/kept", "--save: file/kept is not a folder: Not a directory"),
        ("plan run many.json MODEL", "PLAN: the plan has 65 ranks, and this machine runs at most 64; submit a job"),
        ("plan run single.json MODEL --schedule gpipe", "--schedule: "),
        ("plan run cut.json named.py", "the model returns a dict, which torch.distributed.pipelining cannot send"),
        ("plan run plan.json values.py:build --json values.py", "--json: values.py is also the file of MODEL"),
        (
            "plan find values.py:build --samples 8 --hardware here.yaml --out values.py",
            "--out: values.py is also the file of",
        ),
        (
            "plan find table.csv --samples 8 --hardware here.yaml --out table.csv",
            "--out: table.csv is also the file of MODEL",
        ),
    ],
)
def test_what_cannot_be_carried_out_is_told_in_one_line(
    longshore: Command, folder: Path, arguments: str, message: str
) -> None:
    write_hardware(folder / "few.yaml", HOST.model_copy(update={"speeds": (1.0, 1.0)}))
    made: dict[str, dict[str, object]] = {
        "uneven": {"batch": 5}, "stages": {"pipeline": 3}, "strange": {"colour": "red"}, "tensor": {"tensor": 2},
        "zero": {"saving": "ZeRO-1"}, "other": {"stages": [PLAN["stages"][0], {"layers": ["blocks.9"]}]},
        "single": {"pipeline": 1, "stages": [{"layers": ["0"]}]},
        "unknown": {"pipeline": 1, "stages": [{"layers": ["encoder"]}]},
        "many": {"data": 65, "pipeline": 1, "batch": 130, "stages": [{"layers": ["words"]}]},
        "cut": {"pipeline": 2, "stages": [{"layers": ["it"]}, {"layers": ["last"]}]},
    }  # fmt: skip
    for name, changed in made.items():
        (folder / f"{name}.json").write_text(json.dumps({**PLAN, **changed}))
    (folder / "list.json").write_text("[]")
    (folder / "file").touch()
    (folder / "table.csv").touch()
    (folder / "named.py").write_text(NAMED)
    head = "import torch\nfrom torch import nn\n"
    (folder / "values.py").write_text(
        f"{head}def build():\n    return nn.Sequential(nn.Linear(3, 3)), torch.zeros(2, 3)\n"
    )
    done = longshore(*(COUNTING if it == "MODEL" else it for it in arguments.split()))
    assert done.status == 2
    assert message in done.err
    assert sum(line.startswith("longshore: ") for line in done.err.splitlines()) == 1


@pytest.mark.full
@pytest.mark.usefixtures("folder")
def test_a_whole_model_may_return_anything(longshore: Command, folder: Path) -> None:
    (folder / "named.py").write_text(NAMED)
    whole = {**PLAN, "pipeline": 1, "data": 2, "stages": [{"layers": ["it", "last"]}]}
    (folder / "whole.json").write_text(json.dumps(whole))
    done = longshore("plan", "run", "whole.json", "named.py", "--steps", 3, "--json", "took.json")
    assert done.status == 0, done.err
    losses = MeasuredTraining.model_validate_json((folder / "took.json").read_text()).losses
    assert losses[0] > losses[1] > losses[2]


def test_a_plan_file_has_its_ranks_and_micro_batches() -> None:
    plan = PlanFile.model_validate({**PLAN, "data": 2, "batch": 24})
    assert (plan.ranks, plan.micro_batches) == (4, 6)


@pytest.mark.full
def test_a_training_without_a_step_left_reports_that_nothing_was_measured(longshore: Command, folder: Path) -> None:
    (folder / "one.json").write_text(json.dumps({**PLAN, "pipeline": 1, "stages": [{"layers": ["words"]}]}))
    run = ("plan", "run", "one.json", COUNTING, "--steps", 1, "--checkpoints", "kept")
    assert longshore(*run).status == 0
    again = longshore(*run, "--json", "took.json")
    assert again.status == 0
    assert not (folder / "took.json").exists()


@pytest.mark.parametrize("steps", ["0", "-4", "1e3", "many"])
def test_a_stage_takes_a_whole_number_of_steps(steps: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["plan.json", "train.py", f"--steps={steps}"])
    assert "is not a whole number of at least 1" in capsys.readouterr().err
