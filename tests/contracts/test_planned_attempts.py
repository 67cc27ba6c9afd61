"""A plan is carried out on every backend: ranks on two nodes find one another, train, and leave a checkpoint.

The double of Kubernetes runs the processes of pods, but its pods have no addresses at which others would reach them.
"""

import json
import os
import sys
from pathlib import Path

import pytest

from longshore.scheduler.backends.kubernetes.backend import KubernetesBackend
from longshore.scheduler.model.states import Run
from longshore.testing.backends import THREE_GPUS, BackendTrial, command_attempt, wait_for_end
from tests.support.processes import PYTHON_PATH

ROOT = Path(__file__).parents[2]
MODEL = f"{ROOT / 'tests' / 'planner' / 'execution' / 'counting.py'}:build"
BLOCKS = [f"blocks.{i}" for i in range(5)]
STAGES = [["words", "places"], BLOCKS[:3], [*BLOCKS[3:], "head"]]
PLAN = {"data": 1, "pipeline": 3, "micro_batch": 2, "batch": 8, "stages": [{"layers": it} for it in STAGES]}


@pytest.mark.full
def test_a_plan_is_carried_out_by_ranks_on_two_nodes(trial: BackendTrial) -> None:
    if isinstance(trial.backend, KubernetesBackend):
        pytest.skip("pods of the double have no addresses")
    wanted = ("--json", str(trial.folder / "took.json"), "--checkpoints", str(trial.folder / "kept"))
    variables = {
        "PATH": os.environ["PATH"], "PYTHONPATH": PYTHON_PATH, "OMP_NUM_THREADS": "1",
        "LONGSHORE_PLAN": json.dumps(PLAN),
    }  # fmt: skip
    command = (sys.executable, "-m", "longshore.stage", "-", MODEL, "--steps", "3", *wanted)
    attempt = command_attempt(command, environment=variables)
    trial.backend.launch(attempt, THREE_GPUS)
    status = wait_for_end(trial.backend, attempt)
    assert status.run is Run.EXITED
    reported = json.loads((trial.folder / "took.json").read_text())
    assert len(reported["losses"]) == 3
    assert reported["losses"][2] < reported["losses"][0]
    (kept,) = (trial.folder / "kept" / attempt.job).iterdir()
    assert sorted(it.name for it in kept.iterdir()) == ["stage-0.pt", "stage-1.pt", "stage-2.pt"]
    trial.backend.forget(attempt.name)
