"""A training script's side of a ring that outlives its members.

Source: SPEC F8 to F10.
"""

import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self

from ....cluster.files.errors import InputError
from ....reporting import Steps
from ..wire import ADDRESS, MEMBER, SECRET
from .control import AbortedError, FinishedError, RelievedError

if TYPE_CHECKING:
    import torch

    from .state import HasState

TOLD_S = 0.1  # between two steps that are told of (docs/steps.md)
MOST_UNTOLD = 1024
TRY_S = 1.0  # between two steps that a relieved member computes for nothing, and as long as one takes in any case


def every(step_s: float) -> int:
    """Return of how many steps one is told of: a power of 2, so that members of unequal speed tell of the same ones."""
    steps = 1
    while 0.0 < steps * step_s < TOLD_S and steps < MOST_UNTOLD:
        steps *= 2
    return steps


class Ring:
    """A member of a ring of data-parallel training.

    The constructor returns once this process has a seat; a spare waits in it, and its process ends there if no seat
    became empty until the others were done. Each step looks as follows:

        for step in ring.steps(until=10_000):
            for shard in ring.shards:  # with a full ring exactly [ring.seat]
                x, y = batch(shard, ring.seats, step)
                loss(model(x), y).backward()
            if ring.step():
                ...  # what follows a step: a schedule, a line of a log

    Args:
        model: The same on all members; parameters and buffers are copied to members that join.
        optimizer: Of this model; `step` calls it with the mean gradients.
        checkpoints: Folder with those that `save` wrote; the newest is loaded, if there is one.
        collectives: What gradients on GPUs go over: "gloo", through host memory, or "nccl", which was never tried.

    Raises:
        InputError: If this process was not started as a member of a ring, or has no NCCL, if the gradients of the model
            cannot be exchanged, or if the newest checkpoint cannot be loaded and no living member has a newer state.
    """

    def __init__(
        self,
        model: "torch.nn.Module",
        optimizer: "torch.optim.Optimizer",
        *,
        checkpoints: Path | str | None = None,
        collectives: Literal["gloo", "nccl"] = "gloo",
    ) -> None:
        missing = [name for name in (ADDRESS, SECRET, MEMBER) if name not in os.environ]
        if missing:
            fix = "start the script by `python -m longshore.ring --seats 4 -- python train.py`"
            raise InputError(f"this process is no member of a ring: {missing[0]} is not set", fix)
        from .formation import FAILED, Formation  # it imports PyTorch, which takes seconds

        self._failed = FAILED
        self._optimizer = optimizer
        self._folder = None if checkpoints is None else Path(checkpoints)
        self._formation = Formation(model, optimizer, self._folder, collectives)
        self._control = self._formation.control
        self._began_s = self._computed_s = 0.0
        self._loss: torch.Tensor | float | None = None
        self._steps = Steps()
        self._is_first, self._is_relieved = True, False
        try:
            self._join()
        except FinishedError:
            sys.exit(0)

    @property
    def seat(self) -> int:
        """This member's place in the ring."""
        return self._formation.seat

    @property
    def seats(self) -> int:
        """Seats of the ring, also of one that is short of members: a global batch has as many shards."""
        return self._formation.seats

    @property
    def shards(self) -> list[int]:
        """Shards of the global batch that this member computes; `[seat]` in a full ring."""
        return self._formation.shards

    @property
    def generation(self) -> int:
        """How many forms the ring has had."""
        return self._control.generation

    @property
    def member(self) -> int:
        """Number of this process among all that were ever members."""
        return self._control.member

    # What a script uses

    def steps(self, until: int) -> Iterator[int]:
        """Yield the number of each step that this member has to compute, from that of the ring's state on.

        A number comes again if the ring lost members while the step was in progress and its shards were dealt out anew,
        and on a member that is so slow that another one computes in its place, until it is as fast as the others.

        Args:
            until: Number of the first step that is not to be taken. All members must name the same.
        """
        self._control.pulse.until = until
        try:
            while True:
                while self._control.step < until or self._is_relieved:
                    self._begin_step()
                    yield min(self._control.step, until - 1)
                try:
                    self._control.done()
                except AbortedError:
                    self._join()
        except FinishedError:
            return

    def step(self, before: Callable[[], object] | None = None, *, loss: "torch.Tensor | float | None" = None) -> bool:
        """Apply the mean of all members' gradients.

        Args:
            before: Called with the mean gradients in place, before the optimizer: to clip them, for example.
            loss: Of this member's part of the batch, to be shown to people. It is read only at steps that are told of,
                as reading it waits for a GPU. What is no number is not shown.

        Returns:
            Whether this member applied the step. If not, nothing is to be done for the step any more: it will come
            again, or it is in the state that was taken over from a member that had applied it.

        Raises:
            InputError: In the first step, if the state can neither be saved nor copied to a member that joins.
        """
        self._computed_s = time.monotonic() - self._began_s
        self._loss = loss.detach() if loss is not None and hasattr(loss, "detach") else loss
        if self._is_relieved:
            return self._try()
        number, gradients = self._control.step, self._formation.gradients()
        while True:
            try:
                averages = self._formation.averaged(gradients)
            except self._failed as error:
                shards = self.shards
                self._join(error)
                if self._is_relieved or self._control.step != number or self.shards != shards:
                    self._loss = None  # of a step that was not taken
                    self._optimizer.zero_grad(set_to_none=True)
                    return False
                continue
            averages.put()
            if before is not None:
                before()
            self._optimizer.step()
            self._optimizer.zero_grad(set_to_none=True)
            self._end_step()
            return True

    def keep(self, name: str, it: "HasState") -> None:
        """Let the state of something go along with the model's, such as a learning-rate schedule.

        Args:
            name: The same on all members.
            it: Has `state_dict` and `load_state_dict`, of numbers, strings, bytes, tensors, arrays of numbers, and
                dicts, lists, tuples and sets of them.
        """
        self._formation.keep(name, it)

    def save(self) -> Path | None:
        """Write the state as a checkpoint, on one member. Call it on all, after a step that was applied.

        Returns:
            The file, on the member that wrote it; None on the others.

        Raises:
            InputError: If the ring has no folder for checkpoints, or the state holds what could not be loaded again.
            OSError: If it cannot be written.
        """
        if self._folder is None:
            raise InputError(
                "no folder for checkpoints was given", "write `Ring(model, optimizer, checkpoints=FOLDER)`"
            )
        if self._formation.rank != 0 or self._is_relieved:
            return None
        from .checkpoints import write_checkpoint

        mark = f"g{self.generation}-m{self.member}"
        path = write_checkpoint(self._folder, self._control, self._formation.state(), mark)
        if path is not None:
            self._steps.saved(max(self._control.step - 1, 0), str(path.absolute()))
        return path

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None and not self._is_relieved:
            for _ in self.steps(until=self._control.step):
                pass
            self._control.close()
            self._steps.done(loss=self._loss)
        else:
            self._control.leave(f"{kind.__name__}: {error}" if kind else "its script left the ring")

    def _join(self, error: Exception | None = None) -> None:
        try:
            self._formation.join(error)
            self._is_relieved = False
        except RelievedError:
            self._is_relieved = True
            self._steps.done()
        self._is_first = True

    def _try(self) -> bool:
        """Forget a step that was computed to see how long it takes, and wait a while for work."""
        self._optimizer.zero_grad(set_to_none=True)
        try:
            if self._control.tried(self._computed_s / len(self.shards), max(TRY_S, self._computed_s)):
                self._join()
        except FinishedError:
            sys.exit(0)
        return False

    def _begin_step(self) -> None:
        now_s = time.monotonic()
        pulse = self._control.pulse
        pulse.compute_s, pulse.step_s = self._computed_s, now_s - self._began_s if self._began_s else 0.0
        if self._control.step % every(pulse.step_s) == 0 and not self._is_relieved:
            computed_s = self._computed_s if self._began_s else None
            self._steps.begin(self._control.step, computed_s=computed_s, loss=self._loss)
        self._began_s = now_s
        self._formation.begin_step()

    def _end_step(self) -> None:
        self._formation.end_step()
        if self._is_first:
            self._is_first = False
            self._formation.check_state()  # it has the optimizer's state by now
            self._control.ran()
