"""A plan of a training as its file and a job have it: what each of its ranks does, needs and sends."""

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, model_validator

from ..files.yaml_file import ExactTypes

MAX_STAGES = 10_000
MAX_BATCH = 10**7
LEAST_COMPUTE_S = 1e-6  # an iteration that takes no time anywhere would have no speed
Count = Annotated[int, Field(ge=1, le=1_000_000)]
Samples = Annotated[int, Field(ge=1, le=MAX_BATCH)]
Figure = Annotated[float, Field(ge=0, le=1e30, allow_inf_nan=False)]
Time = Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False)]
Name = Annotated[str, Field(max_length=1000)]


class MemorySaving(StrEnum):
    """What a plan does to need less memory, from the least to the most change of a script."""

    none = "none"
    zero1 = "ZeRO-1"
    recompute = "recompute"
    zero1_recompute = "ZeRO-1 + recompute"
    zero3 = "ZeRO-3"
    zero3_recompute = "ZeRO-3 + recompute"

    @property
    def recomputes(self) -> bool:
        """Whether blocks keep their input alone, and are computed again on the way back."""
        return self in (MemorySaving.recompute, MemorySaving.zero1_recompute, MemorySaving.zero3_recompute)

    @property
    def zero(self) -> int:
        """Stage of ZeRO, 0 for none."""
        return {"ZeRO-1": 1, "ZeRO-3": 3}.get(self.value.partition(" ")[0], 0)


class _PlanSection(ExactTypes):
    model_config = ConfigDict(frozen=True, extra="forbid")


class StagePlan(_PlanSection):
    """One stage. All figures are of one of its GPUs, and of an iteration."""

    layers: Annotated[tuple[Name, ...], Field(min_length=1)]  # names, in the order in which they run
    forward_s: Time = 0.0
    backward_s: Time = 0.0
    gradients_s: Time = 0.0
    optimizer_s: Time = 0.0
    flops: Figure = 0.0
    memory_bytes: Figure = 0.0  # that it needs
    tensor_bytes: Figure = 0.0  # that it sends to the other tensor-parallel members
    next_bytes: Figure = 0.0  # to the next stage, and as much comes back
    ring_bytes: Figure = 0.0  # to the other replicas, to sum gradients

    @property
    def busy_s(self) -> float:
        """Predicted time of an iteration in which it waits for no other stage."""
        return self.forward_s + self.backward_s + self.gradients_s + self.optimizer_s


class PlacedIteration(_PlanSection):
    """An iteration of the whole job as a function of where its GPUs lie; docs/simulator.md has the formula."""

    compute_s: Annotated[float, Field(ge=LEAST_COMPUTE_S, le=1e12)]  # on GPUs of speed 1
    fixed_s: Time  # that neither faster GPUs nor faster links would save
    gradient_bytes: Figure  # that the ring of each stage sums
    edge_bytes: Figure  # between stages
    tensor_bytes: Figure  # that a GPU sends to others of its tensor-parallel group


class PlanFile(_PlanSection):
    """A plan as its file has it; see docs/planner.md."""

    format: Literal["longshore-plan-1"] = "longshore-plan-1"
    model: Name = ""  # that was planned for; any may be run that has these layers
    hardware: Name = ""  # by which was predicted
    data: Count
    pipeline: Count
    tensor: Count = 1
    micro_batch: Samples
    batch: Samples  # of an iteration, of all members
    saving: MemorySaving = MemorySaving.none
    step_s: Time = 0.0  # predicted
    iterations: Annotated[int, Field(ge=0, le=10**15)] = 0  # of the whole training; 0 if not known
    # Times the prediction it is an upper bound; below 1 where a calibration predicts times that are too long.
    bound_factor: Annotated[float, Field(gt=0, le=1e30, allow_inf_nan=False)] = 1.0
    deadline_s: Time = 0.0  # requested; 0 for none
    iteration: PlacedIteration | None = None  # by which placements are scored; without it, as of one ring
    stages: Annotated[tuple[StagePlan, ...], Field(min_length=1, max_length=MAX_STAGES)]

    @model_validator(mode="after")
    def _check_agreement(self) -> "PlanFile":
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
    def is_replicated(self) -> bool:
        """Whether all of its ranks do the same, so that any may take another's place."""
        return self.pipeline == 1 and self.tensor == 1 and self.saving.zero == 0

    @property
    def micro_batches(self) -> int:
        """Of each data-parallel member, in an iteration."""
        return self.batch // (self.data * self.micro_batch)
