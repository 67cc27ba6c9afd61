"""A plan as a file: what the workers of a training need to know of it, and what was predicted."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from ...cluster.files.errors import InputError
from ...cluster.files.output_file import write_text
from ...cluster.model.training_plan import PlanFile, Saving, StagePlan

if TYPE_CHECKING:
    from ..plan import FoundPlan
    from ..question import Question


FIX = "give a file of `longshore plan find --out`"


def file_of(asked: "Question", plan: "FoundPlan") -> PlanFile:
    """Return a plan as its file has it."""
    names = [it.name for it in asked.profile.layers]
    m = plan.micro_batches
    stages = tuple(
        StagePlan(
            layers=tuple(names[it.first_layer : it.last_layer + 1]), **it.seconds._asdict(), flops=it.flops,
            memory_bytes=it.memory_bytes, tensor_bytes=m * it.tensor_bytes, next_bytes=m * it.next_bytes,
            ring_bytes=it.ring_bytes,
        )
        for it in plan.stages
    )  # fmt: skip
    layout = plan.layout
    return PlanFile(
        model=asked.profile.name, hardware=asked.hardware.name, **layout._asdict(), batch=asked.batch,
        step_s=plan.step_s, iterations=asked.iterations, bound_factor=plan.bound_factor,
        deadline_s=asked.deadline_s or 0.0, stages=stages,
    )  # fmt: skip


def write_plan(path: Path, plan: PlanFile) -> None:
    """Write a plan.

    Raises:
        InputError: If it cannot be written.
    """
    write_text(path, plan.model_dump_json(indent=2) + "\n")


def read_plan(path: Path) -> PlanFile:
    """Return a plan that can be carried out.

    Raises:
        InputError: If the file cannot be used, or what it asks for is not carried out.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", FIX, path=path) from error
    except ValueError as error:
        raise InputError("it is no text", FIX, path=path) from error
    return plan_in(text, path)


def plan_in(text: str, path: str | Path) -> PlanFile:
    """Return a plan that can be carried out.

    Args:
        text: The plan, as JSON.
        path: What errors call it.

    Raises:
        InputError: If it cannot be used, or what it asks for is not carried out.
    """
    try:
        plan = PlanFile.model_validate(json.loads(text))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        problem = str(first["msg"]).removeprefix("Value error, ")
        raise InputError(problem, "docs/planner.md has the fields", path=path, field=place) from error
    except (ValueError, RecursionError) as error:
        raise InputError("it is no JSON", FIX, path=path) from error
    if (lack := not_carried_out(plan)) is not None:
        raise InputError(lack, "plan with --plain", path=path)
    return plan


def not_carried_out(plan: PlanFile) -> str | None:
    """Return what of a plan `longshore.stage` does not do, None if it does all."""
    if plan.tensor > 1:
        return "tensor parallelism splits layers inside, which needs a model written for it"
    return None if plan.saving is Saving.none else f"{plan.saving} is not carried out"
