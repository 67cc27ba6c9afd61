"""The passes of a step through what a process has of the model: all of it, or a stage.

A whole model needs no schedule. So a training without a pipeline neither loads nor is bound by what carries values from
stage to stage.

Source: SPEC P1.
"""

from collections.abc import Callable
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ...cluster.files.errors import InputError
from ..model.playing import Schedule
from ..sharing.device import Kind
from .cutting import Part
from .script import arguments, some_of

CPU = torch.device("cpu")
Around = Callable[[Kind, Callable[..., Any]], Callable[..., Any]]  # puts something around a pass of some kind
Loss = Callable[[Any, Tensor | None], Tensor]  # what a micro-batch adds to the loss, by its output and target


class Passes(Protocol):
    """Forward and backward passes of all micro-batches of a step; gradients add up in the parameters."""

    def step(self, batch: Any, target: Tensor) -> None:
        """Go through a step.

        Args:
            batch: All samples of the step.
            target: Of all samples.
        """
        ...


class WholePasses:
    """Passes through a whole model: the micro-batches one after the other.

    Args:
        module: The model.
        micro_batch: Samples of a micro-batch.
        micro_batches: Of a step.
        loss: What a micro-batch adds to it.
        around: Put around each pass.
    """

    def __init__(self, module: nn.Module, micro_batch: int, micro_batches: int, loss: Loss, around: Around) -> None:
        self._micro_batches = micro_batches

        def forward(number: int, batch: Any, target: Tensor) -> Tensor:
            first = number * micro_batch
            args, kwargs = arguments(some_of(batch, first, micro_batch))
            return loss(module(*args, **kwargs), some_of(target, first, micro_batch))

        def backward(_number: int, found: Tensor) -> None:
            torch.autograd.backward(found)

        self._forward, self._backward = around(Kind.forward, forward), around(Kind.backward, backward)

    def step(self, batch: Any, target: Tensor) -> None:
        """Go through a step."""
        for number in range(self._micro_batches):
            self._backward(number, self._forward(number, batch, target))


class StagePasses:
    """Passes through a stage, by a schedule of torch.distributed.pipelining.

    Args:
        part: The stage, with the forms of what it gets and gives.
        place: Which stage it is, of how many.
        group: The processes of the pipeline.
        schedule: In which order a stage does its passes.
        micro_batches: Of a step.
        loss: What a micro-batch adds to it, on the last stage.
        around: Put around each pass.
    """

    def __init__(
        self, part: Part, place: tuple[int, int], group: dist.ProcessGroup, schedule: Schedule, micro_batches: int,
        loss: Loss, around: Around,
    ) -> None:  # fmt: skip
        # late: a training without a pipeline need not wait for it
        from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

        self._is_first, self._is_last = place[0] == 0, place[0] == place[1] - 1
        stage: Any = PipelineStage(part.module, *place, CPU, part.inputs, part.outputs, group=group)
        stage.forward_one_chunk = around(Kind.forward, stage.forward_one_chunk)
        stage.backward_one_chunk = around(Kind.backward, stage.backward_one_chunk)
        self._checked = part.module.register_forward_hook(self._check_output)
        by_name = {Schedule.one_forward_one_backward: Schedule1F1B, Schedule.gpipe: ScheduleGPipe}
        self._schedule = by_name[schedule](stage, micro_batches, loss, scale_grads=False)

    def step(self, batch: Any, target: Tensor) -> None:
        """Go through a step."""
        args, kwargs = arguments(batch) if self._is_first else ((), {})
        try:
            self._schedule.step(*args, target=target if self._is_last else None, return_outputs=False, **kwargs)
        except RuntimeError as error:  # PyTorch's, around what went wrong in a pass
            if isinstance(error.__cause__, InputError):
                raise error.__cause__ from error
            raise

    def _check_output(self, module: nn.Module, inputs: object, output: object) -> None:
        """Look once whether schedules can carry what the stage returns.

        Raises:
            InputError: If not.
        """
        self._checked.remove()
        parts = output if isinstance(output, tuple | list) else (output,)
        if not all(isinstance(it, Tensor) for it in parts):
            got = type(next(it for it in parts if not isinstance(it, Tensor))).__name__
            fix = "return a tensor, or a tuple of tensors, from forward, or plan with --degrees Dx1x1"
            raise InputError(f"the model returns a {got}, which torch.distributed.pipelining does not carry", fix)
