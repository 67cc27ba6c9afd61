"""A plan as a file: what the workers of a training need to know of it, and what was predicted.

Source: SPEC P1.
"""

import json
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from ...cluster.files.errors import InputError
from ...cluster.files.output_file import write_text
from ..model.memory import Saving
from ..model.playing import Seconds
from ..search.plan import Plan
from ..search.question import Question

FORMAT = "longshore-plan-1"
Count = Annotated[int, Field(ge=1, le=1_000_000)]
Time = Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False)]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class StagePlan(_Section):
    """One stage."""

    layers: Annotated[tuple[str, ...], Field(min_length=1)]  # names, in the order in which they run
    # Predicted, for an iteration.
    forward_s: Time = 0.0
    backward_s: Time = 0.0
    gradients_s: Time = 0.0
    optimizer_s: Time = 0.0

    @property
    def predicted(self) -> Seconds:
        """What the stage is predicted to spend its time on."""
        return Seconds(self.forward_s, self.backward_s, self.gradients_s, self.optimizer_s)


class PlanFile(_Section):
    """A plan as its file has it; see docs/planner.md."""

    format: Literal["longshore-plan-1"] = "longshore-plan-1"
    model: str = ""  # that was planned for; any may be run that has these layers
    hardware: str = ""  # by which was predicted
    data: Count
    pipeline: Count
    tensor: Count = 1
    micro_batch: Count  # samples
    batch: Count  # samples of an iteration, of all members
    saving: Saving = Saving.none
    step_s: Time = 0.0  # predicted
    stages: Annotated[tuple[StagePlan, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _agrees(self) -> "PlanFile":
        if len(self.stages) != self.pipeline:
            raise ValueError(f"there are {len(self.stages)} stages, and the pipeline degree is {self.pipeline}")
        if self.batch % (self.data * self.micro_batch):
            raise ValueError(
                f"{self.data} members with micro-batches of {self.micro_batch} cannot share a batch of {self.batch}"
            )
        return self

    @property
    def ranks(self) -> int:
        """Processes that carry it out."""
        return self.data * self.pipeline * self.tensor

    @property
    def micro_batches(self) -> int:
        """Of each data-parallel member, in an iteration."""
        return self.batch // (self.data * self.micro_batch)


def file_of(asked: Question, plan: Plan) -> PlanFile:
    """Return a plan as its file has it."""
    names = [it.name for it in asked.profile.layers]
    stages = tuple(
        StagePlan(layers=tuple(names[it.first_layer : it.last_layer + 1]), **it.seconds._asdict()) for it in plan.stages
    )
    layout = plan.layout
    return PlanFile(
        model=asked.profile.name, hardware=asked.hardware.name, **layout._asdict(), batch=asked.batch,
        step_s=plan.step_s, stages=stages,
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
        plan = PlanFile.model_validate(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise InputError(
            f"cannot be read: {error.strerror}", "give a file of `longshore plan --out`", path=path
        ) from error
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        problem = str(first["msg"]).removeprefix("Value error, ")
        raise InputError(problem, "docs/planner.md has the fields", path=path, field=place) from error
    except ValueError as error:  # no JSON, or no text
        raise InputError("it is no JSON", "give a file of `longshore plan --out`", path=path) from error
    for is_so, what in (
        (plan.tensor > 1, "tensor parallelism splits layers inside, which needs a model written for it"),
        (plan.saving is not Saving.none, f"{plan.saving} is not carried out"),
    ):
        if is_so:
            raise InputError(what, "plan with --degrees DxPx1 and enough memory", path=path)
    return plan
