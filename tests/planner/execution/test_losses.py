"""Planned trainings: whatever the plan, losses and weights are those of one process."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from longshore.cluster.files.processes import free_port
from longshore.cluster.model.training_plan import PlanFile, StagePlan
from longshore.planner.execution.cutting import load_script
from longshore.planner.execution.launching import launch_ranks
from longshore.planner.execution.plan_file import write_plan
from longshore.planner.execution.worker import MeasuredTraining

pytestmark = pytest.mark.full

HERE = Path(__file__).parent
COUNTING, SKIPPING, ODD = HERE / "counting.py", HERE / "skipping.py", HERE / "odd.py"
LAYERS = {
    COUNTING: ("words", "places", *(f"blocks.{i}" for i in range(5)), "head", "(outside of all layers)"),
    ODD: ("words", "frozen", "body", "branch", "last", "unused"),
    SKIPPING: ("first", *(f"blocks.{i}" for i in range(4)), "last", "(outside of all layers)"),
}
STEPS, BATCH, SEED = 3, 24, 3
# Model, data, pipeline, micro-batch, first layers of the stages but the first, schedule.
CASES = [
    (f"{COUNTING}:build", 1, 1, 24, (), None),
    (f"{COUNTING}:build", 1, 4, 3, (1, 2, 7), None),
    (f"{COUNTING}:build", 1, 8, 2, (1, 2, 3, 4, 5, 6, 7), None),
    (f"{COUNTING}:build", 2, 2, 3, (6,), "gpipe"),
    (f"{COUNTING}:build", 2, 3, 12, (3, 4), None),  # one micro-batch for three stages
    (f"{COUNTING}:build", 8, 1, 3, (), None),
    (f"{COUNTING}:tied", 1, 3, 4, (2, 7), None),
    (f"{COUNTING}:tied", 2, 4, 2, (2, 4, 7), None),
    (str(SKIPPING), 1, 3, 2, (2, 4), None),
    (str(SKIPPING), 2, 4, 1, (1, 2, 4), "gpipe"),
]
# The first two stages train nothing.
CASES += [(f"{ODD}:frozen", 2, 3, 3, (1, 2), None)]
CASES += [(f"{ODD}:mixed", 4, 1, 2, (), None), (f"{ODD}:mixed", 1, 1, 8, (), None)]
RNG = np.random.default_rng(11)


def drawn() -> tuple[str, int, int, int, tuple[int, ...], None]:
    """Return any plan of up to eight ranks."""
    path = [COUNTING, SKIPPING][RNG.integers(2)]
    cuttable = len(LAYERS[path]) - 2  # before any layer but the first
    pipeline = int(RNG.integers(1, min(8, cuttable + 1) + 1))
    data = int(RNG.choice([it for it in (1, 2, 3, 4, 6, 8) if it * pipeline <= 8]))
    micro_batch = int(RNG.choice([it for it in range(1, BATCH + 1) if BATCH // data % it == 0]))
    cuts = tuple(sorted((1 + RNG.permutation(cuttable)[: pipeline - 1]).tolist()))
    target = str(path) if path == SKIPPING else f"{path}:{['build', 'tied'][RNG.integers(2)]}"
    return target, data, pipeline, micro_batch, cuts, None


CASES += [drawn() for _ in range(4)]


def plan_of(target: str, data: int, pipeline: int, micro_batch: int, cuts: tuple[int, ...]) -> PlanFile:
    names = LAYERS[Path(target.partition(".py")[0] + ".py")]
    ends = zip((0, *cuts), (*cuts, len(names)), strict=True)
    stages = tuple(StagePlan(layers=names[first:end]) for first, end in ends)
    return PlanFile(data=data, pipeline=pipeline, micro_batch=micro_batch, batch=BATCH, stages=stages)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with what every plan gave: eight processes carry them out, one after the other."""
    folder = tmp_path_factory.mktemp("plans")
    lines = []
    for at, case in enumerate(CASES):
        write_plan(folder / f"plan-{at}.json", plan_of(*case[:5]))
        arguments = [folder / f"plan-{at}.json", case[0], "--steps", STEPS, "--seed", SEED]
        arguments += ["--json", folder / f"{at}.json", "--save", folder / f"weights-{at}"]
        arguments += [] if case[5] is None else ["--schedule", case[5]]
        lines.append({"arguments": list(map(str, arguments)), "port": free_port()})
    (folder / "lines.json").write_text(json.dumps(lines))
    launch_ranks(8, [str(folder / "lines.json")], module="tests.planner.execution.every_plan", pipelines=True)
    return folder


def alone(target: str) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Return losses and weights of one process that trains on whole batches."""
    script = load_script(target, SEED)
    model, losses = script.made.model, []
    optimizer = script.make_optimizer([it for it in model.parameters() if it.requires_grad])
    for step in range(STEPS):
        batch, wanted = script.samples(step * BATCH, BATCH)
        loss = script.made.loss_of(model(**batch) if isinstance(batch, dict) else model(batch), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, dict(model.state_dict())


@pytest.fixture(scope="module")
def by_one() -> dict[str, tuple[list[float], dict[str, torch.Tensor]]]:
    return {target: alone(target) for target in {case[0] for case in CASES}}


@pytest.mark.parametrize("at", range(len(CASES)))
def test_a_plan_trains_as_one_process(
    at: int, folder: Path, by_one: dict[str, tuple[list[float], dict[str, torch.Tensor]]]
) -> None:
    losses, weights = by_one[CASES[at][0]]
    found = MeasuredTraining.model_validate_json((folder / f"{at}.json").read_text())
    assert losses[-1] < losses[0]
    assert found.losses == pytest.approx(losses, rel=1e-5)
    stages = [torch.load(folder / f"weights-{at}" / f"stage-{k}.pt") for k in range(CASES[at][2])]
    assert {name for stage in stages for name in stage} == set(weights)
    for stage in stages:
        for name, weight in stage.items():
            torch.testing.assert_close(weight, weights[name], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("at", range(len(CASES)))
def test_every_stage_reports_its_times(at: int, folder: Path) -> None:
    found = MeasuredTraining.model_validate_json((folder / f"{at}.json").read_text())
    assert len(found.stages) == CASES[at][2]
    for stage in found.stages:
        assert min(stage.forward_s, stage.backward_s, stage.optimizer_s) > 0.0
        assert (stage.gradients_s > 1e-5) or CASES[at][1] == 1
        busy_s = stage.forward_s + stage.backward_s + stage.gradients_s + stage.optimizer_s
        assert busy_s + stage.wait_s == pytest.approx(found.step_s, rel=0.5)
