"""A data-parallel plan carried out in a ring that outlives its members: each replica has a seat (docs/failover.md).

Source: SPEC F8, P1, P3.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn

from ...cluster.files.errors import InputError
from ...cluster.model.training_plan import PlanFile
from ..model import Offload
from .checkpoints import ANEW, folder_of_job, is_of_a_plan
from .cutting import Script, arguments, check_layers, some_of, state_of


class Ring(AbstractContextManager["Ring"], Protocol):
    """What is used of `longshore.ring.Ring`."""

    @property
    def seat(self) -> int:
        """Of this process."""

    @property
    def seats(self) -> int:
        """Of the ring."""

    @property
    def shards(self) -> list[int]:
        """Of the batch, that this process computes."""

    def steps(self, until: int) -> Iterator[int]:
        """Yield the steps to compute."""

    def step(self, *, loss: Tensor) -> bool:
        """Apply the mean gradients; return whether that was done."""

    def save(self) -> object:
        """Write a checkpoint, on one process."""


class MakeRing(Protocol):
    """Makes this process's side of its ring."""

    def __call__(self, model: nn.Module, optimizer: torch.optim.Optimizer, *, checkpoints: Path | None) -> Ring:
        """Return it once this process has a seat."""


def train_in_ring(
    plan: PlanFile, given: argparse.Namespace, script: Script, make: MakeRing, say: Callable[[str], None]
) -> None:
    """Train as a member of a ring.

    Args:
        plan: Whose replicas have the seats.
        given: Options.
        script: The model and its data.
        make: Of the ring.
        say: Prints a line.

    Raises:
        InputError: If the plan or the options are none for a ring.
        BuildError: If the plan is of another model.
    """
    _check(plan, given)
    model = script.made.model
    check_layers(model, [it.layers for it in plan.stages])
    trained = [it for it in model.parameters() if it.requires_grad]
    optimizer = script.optimizer(trained)
    folder = None if given.checkpoints is None else folder_of_job(given.checkpoints)[0]
    if folder is not None and is_of_a_plan(folder):
        raise InputError("its checkpoints are of a training without a ring", ANEW, path=folder)
    taken_s: list[float] = []
    with make(model, optimizer, checkpoints=folder) as ring:
        if ring.seats != plan.data:
            raise InputError(f"the ring has {ring.seats} seats, and the plan is for {plan.data}", field="environment")
        saved_s = time.monotonic()
        for step in ring.steps(until=given.steps):
            began_s = time.monotonic()
            loss = torch.stack([_shard(plan, script, step, shard) for shard in ring.shards]).mean()
            if not ring.step(loss=loss):
                continue
            now_s = time.monotonic()
            taken_s.append(now_s - began_s)
            if ring.seat == 0:
                say(f"step {step + 1} of {given.steps}: loss of this replica {loss:.6f}, {taken_s[-1]:.3f} s")
            if folder is not None and (now_s - saved_s >= given.checkpoint_s or step + 1 == given.steps):
                _save(ring, step, say)
                saved_s = now_s
        if ring.seat == 0:
            _end(plan, given, model, taken_s, say)


def _save(ring: Ring, step: int, say: Callable[[str], None]) -> None:
    try:
        ring.save()
    except (OSError, RuntimeError) as error:  # the latter is what PyTorch says of a full disk
        problem = getattr(error, "strerror", None) or str(error).partition("\n")[0]
        say(f"no checkpoint of step {step + 1}: {problem}; training goes on")


def _check(plan: PlanFile, given: argparse.Namespace) -> None:
    if not plan.is_replicated:
        fix = "use `failover: restart`, or plan with `failover: switch`"
        raise InputError("only the replicas of a data-parallel plan have seats of a ring", fix, field="PLAN")
    usual = {"offload": Offload.never, "ranks_per_device": 1, "schedule": None, "json": None}
    asked = next((name for name, value in usual.items() if getattr(given, name) != value), None)
    if asked is not None:
        option = f"--{asked.replace('_', '-')}"
        raise InputError("this is not done in a ring", "leave it out, or use `failover: restart`", field=option)


def _shard(plan: PlanFile, script: Script, step: int, shard: int) -> Tensor:
    """Add the gradients of all micro-batches of a shard of the batch; return the mean loss."""
    each, size = plan.batch // plan.data, plan.micro_batch
    batch, target = script.samples(step * plan.batch + shard * each, each)
    losses = []
    for first in range(0, each, size):
        args, kwargs = arguments(some_of(batch, first, size))
        loss = script.loss_of(script.made.model(*args, **kwargs), some_of(target, first, size))
        torch.autograd.backward(loss / plan.micro_batches)
        losses.append(loss.detach())
    return torch.stack(losses).mean()


def _end(
    plan: PlanFile, given: argparse.Namespace, model: nn.Module, taken_s: list[float], say: Callable[[str], None]
) -> None:
    """Save the weights if that was asked for, and compare with what was predicted."""
    if given.save is not None:
        torch.save(state_of(model), given.save / "stage-0.pt")
    if taken_s:
        predicted = f"; predicted {plan.step_s:.3f} s" if plan.step_s else ""
        say(f"a step took {statistics.median(taken_s):.3f} s in the median{predicted}")
