"""The file of a plan: what the processes of a training need of it, and its predictions."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from ...cluster.files.errors import InputError
from ...cluster.files.input_problems import open_text
from ...cluster.files.output_file import write_text
from ...cluster.model.training_plan import MemorySaving, PlanFile, StagePlan

if TYPE_CHECKING:
    from ..plan import FoundPlan
    from ..request import PlanRequest


def plan_file_of(request: "PlanRequest", plan: "FoundPlan") -> PlanFile:
    """Return a plan in the format of its file.

    Raises:
        InputError: If a figure of it is beyond what files of plans hold, as with odd figures of layers or hardware.
    """
    names = [layer.name for layer in request.profile.layers]
    m = plan.micro_batches
    layout = plan.layout
    try:
        stages = tuple(
            StagePlan(
                layers=tuple(names[stage.first_layer : stage.last_layer + 1]), **stage.seconds._asdict(),
                flops=stage.flops, memory_bytes=stage.memory_bytes, tensor_bytes=m * stage.tensor_bytes,
                next_bytes=m * stage.next_bytes, ring_bytes=stage.ring_bytes,
            )
            for stage in plan.stages
        )  # fmt: skip
        return PlanFile(
            model=request.profile.name, hardware=request.hardware.name, **layout._asdict(), batch=request.batch,
            step_s=plan.step_s, iterations=request.iterations, bound_factor=plan.bound_factor,
            deadline_s=request.deadline_s or 0.0, stages=stages,
        )  # fmt: skip
    except ValidationError as error:
        field, problem = _first_problem(error)
        raise InputError(
            f"the plan's {field} cannot be written: {problem}", "check the figures of the model and the hardware"
        ) from error


def write_plan(path: Path, plan: PlanFile) -> None:
    """Write a plan.

    Raises:
        InputError: If it cannot be written.
    """
    write_text(path, plan.model_dump_json(indent=2) + "\n")


def read_plan(path: Path) -> PlanFile:
    """Read a plan that `longshore.stage` can run.

    Raises:
        InputError: If the file cannot be used, or the plan cannot be run.
    """
    with open_text(path) as file:
        text = file.read()
    return parse_plan(text, path)


def parse_plan(text: str, path: str | Path) -> PlanFile:
    """Return a plan that `longshore.stage` can run.

    Raises:
        InputError: If the text cannot be used, or the plan cannot be run.
    """
    try:
        plan = PlanFile.model_validate(json.loads(text))
    except ValidationError as error:
        place, problem = _first_problem(error)
        raise InputError(problem, "docs/planner.md has the fields", path=path, field=place) from error
    except (ValueError, RecursionError) as error:
        raise InputError("it is not JSON", "give a file of `longshore plan find --out`", path=path) from error
    if (lack := why_not_runnable(plan)) is not None:
        raise InputError(lack, "plan with --plain", path=path)
    return plan


def _first_problem(error: ValidationError) -> tuple[str, str]:
    """Return the field that is wrong, and the problem."""
    first = error.errors()[0]
    return ".".join(map(str, first["loc"])), str(first["msg"]).removeprefix("Value error, ")


def why_not_runnable(plan: PlanFile) -> str | None:
    """Return why `longshore.stage` cannot run a plan, None if it can."""
    if plan.tensor > 1:
        return "tensor parallelism splits layers inside, which needs a model written for it"
    return None if plan.saving is MemorySaving.none else f"{plan.saving} is not implemented"
