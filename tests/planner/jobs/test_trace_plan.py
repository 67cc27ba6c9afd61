"""`longshore trace plan` from the command line."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from longshore.cli import app
from longshore.cluster.traces.read import read_trace

ROOT = Path(__file__).absolute().parents[3]
SMALL, HETERO64 = ROOT / "examples/small.yaml", ROOT / "examples/hetero64.yaml"
MODELS = ROOT / "examples/plan/models.yaml"


def trace(folder: Path) -> Path:
    path = folder / "jobs.csv"
    path.write_text("gpus,work_s,submit_s\n8,90000,0\n32,500000,10\n64,500000,15\n1,30,20\n7,90000,30\n")
    return path


def typed(*words: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["trace", "plan", *map(str, words)])
    return done.exit_code, done.output + str(done.exception or "")


@pytest.mark.full
def test_each_job_gets_plans_if_it_can(tmp_path: Path) -> None:
    out = tmp_path / "planned.csv"
    status, message = typed(trace(tmp_path), out, "--models", MODELS, "--cluster", SMALL)
    assert status == 0, message
    assert "5 jobs, 2 with plans" in message
    assert "3 have no plan" in message
    found = read_trace(out)
    assert found.plans is not None
    assert [len(plans) > 0 for plans in found.plans] == [True, True, False, False, False]
    assert found.gpus.tolist() == [8, 32, 48, 1, 7]  # 3/4 of the cluster at most
    assert found.work_s.tolist() == [90000.0, 500000.0, 500000.0, 30.0, 90000.0]


@pytest.mark.parametrize(
    ("models", "cluster", "output", "problem"),
    [
        (MODELS, HETERO64, "planned.csv", "simple model"),
        (MODELS, SMALL, "planned.json", "only csv is written"),
        (MODELS, SMALL, "jobs.csv", "is also the file of"),
        (SMALL, SMALL, "planned.csv", "models"),
    ],
)
def test_what_cannot_be_planned_is_refused(
    models: Path, cluster: Path, output: str, problem: str, tmp_path: Path
) -> None:
    status, message = typed(trace(tmp_path), tmp_path / output, "--models", models, "--cluster", cluster)
    assert status != 0
    assert problem in message
