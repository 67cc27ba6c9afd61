"""A member's part in forming the ring: its group, and the copy of the ring's state.

Source: SPEC F8, F10.
"""

import os
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ....cluster.files.errors import InputError
from ....gradients import Averages, Gradients, Piece, WideSums, check_parameters, pieces_of, tables_of
from ....plain_state import plain
from ..wire import ADDRESS, Form, Ready
from .checkpoints import Found, find_newest
from .control import AbortedError, Control, from_environment
from .groups import GlooGroup, Group, LinkError, offer_store, own_address
from .nccl import NcclGroup, check_nccl, connect
from .state import HasState, load_model, model_state, random_state, receive_state, send_state, set_random_state

FAILED = (AbortedError, LinkError)  # what an exchange may end with


class Formation:
    """What a member holds of the ring.

    Args:
        model: Whose parameters and buffers are the ring's.
        optimizer: Of this model.
        checkpoints: Folder whose newest checkpoint is loaded, if there is one.
        collectives: "gloo" or "nccl": what gradients on GPUs go over.

    Raises:
        InputError: If gradients of the model cannot be exchanged, or not over NCCL.
    """

    def __init__(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, checkpoints: Path | None, collectives: str
    ) -> None:
        check_parameters(model)
        self._model, self._optimizer, self._tables = model, optimizer, tables_of(model)
        self._device = next((it.device for it in model.parameters()), torch.device("cpu"))
        self._over_nccl = collectives == "nccl"
        if self._over_nccl:
            check_nccl(self._device)
        self._trained, self._pieces = list[int](), list[Piece]()
        self._wide = WideSums(list(model.parameters()), lambda: len(self.shards) > 1)
        self._kept: dict[str, HasState] = {}
        self._given: dict[str, Any] = {}  # states of what is not kept yet
        self._random: dict[str, Any] | None = None  # as it was when the step in progress began
        self._groups = 0
        self._group: Group | None = None
        self._made = list[Group]()  # in this generation
        self.seat, self.seats, self.rank = -1, 0, -1
        self.shards: list[int] = []
        self._newest = None if checkpoints is None else find_newest(checkpoints)
        self._problem: InputError | None = None  # of it; a member that is given the ring's state does without
        step = 0 if self._newest is None else self._load(self._newest)
        self._host = own_address(os.environ[ADDRESS])
        self._store, store = offer_store(self._host)
        self.control: Control = from_environment(store, step)
        self.control.start()

    def _load(self, newest: Found) -> int:
        """Take a checkpoint over, and return its step; 0 if that cannot be done."""
        try:
            state = newest.read()
            try:
                self._take(state)
                return int(state["step"])
            except (KeyError, RuntimeError, ValueError, TypeError, AttributeError) as error:
                raise newest.problem("the newest checkpoint is of another model") from error
        except InputError as error:
            self._problem = error
            return 0

    def join(self, error: Exception | None = None) -> None:
        """Take the seat that the coordinator gives, in a new generation; try until it holds.

        Args:
            error: What the last exchange ended with.

        Raises:
            FinishedError: If all are done instead.
            RelievedError: If another member computes in place of this one.
            InputError: If the ring has no newer state than a checkpoint that cannot be loaded.
        """
        while True:
            try:
                if isinstance(error, LinkError):
                    self.control.fault(error.peer, str(error))
                while self._made:
                    self._made.pop().close()
                self._form(self.control.form())
                return
            except FAILED as failed:
                error = failed

    def gradients(self) -> Gradients:
        """Return the gradients of the step in progress, as this member computed them."""
        trained = [it for it in self._model.parameters() if it.requires_grad]
        if [id(it) for it in trained] != self._trained:  # a script may freeze and thaw layers on its way
            self._trained, self._pieces = [id(it) for it in trained], pieces_of(trained, self._tables)
        return Gradients(self._pieces, self._wide.take())

    def averaged(self, gradients: Gradients) -> Averages:
        """Exchange gradients, and begin to change the state by them.

        Raises:
            AbortedError: If the ring is formed anew.
            LinkError: If an exchange fails.
        """
        assert self._group is not None  # a member has a seat before it computes
        averages = gradients.averaged(self._group, self.seats)
        self.control.begin_apply()
        return averages

    def keep(self, name: str, it: HasState) -> None:
        """Let the state of something go along."""
        self._kept[name] = it
        if name in self._given:
            it.load_state_dict(self._given.pop(name))

    def begin_step(self) -> None:
        """Note the random numbers; a step that is computed anew has the same again."""
        self._wide.take()  # of a step that was given up
        self._wide.begin()
        if self._random is not None:
            set_random_state(self._random)
        self._random = random_state()

    def end_step(self) -> None:
        """Count a step that was applied."""
        self._random = None
        self.control.end_apply(self.control.step + 1)

    def check_state(self) -> None:
        """Look whether the state can be saved and copied: at a fault it would be too late to find that it cannot.

        Raises:
            InputError: If not.
        """
        plain(self.state())

    def state(self) -> dict[str, Any]:
        """Return the state that a member which joins takes over."""
        return {
            "step": self.control.step,
            "model": model_state(self._model),
            "optimizer": self._optimizer.state_dict(),
            "random": self._random or random_state(),
            "kept": {**self._given, **{name: it.state_dict() for name, it in self._kept.items()}},
        }

    def _form(self, form: Form) -> None:
        control = self.control
        members = [place.member for place in form.places]
        rank = members.index(control.member)
        began_s = time.monotonic()
        group = self._make_group(form, rank)
        self._groups += len(members) > 1
        formed_s = time.monotonic()
        digest = self._copy(form, group)
        control.ready(
            Ready(
                control.member, form.generation, control.step, digest, self._groups, group.ends,
                formed_s - began_s, time.monotonic() - formed_s,
            )
        )  # fmt: skip
        self._group, self.rank, self.seats = group, rank, form.seats
        self.seat, self.shards = form.places[rank].seat, form.places[rank].shards

    def _make_group(self, form: Form, rank: int) -> Group:
        # One by one: where the second does not come about, the first is there to be closed.
        self._made.append(GlooGroup(form, "ring", rank, self._host, self.control))
        if self._over_nccl and len(form.places) > 1:
            self._made.append(NcclGroup(self._made[0], partial(connect, form, rank, self._device), self.control))
        return self._made[-1]

    def _copy(self, form: Form, group: Group) -> str:
        """Give or take the ring's state if this member is to, and return its digest, "" if it is not."""
        own = self.control.member
        places = [it for it in form.places if it.member == form.source or it.member in form.receivers]
        members = [it.member for it in places]
        if self._problem is not None and own not in form.receivers:
            raise self._problem
        if not form.receivers or own not in members:
            return ""
        if len(places) < len(form.places):  # a group of their own, or the link would carry the state to all others too
            group = GlooGroup(replace(form, places=places), "copy", members.index(own), self._host, self.control)
            self._made.append(group)
            self._groups += 1
        root = members.index(form.source)
        if own == form.source:
            return send_state(self.state(), group, root)
        copied = receive_state(group, root)
        if self._problem is not None and self._newest is not None and int(copied.state["step"]) < self._newest.step:
            raise self._problem  # training would begin anew beside what it has written
        self._problem = None
        self.control.begin_apply()
        self._take(copied.state)
        self.control.end_apply(int(copied.state["step"]))
        return copied.digest

    def _take(self, state: dict[str, Any]) -> None:
        load_model(self._model, state["model"])
        self._optimizer.load_state_dict(state["optimizer"])
        set_random_state(state["random"])
        self._random = None
        self._given = dict(state["kept"])
        for name in [it for it in self._given if it in self._kept]:
            self._kept[name].load_state_dict(self._given.pop(name))
