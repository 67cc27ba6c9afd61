"""The passes of a step through what a process has of the model: all of it, or a stage.

A whole model needs no schedule. So a training without a pipeline neither loads nor is bound by what carries values from
stage to stage.

Source: SPEC P1.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from ...cluster.files.errors import InputError
from ..model.playing import Schedule
from ..sharing.device import Kind
from .cutting import Part

CPU = torch.device("cpu")
Around = Callable[[Kind, Callable[..., Any]], Callable[..., Any]]  # puts something around a pass of some kind
Loss = Callable[[Any, Tensor | None], Tensor]  # what a micro-batch adds to the loss, by its output and target


class Passes(Protocol):
    """Forward and backward passes of all micro-batches of a step; gradients add up in the parameters."""

    def step(self, args: Sequence[Any], kwargs: Mapping[str, Any], target: Tensor) -> None:
        """Go through a step.

        Args:
            args: Of the model, for all samples.
            kwargs: Of the model, too.
            target: Of all samples.
        """
        ...


class WholePasses:
    """Passes through a whole model: the micro-batches one after the other.

    Args:
        module: The model.
        micro_batches: Of a step.
        loss: What a micro-batch adds to it.
        around: Put around each pass.
    """

    def __init__(self, module: nn.Module, micro_batches: int, loss: Loss, around: Around) -> None:
        self._micro_batches = micro_batches

        def forward(_number: int, args: Sequence[Any], kwargs: Mapping[str, Any], target: Tensor) -> Tensor:
            return loss(module(*args, **kwargs), target)

        def backward(_number: int, found: Tensor) -> None:
            if found.requires_grad:  # not where all parameters are frozen
                torch.autograd.backward(found)

        self._forward, self._backward = around(Kind.forward, forward), around(Kind.backward, backward)

    def step(self, args: Sequence[Any], kwargs: Mapping[str, Any], target: Tensor) -> None:
        """Go through a step."""
        for k in range(self._micro_batches):

            def part(it: Any, k: int = k) -> Any:
                return it.tensor_split(self._micro_batches)[k] if isinstance(it, Tensor) else it

            self._backward(k, self._forward(k, tree_map(part, tuple(args)), tree_map(part, dict(kwargs)), part(target)))


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
        # late: it takes two seconds, which a training without a pipeline need not wait
        from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

        self._is_first, self._is_last = place[0] == 0, place[0] == place[1] - 1
        stage: Any = PipelineStage(part.module, *place, CPU, part.inputs, part.outputs, group=group)
        stage.forward_one_chunk = around(Kind.forward, stage.forward_one_chunk)
        stage.backward_one_chunk = around(Kind.backward, stage.backward_one_chunk)
        self._checked = part.module.register_forward_hook(self._check_output)
        by_name = {Schedule.one_forward_one_backward: Schedule1F1B, Schedule.gpipe: ScheduleGPipe}
        self._schedule = by_name[schedule](stage, micro_batches, loss, scale_grads=False)

    def step(self, args: Sequence[Any], kwargs: Mapping[str, Any], target: Tensor) -> None:
        """Go through a step."""
        given, named = (args, kwargs) if self._is_first else ((), {})
        try:
            self._schedule.step(
                *given, target=target if self._is_last else None, return_outputs=False, **named
            )  # fmt: skip
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
