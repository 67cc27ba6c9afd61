"""A training script's side of a ring: forming it, steps, and checkpoints.

Checkpoints of a ring: written whole, named only with the coordinator's leave, and the newest found again.

A name holds step, generation and member, so that no process ever writes over what another one wrote. A process that was
left behind gets no leave. If it gets it and stops before the name is given, the file is of a step that the ring had.

Source: SPEC F8 to F10, F8, F10.
"""

import os
import pickle
import re
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

import torch

from ..cluster.files.errors import InputError
from ..reporting import Steps
from .control import AbortedError, Control, FinishedError, RelievedError, end_process, from_environment
from .gradients import Averages, Gradients, Piece, WideSums, check_parameters, pieces_of, tables_of
from .groups import GlooGroup, Group, LinkError, NcclGroup, check_nccl, connect, offer_store, own_address
from .plain_state import plain, read_state, write_state
from .state import HasState, load_model, model_state, random_state, receive_state, send_state, set_random_state
from .wire import ADDRESS, GONE_STATUS, MEMBER, SECRET, Form, Ready

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


ANEW = "name another folder to begin anew"
KEPT = 3  # newest ones that are not removed
_NAME_TEXT = r"step-\d+-g\d+-m\d+\.pt"
_NAME = re.compile(_NAME_TEXT)
_DRAFT = re.compile(rf"\.{_NAME_TEXT}\.draft")


def write_checkpoint(folder: Path, control: Control, state: dict[str, Any], mark: str) -> Path | None:
    """Write a checkpoint.

    Args:
        folder: Where to.
        control: Asked for leave.
        state: Of the ring.
        mark: Generation and member, for the name.

    Returns:
        The file; None if another member computes in place of this one by now.

    Raises:
        InputError: If the state holds what could not be read again.
        OSError: If it cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"step-{control.step:09d}-{mark}.pt"
    draft = folder / f".{path.name}.draft"
    try:
        with draft.open("wb") as file:
            write_state(state, file)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        draft.unlink(missing_ok=True)  # it may be what fills the disk
        raise
    if not control.may_save():
        draft.unlink(missing_ok=True)
        if control.is_relieved:
            return None
        end_process(GONE_STATUS, "a checkpoint was refused: this process has no seat")
    draft.rename(path)
    drafts = _found(folder, ".step-*.pt.draft", _DRAFT)
    # Of members that were killed while they wrote: nobody else writes one of an earlier step any more.
    for old in (*_found(folder, "step-*.pt", _NAME)[:-KEPT], *(it for it in drafts if _order(it) < _order(path))):
        old.unlink(missing_ok=True)
    return path


class Found(NamedTuple):
    """The newest checkpoint of a folder."""

    path: Path
    before: Path | None  # the one that was written before it

    @property
    def step(self) -> int:
        """Steps that its state has seen, by its name."""
        return _order(self.path)[0]

    def read(self) -> dict[str, Any]:
        """Return its state.

        Raises:
            InputError: If it cannot be read.
        """
        try:
            state: dict[str, Any] = read_state(self.path)
        except OSError as error:
            raise self.problem(f"the checkpoint cannot be read: {error.strerror or error}") from error
        except (RuntimeError, pickle.UnpicklingError, EOFError, KeyError, TypeError, ValueError) as error:
            raise self.problem("it is no checkpoint of a ring") from error
        return state

    def problem(self, what: str) -> InputError:
        """Return an error about it; what to do loses nothing that was written."""
        older = "" if self.before is None else f", or move it elsewhere to go on from {self.before.name}"
        return InputError(what, f"{ANEW}{older}", path=self.path)


def find_newest(folder: Path) -> Found | None:
    """Return the newest checkpoint of a folder, None if there is none."""
    found = _found(folder, "step-*.pt", _NAME)
    return Found(found[-1], found[-2] if len(found) > 1 else None) if found else None


def _found(folder: Path, pattern: str, name: re.Pattern[str]) -> list[Path]:
    """Return files of a folder by step, generation and member, the newest last."""
    return sorted((path for path in folder.glob(pattern) if name.fullmatch(path.name)), key=_order)


def _order(path: Path) -> list[int]:
    """Return step, generation and member of a checkpoint or its draft."""
    return [int(part) for part in re.findall(r"\d+", path.name)]


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
