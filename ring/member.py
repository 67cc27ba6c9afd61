"""A training script's side of a ring: steps (`Ring`), and recoveries (`Formation`). Source: SPEC F8 to F10."""

import operator
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import torch

from ..cluster.files.errors import InputError
from ..reporting import Steps
from .gradients import GradientPiece, Gradients, WideSums, check_parameters, pieces_of, sparse_weight_ids
from .groups import (
    GlooGroup,
    LinkError,
    NcclGroup,
    RingGroup,
    check_nccl,
    connect_nccl,
    offer_store,
    own_address_towards,
)
from .member_client import AbortedError, FinishedError, MemberClient, RelievedError, client_from_environment
from .state import (
    HasState,
    NewestCheckpoint,
    find_newest_checkpoint,
    load_model_state,
    model_state,
    plain_state,
    random_state,
    receive_state,
    send_state,
    set_random_state,
    write_checkpoint,
)
from .wire import ADDRESS, MEMBER, SECRET, MemberReady, RingLayout

EXCHANGE_ERRORS = (AbortedError, LinkError)  # that an exchange may raise
STEP_REPORT_S = 0.1  # between two steps that are reported (docs/steps.md)
MAX_REPORT_STEPS = 1024
TRIAL_S = 1.0  # between two trial steps of a relieved member, and at least as long as one takes


def steps_between_reports(step_s: float) -> int:
    """Return the steps between two reports: a power of 2, so that members of unequal speed report the same ones."""
    steps = 1
    while 0.0 < steps * step_s < STEP_REPORT_S and steps < MAX_REPORT_STEPS:
        steps *= 2
    return steps


MAX_STEPS = (1 << 53) - 1  # that a message can carry; more are without an end


def _checked_until(until: int) -> int:
    """Return a number of steps as an integer that messages can carry.

    Raises:
        InputError: If it is no whole number.
    """
    try:
        return max(0, min(operator.index(until), MAX_STEPS))
    except TypeError as error:
        raise InputError(f"ring.steps(until={until!r}): that is no whole number", "take `int(...)` of it") from error


def _over_error(steps: int) -> InputError:
    return InputError(
        f"the ring is done after {steps} steps, and takes no further ones",
        "call `ring.steps` once, until the last step of all epochs",
    )


class Ring:
    """A member of a ring of data-parallel training.

    The constructor returns once this process has a seat; a spare waits in it, and its process ends there if no seat
    became empty until the others were done. A step:

        for step in ring.steps(until=10_000):
            for shard in ring.shards:  # with a full ring exactly [ring.seat]
                x, y = batch(shard, ring.seats, step)
                loss(model(x), y).backward()
            if ring.step():
                ...  # after the step: a schedule, a line in a log

    Args:
        model: The same on all members; parameters and buffers are copied to members that join.
        optimizer: Of this model; `step` calls it with the mean gradients.
        checkpoints: Folder with those that `save` wrote; the newest is loaded, if there is one.
        collectives: For gradients on GPUs: "gloo", through host memory, or "nccl", which was never tried.

    Raises:
        InputError: If this process was not started as a member of a ring, or has no NCCL, if the gradients of the model
            cannot be exchanged, or if the newest checkpoint cannot be loaded and no living member has a newer state.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        checkpoints: Path | str | None = None,
        collectives: Literal["gloo", "nccl"] = "gloo",
    ) -> None:
        missing = [name for name in (ADDRESS, SECRET, MEMBER) if name not in os.environ]
        if missing:
            fix = "start the script by `python -m longshore.ring --seats 4 -- python train.py`"
            raise InputError(f"this process is no member of a ring: {missing[0]} is not set", fix)

        self._optimizer = optimizer
        self._folder = None if checkpoints is None else Path(checkpoints)
        self._formation = Formation(model, optimizer, self._folder, collectives)
        self._client = self._formation.client
        self._began_s = self._computed_s = 0.0
        self._shard_s = 0.0  # of the last computation, for each shard
        self._loss: torch.Tensor | float | None = None
        self._steps = Steps()
        self._is_first, self._is_relieved, self._is_over = True, False, False
        self._recover_or_exit()

    @property
    def seat(self) -> int:
        """This member's seat."""
        return self._formation.seat

    @property
    def seats(self) -> int:
        """Seats of the ring, also of one that is short of members: a global batch has that number of shards."""
        return self._formation.seats

    @property
    def shards(self) -> list[int]:
        """Shards of the global batch that this member computes; `[seat]` in a full ring."""
        return self._formation.shards

    @property
    def generation(self) -> int:
        """How often the ring was formed."""
        return self._client.generation

    @property
    def member(self) -> int:
        """Number of this process among all that were ever members."""
        return self._client.member

    # For scripts

    def steps(self, until: int) -> Iterator[int]:
        """Yield the number of each step that this member has to compute, from that of the ring's state on.

        A number repeats if the ring lost members while the step was in progress and its shards were distributed again.
        On a member that has a backup because it is slow, it repeats until the member is as fast as the others.

        Args:
            until: Number of the first step that is not to be taken, the last of all epochs. All members must pass the
                same.

        Raises:
            InputError: If that is no whole number, or the ring is done with an earlier one: it trains once.
        """
        until = _checked_until(until)
        if self._client.is_finished and self._client.step < until:
            raise _over_error(self._client.step)
        self._client.pulse.until = until
        try:
            while True:
                while self._client.step < until or self._is_relieved:
                    self._begin_step()
                    yield min(self._client.step, until - 1)
                try:
                    self._client.wait_until_done()
                except AbortedError:
                    self._recover()
        except FinishedError:
            self._is_over = True
            return

    def step(self, before: Callable[[], object] | None = None, *, loss: torch.Tensor | float | None = None) -> bool:
        """Apply the mean of all members' gradients.

        Args:
            before: Called with the mean gradients in place, before the optimizer: to clip them, for example.
            loss: Of this member's part of the batch, to be shown. It is read only at steps that are reported, as
                reading it waits for a GPU. A value that is no number is not shown.

        Returns:
            Whether this member applied the step. If not, do nothing more for the step: it will be repeated, or it is
            in the state that this member copied from one that had applied it.

        Raises:
            InputError: In the first step, if the state can neither be saved nor copied to a member that joins. If the
                ring is done.
        """
        if self._is_over:
            raise _over_error(self._client.step)
        self._computed_s = time.monotonic() - self._began_s
        self._shard_s = self._computed_s / len(self.shards)
        self._loss = loss.detach() if loss is not None and hasattr(loss, "detach") else loss
        if self._is_relieved:
            return self._end_trial_step()
        number, gradients = self._client.step, self._formation.take_gradients()
        while True:
            try:
                self._formation.average(gradients)
            except EXCHANGE_ERRORS as error:
                shards = self.shards
                self._recover_or_exit(error)
                if self._is_relieved or self._client.step != number or self.shards != shards:
                    self._loss = None  # of a step that was not taken
                    self._optimizer.zero_grad(set_to_none=True)
                    return False
                continue
            gradients.assign_means()
            if before is not None:
                before()
            self._optimizer.step()
            self._optimizer.zero_grad(set_to_none=True)
            self._end_step()
            return True

    def keep(self, name: str, part: HasState) -> None:
        """Copy and save the state of another object with the model's, such as a learning-rate schedule.

        Args:
            name: The same on all members.
            part: Has `state_dict` and `load_state_dict`, of numbers, strings, bytes, tensors, arrays of numbers, and
                dicts, lists, tuples and sets of them.
        """
        self._formation.keep(name, part)

    def save(self) -> Path | None:
        """Write the state as a checkpoint, on one member. Call it on all, after a step that was applied.

        Returns:
            The file, on the member that wrote it; None on the others.

        Raises:
            InputError: If the ring has no folder for checkpoints, or its state could not be loaded again.
            OSError: If it cannot be written.
        """
        if self._folder is None:
            raise InputError(
                "no folder for checkpoints was given", "write `Ring(model, optimizer, checkpoints=FOLDER)`"
            )
        if self._formation.rank != 0 or self._is_relieved:
            return None

        mark = f"g{self.generation}-m{self.member}"
        path = write_checkpoint(self._folder, self._client, self._formation.state(), mark)
        if path is not None:
            self._steps.saved(max(self._client.step - 1, 0), str(path.absolute()))
        return path

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None and not self._is_relieved:
            for _ in self.steps(until=self._client.step):
                pass
            self._client.close()
            self._steps.done(loss=self._loss)
        else:
            self._client.leave(f"{kind.__name__}: {error}" if kind else "its script left the ring")

    def _recover(self, error: Exception | None = None) -> None:
        try:
            self._formation.recover(error)
            self._is_relieved = False
        except RelievedError:
            self._is_relieved = True
            self._steps.done()
        self._is_first = True

    def _recover_or_exit(self, error: Exception | None = None) -> None:
        """Recover the ring; if all others are done meanwhile, end this process: its state is not the last one."""
        try:
            self._recover(error)
        except FinishedError:
            sys.exit(0)

    def _end_trial_step(self) -> bool:
        """Drop a step that was computed to measure this member, and wait a while for a seat."""
        self._optimizer.zero_grad(set_to_none=True)
        try:
            if self._client.report_trial_step(self._shard_s, max(TRIAL_S, self._computed_s)):
                self._recover()
        except FinishedError:
            sys.exit(0)
        return False

    def _begin_step(self) -> None:
        now_s = time.monotonic()
        pulse = self._client.pulse
        pulse.compute_s, pulse.step_s = self._computed_s, now_s - self._began_s if self._began_s else 0.0
        if self._client.step % steps_between_reports(pulse.step_s) == 0 and not self._is_relieved:
            # For each shard: a member that computes shards of an empty seat too has not become slow.
            shard_s = self._shard_s if self._began_s else None
            self._steps.begin(self._client.step, computed_s=shard_s, loss=self._loss)
        self._began_s = now_s
        self._formation.begin_step()

    def _end_step(self) -> None:
        self._formation.end_step()
        if self._is_first:
            self._is_first = False
            self._formation.check_state()  # it has the optimizer's state by now
            self._client.report_first_step()


class Formation:
    """A member's group, seat and state; `recover` takes part in a recovery.

    Args:
        model: Whose parameters and buffers are the ring's.
        optimizer: Of this model.
        checkpoints: Folder whose newest checkpoint is loaded, if there is one.
        collectives: "gloo" or "nccl", for gradients on GPUs.

    Raises:
        InputError: If gradients of the model cannot be exchanged, or not over NCCL.
    """

    def __init__(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, checkpoints: Path | None, collectives: str
    ) -> None:
        check_parameters(model)
        self._model, self._optimizer, self._sparse_ids = model, optimizer, sparse_weight_ids(model)
        self._device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
        self._over_nccl = collectives == "nccl"
        if self._over_nccl:
            check_nccl(self._device)
        self._trained, self._pieces = list[int](), list[GradientPiece]()
        self._wide = WideSums(list(model.parameters()), lambda: len(self.shards) > 1)
        self._kept: dict[str, HasState] = {}
        self._unclaimed: dict[str, Any] = {}  # loaded states of parts that are not kept yet
        self._random: dict[str, Any] | None = None  # as it was when the step in progress began
        self._groups = 0
        self._group: RingGroup | None = None
        self._made = list[RingGroup]()  # in this generation
        self.seat, self.seats, self.rank = -1, 0, -1
        self.shards: list[int] = []
        self._newest = None if checkpoints is None else find_newest_checkpoint(checkpoints)
        self._problem: InputError | None = None  # of it; a member that receives the ring's state does not need it
        step = 0 if self._newest is None else self._load_checkpoint(self._newest)
        self._host = own_address_towards(os.environ[ADDRESS])
        self._store, store = offer_store(self._host)
        self.client: MemberClient = client_from_environment(store, step)
        self.client.start()

    def _load_checkpoint(self, newest: NewestCheckpoint) -> int:
        """Load a checkpoint, and return its step; 0 if it cannot be loaded."""
        try:
            state = newest.read()
            try:
                self._load_state(state)
                return int(state["step"])
            except (KeyError, RuntimeError, ValueError, TypeError, AttributeError) as error:
                raise newest.error_about("the newest checkpoint is of another model") from error
        except InputError as error:
            self._problem = error
            return 0

    def recover(self, error: Exception | None = None) -> None:
        """Take part in recoveries until one succeeds. Steps are those of `Coordinator` (coordinator.py).

        1. Detect: report an exchange that failed.
        2. Stop: give up the group of the last generation.
        3. Choose: wait for the layout, which has this member's seat.
        4. Form the group (`_make_group`).
        5. Copy the ring's state, as source or receiver (`_copy_state`), and report that this member is ready.

        Args:
            error: That ended the last exchange.

        Raises:
            FinishedError: If all are done instead.
            RelievedError: If a backup computes in place of this member.
            InputError: If the ring has no newer state than a checkpoint that cannot be loaded.
        """
        while True:
            try:
                if isinstance(error, LinkError):
                    self.client.report_failed_exchange(error.peer, str(error))
                while self._made:
                    self._made.pop().close()
                self._form_and_copy(self.client.wait_for_layout())
                return
            except EXCHANGE_ERRORS as failed:
                error = failed

    def take_gradients(self) -> Gradients:
        """Return the gradients of the step in progress, as this member computed them."""
        trained = [parameter for parameter in self._model.parameters() if parameter.requires_grad]
        identities = [id(parameter) for parameter in trained]
        if identities != self._trained:  # a script may freeze and thaw layers on its way
            self._trained, self._pieces = identities, pieces_of(trained, self._sparse_ids)
        return Gradients(self._pieces, self._wide.take())

    def average(self, gradients: Gradients) -> None:
        """Exchange gradients, and begin to change the state by their means.

        Raises:
            AbortedError: If the ring is formed again.
            LinkError: If an exchange fails.
        """
        assert self._group is not None  # a member has a seat before it computes
        gradients.average(self._group, self.seats)
        self.client.begin_apply()

    def keep(self, name: str, part: HasState) -> None:
        """Copy and save the state of a part, too."""
        self._kept[name] = part
        if name in self._unclaimed:
            part.load_state_dict(self._unclaimed.pop(name))

    def begin_step(self) -> None:
        """Keep the state of random numbers: a step that is computed again has the same ones."""
        self._wide.take()  # of a step that was dropped
        self._wide.watch_trained()
        if self._random is not None:
            set_random_state(self._random)
        self._random = random_state()

    def end_step(self) -> None:
        """Count a step that was applied."""
        self._random = None
        self.client.end_apply(self.client.step + 1)

    def check_state(self) -> None:
        """Check that the state can be saved and copied: at a fault it would be too late.

        Raises:
            InputError: If not.
        """
        plain_state(self.state())

    def state(self) -> dict[str, Any]:
        """Return the state that a joining member receives."""
        return {
            "step": self.client.step,
            "model": model_state(self._model),
            "optimizer": self._optimizer.state_dict(),
            "random": self._random or random_state(),
            "kept": {**self._unclaimed, **{name: part.state_dict() for name, part in self._kept.items()}},
        }

    def _form_and_copy(self, layout: RingLayout) -> None:
        client = self.client
        members = [assignment.member for assignment in layout.assignments]
        rank = members.index(client.member)
        group = self._make_group(layout, rank)
        self._groups += len(members) > 1
        formed_s = time.monotonic()
        self._copy_state(layout, group)
        copy_s = time.monotonic() - formed_s
        client.report_ready(
            MemberReady(client.member, layout.generation, client.step, self._groups, group.endpoints, copy_s)
        )
        self._group, self.rank, self.seats = group, rank, layout.seats
        self.seat, self.shards = layout.assignments[rank].seat, layout.assignments[rank].shards

    def _make_group(self, layout: RingLayout, rank: int) -> RingGroup:
        # One by one: if the second cannot be made, the first is still closed.
        self._made.append(GlooGroup(layout, "ring", rank, self._host, self.client))
        if self._over_nccl and len(layout.assignments) > 1:
            self._made.append(NcclGroup(self._made[0], partial(connect_nccl, layout, rank, self._device), self.client))
        return self._made[-1]

    def _copy_state(self, layout: RingLayout, group: RingGroup) -> None:
        """Send or receive the ring's state if the layout requires it."""
        own, receivers = self.client.member, layout.receivers
        copying = [
            assignment for assignment in layout.assignments if assignment.member in (layout.source, *receivers)
        ]  # fmt: skip
        members = [assignment.member for assignment in copying]
        if self._problem is not None and own not in receivers:
            raise self._problem
        if not receivers or own not in members:
            return
        if len(copying) < len(layout.assignments):  # in the ring's group the state would go to all others too
            rank = members.index(own)
            group = GlooGroup(replace(layout, assignments=copying), "copy", rank, self._host, self.client)
            self._made.append(group)
            self._groups += 1
        root = members.index(layout.source)
        if own == layout.source:
            send_state(self.state(), group, root)
            return
        state = receive_state(group, root)
        if self._problem is not None and self._newest is not None and int(state["step"]) < self._newest.step:
            raise self._problem  # training would begin again beside what it has written
        self._problem = None
        self.client.begin_apply()
        self._load_state(state)
        self.client.end_apply(int(state["step"]))

    def _load_state(self, state: dict[str, Any]) -> None:
        load_model_state(self._model, state["model"])
        self._optimizer.load_state_dict(state["optimizer"])
        set_random_state(state["random"])
        self._random = None
        self._unclaimed = dict(state["kept"])
        for name in [name for name in self._unclaimed if name in self._kept]:
            self._kept[name].load_state_dict(self._unclaimed.pop(name))
