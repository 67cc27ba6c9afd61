"""What a training took, by stage, as its first process writes it.

Source: SPEC P1.
"""

from collections.abc import Sequence
from math import nan
from statistics import median
from typing import Annotated, NamedTuple, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict

from ..model.playing import Seconds
from ..offload.offloading import PartMeasured

StepT = TypeVar("StepT")
Loss = Annotated[float, BeforeValidator(lambda it: nan if it is None else it)]
WARM_UP = 1  # steps that are not counted: in the first, connections are made and memory is asked for


class RankTimes(NamedTuple):
    """What one process measured."""

    stage: int
    step_s: list[float]  # of each step, from its begin to that of the next
    seconds: list[Seconds]  # of each step
    losses: list[float]  # of each step, if it has them
    offload: list[PartMeasured]  # what became of what could be put away


class StageMeasured(BaseModel):
    """What a stage took in an iteration, in the median of steps and the mean of its replicas."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    forward_s: float
    backward_s: float
    gradients_s: float
    optimizer_s: float
    wait_s: float  # the rest of the iteration: for other stages, and to send to them

    @property
    def seconds(self) -> Seconds:
        """What it took, without the wait."""
        return Seconds(self.forward_s, self.backward_s, self.gradients_s, self.optimizer_s)


class Measured(BaseModel):
    """What a training took."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    step_s: float  # of an iteration, in the median
    stages: tuple[StageMeasured, ...]
    losses: tuple[Loss, ...]  # of each step, over all samples; null in the file where that is no number
    offload: tuple[PartMeasured, ...] = ()  # of each rank, what could be put away


def measured(ranks: Sequence[RankTimes], stages: int) -> Measured:
    """Return what all processes measured, by stage."""
    # A step is over for all when it is for the slowest; medians, as others may disturb some steps.
    step_s = max(median(_counted(it.step_s)) for it in ranks)
    return Measured(
        step_s=step_s,
        stages=tuple(_stage([it for it in ranks if it.stage == k], step_s) for k in range(stages)),
        losses=next(tuple(it.losses) for it in ranks if it.losses),
        offload=tuple(part for it in ranks for part in it.offload),
    )


def _stage(replicas: Sequence[RankTimes], step_s: float) -> StageMeasured:
    columns = [[median(column) for column in zip(*_counted(it.seconds), strict=True)] for it in replicas]
    spent = Seconds(*(sum(column) / len(replicas) for column in zip(*columns, strict=True)))
    return StageMeasured(**spent._asdict(), wait_s=max(0.0, step_s - spent.total_s))


def _counted(steps: Sequence[StepT]) -> Sequence[StepT]:
    return steps[WARM_UP:] if len(steps) > WARM_UP else steps
