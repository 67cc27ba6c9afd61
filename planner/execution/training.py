"""One process of a planned training: its stage of the model, its replica, and the sums of gradients over replicas.

One process of a training: it has one stage of the model, and one replica of it.

Ranks are numbered stage by stage, the replicas of a stage side by side. A step is the stage's passes in the order of
the schedule, the sum of gradients over replicas, and the optimizer.

Source: SPEC P1, P6.
"""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ...cluster.files.errors import InputError
from ...cluster.model.training_plan import PlanFile
from ...ring.gradients import Gathered, GradientPiece, average_now, check_parameters, pieces_of, tables_of
from ..model import Schedule, Seconds
from ..offload.offloading import Offloading, PartMeasured, Wish
from ..sharing import Kind, Turn
from .cutting import Cut, Passes, Script, StagePasses, WholePasses, check_layers, cut, parameter_of, state_of


class Members:
    """Members of a process group.

    Args:
        group: Of this process and others.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)

    def sum(self, tensor: Tensor) -> None:
        """Replace a tensor by its sum over all members."""
        dist.all_reduce(tensor, group=self.group)


def average(pieces: Sequence[GradientPiece], loss: Tensor, members: Members) -> Tensor:
    """Replace gradients by their means over members; return the mean of the loss as well.

    Args:
        pieces: Of the parameters, the same on each member.
        loss: Of the member, a number; it travels with the gradients.
        members: All of them.
    """
    if pieces:
        return average_now(pieces, members, members.size, [loss.reshape(1)])[0]
    whole = loss.clone()
    members.sum(whole)
    return whole.div_(members.size)


PIECE_BYTES = 4 << 20


class EarlySums:
    """Sums that begin in the last backward pass of an iteration.

    Args:
        parameters: The same ones on each member.
        tables: Identities of those with sparse gradients.
        members: Replicas of the stage.
        micro_batches: Backward passes of an iteration.
        late: Parameters that are summed with other stages first, and so begin in the end.
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        tables: Collection[int],
        members: Members,
        micro_batches: int,
        late: Sequence[nn.Parameter],
    ) -> None:
        self._members, self._micro_batches = members, micro_batches
        lates = {id(it) for it in late}
        early = [it for it in reversed(parameters) if id(it) not in lates]
        self._pieces = [*pieces_of(early, tables, PIECE_BYTES), *(GradientPiece([it], tables) for it in late)]
        # All members begin pieces in this order, whichever is whole first: sums of different pieces must not meet.
        self._left = list[int]()  # of each piece, gradients that are to come
        self._begun = list[tuple[Gathered, dist.Work]]()
        self._of = {id(it): at for at, piece in enumerate(self._pieces) for it in piece.parameters}
        self._lates = lates
        self._reset()
        for it in early:
            it.register_post_accumulate_grad_hook(self._came)  # type: ignore[no-untyped-call]

    def finish(self, loss: Tensor) -> Tensor:
        """Replace gradients by their means over the members; return the mean of the loss."""
        members = self._members
        for piece in self._pieces[len(self._begun) :]:
            self._begin(piece)
        members.sum(loss)
        for _, work in self._begun:
            work.wait()
        for piece, (own, _) in zip(self._pieces, self._begun, strict=True):
            piece.put(piece.averaged(own.flat, own, members, members.size).gradients)
        self._reset()
        return loss.div_(members.size)

    def _reset(self) -> None:
        # A late piece waits for a gradient more than will come.
        self._left = [
            len(piece.parameters) * self._micro_batches + any(id(it) in self._lates for it in piece.parameters)
            for piece in self._pieces
        ]
        self._begun = []

    def _came(self, parameter: Tensor) -> None:
        self._left[self._of[id(parameter)]] -= 1
        while len(self._begun) < len(self._pieces) and not self._left[len(self._begun)]:
            self._begin(self._pieces[len(self._begun)])

    def _begin(self, piece: GradientPiece) -> None:
        own = piece.gathered()
        own.flat.div_(self._members.size)
        piece.put([None] * len(piece.parameters))
        work = dist.all_reduce(own.flat, group=self._members.group, async_op=True)
        assert work is not None
        self._begun.append((own, work))


ResultT = TypeVar("ResultT")


@dataclass(slots=True)
class Watch:
    """Adds up what calls take in a step, by what they are for."""

    spent: dict[str, float] = field(default_factory=dict)

    def timed(self, name: str, call: Callable[..., ResultT]) -> Callable[..., ResultT]:
        """Return a call that adds its time under a name."""

        def timed_call(*args: Any, **kwargs: Any) -> ResultT:
            began_s = time.perf_counter()
            try:
                return call(*args, **kwargs)
            finally:
                self.spent[name] = self.spent.get(name, 0.0) + time.perf_counter() - began_s

        return timed_call

    def take(self) -> Seconds:
        """Return what was added since the last time."""
        spent, self.spent = self.spent, {}
        return Seconds(*(spent.get(name, 0.0) for name in Seconds._fields))


@dataclass(frozen=True, slots=True)
class Seat:
    """What a rank has to do with which others; of processes that are all of one plan."""

    stage: int
    replica: int
    pipeline: dist.ProcessGroup  # the stages of its replica
    replicas: dist.ProcessGroup  # of its stage


def take_seat(plan: PlanFile) -> Seat | None:
    """Return the seat of this process, None if the plan needs fewer processes; all call it."""
    rank, d, p = dist.get_rank(), plan.data, plan.pipeline
    pipelines = [dist.new_group([k * d + r for k in range(p)]) for r in range(d)]
    stages = [dist.new_group([k * d + r for r in range(d)]) for k in range(p)]
    if rank >= d * p:
        return None
    return Seat(rank // d, rank % d, pipelines[rank % d], stages[rank // d])


class Member:
    """A stage's replica that trains.

    Args:
        plan: What to carry out.
        script: The model and its data.
        schedule: In which order a stage does its passes.
        seat: Of this process.
    """

    def __init__(self, plan: PlanFile, script: Script, schedule: Schedule, seat: Seat) -> None:
        self._plan, self._script, self._seat = plan, script, seat
        self._watch = Watch()
        self._unused: dict[str, Tensor] = {}
        self._losses: list[Tensor] = []  # of the micro-batches of a step
        self._shared: list[tuple[nn.Parameter, Members]] = []
        self._passes, self.module = self._made_passes(schedule)
        with torch.no_grad():
            for tensor in (*self.module.parameters(), *self.module.buffers()):  # alike, however they were drawn
                dist.broadcast(tensor, seat.stage * plan.data, group=seat.replicas)
        self._parameters = [it for it in self.module.parameters() if it.requires_grad]
        self._tables, self._replicas = tables_of(self.module), Members(seat.replicas)
        self._pieces = pieces_of(self._parameters, self._tables)
        # A stage may hold frozen layers alone, and an optimizer of nothing cannot be made.
        nothing = [nn.Parameter(torch.zeros(0))]
        self._optimizer = script.optimizer(self._parameters) if self._parameters else torch.optim.SGD(nothing, lr=0.0)
        self._offloading: Offloading | None = None
        self._turn: Turn | None = None
        self._early: EarlySums | None = None
        self._step = 0

    def _share_of_loss(self, output: Any, target: Tensor | None) -> Tensor:
        """Return what a micro-batch adds to the loss: gradients add up to a mean, and never to more than that."""
        loss = self._script.loss_of(output, target)
        self._losses.append(loss.detach())
        return loss / self._plan.micro_batches

    def _around(self, kind: Kind, call: Callable[..., ResultT]) -> Callable[..., ResultT]:
        """Return a pass of which the time is noted, and which waits for the device where there is a pipeline."""
        timed = self._watch.timed(f"{kind.name}_s", call)
        if self._plan.pipeline == 1:  # all passes have the device in one piece
            return timed

        def called(micro_batch: int, *args: Any, **kwargs: Any) -> ResultT:
            if self._turn is None:
                return timed(micro_batch, *args, **kwargs)
            with self._turn.of(self._step, kind, micro_batch):
                return timed(micro_batch, *args, **kwargs)

        return called

    def _made_passes(self, schedule: Schedule) -> tuple[Passes, nn.Module]:
        """Return the passes of this process, with what it has of the model."""
        plan, seat, made = self._plan, self._seat, self._script.made
        check_parameters(made.model)
        if plan.pipeline == 1:
            check_layers(made.model, [it.layers for it in plan.stages])
            return WholePasses(
                made.model, plan.micro_batch, plan.micro_batches, self._share_of_loss, self._around
            ), made.model
        found = cut(made, [it.layers for it in plan.stages], plan.micro_batch)
        part, place = found.stages[seat.stage], (seat.stage, plan.pipeline)
        self._unused = found.unused if seat.stage == plan.pipeline - 1 else {}
        loss = self._watch.timed("forward_s", self._share_of_loss)
        passes = StagePasses(part, place, seat.pipeline, schedule, plan.micro_batches, loss, self._around)
        self._shared = self._groups(found, part.module)
        return passes, part.module

    def _groups(self, found: Cut, module: nn.Module) -> list[tuple[nn.Parameter, Members]]:
        """Return parameters that other stages have too, with those."""
        mine = []
        for it in found.shared:
            for replica in range(self._plan.data):  # every process makes every group
                group = dist.new_group([k * self._plan.data + replica for k in it.stages])
                if replica == self._seat.replica and self._seat.stage in it.stages:
                    mine.append((parameter_of(module, it.names), Members(group)))
        return mine

    def offload(self, wish: Wish, say: Callable[[str], None]) -> None:
        """Put state away from the first update on, where that pays."""
        self._offloading = Offloading(wish, dist.get_rank(), self._optimizer, self._parameters, say)

    def share(self, turn: Turn, *, early: bool = True) -> None:
        """Compute only while this sub-task has the device.

        Args:
            turn: Says when.
            early: Whether sums of gradients begin while another sub-task has it.
        """
        self._turn = turn
        if early and self._plan.data > 1:
            late = [parameter for parameter, _ in self._shared]
            micro_batches = self._plan.micro_batches
            self._early = EarlySums(self._parameters, self._tables, self._replicas, micro_batches, late)

    @property
    def away_bytes(self) -> int | None:
        """State that is put away in a step, None where that is not done."""
        return None if self._offloading is None else self._offloading.away_bytes

    @property
    def has_loss(self) -> bool:
        """Whether this process has the loss of all samples, and no other that has it speaks of it."""
        return self._seat.stage == self._plan.pipeline - 1 and self._seat.replica == 0

    def step(self, number: int, applied: Callable[[], object] = lambda: None) -> tuple[float, Seconds]:
        """Train on the samples of a step; return the loss over all of them, where it is known, and the time.

        Args:
            number: Of the step.
            applied: Called once the step is applied, while all state is in memory.
        """
        plan, seat = self._plan, self._seat
        each = plan.batch // plan.data
        batch, target = self._script.samples(number * plan.batch + seat.replica * each, each)
        self._losses = []
        offloading = self._offloading
        if offloading is not None:
            offloading.step_begins()
        turn, self._step = self._turn, number
        is_alone = turn is None or plan.pipeline > 1
        with nullcontext() if is_alone or turn is None else turn.of(number, Kind.phase):
            self._passes.step(batch, torch.zeros(each) if target is None else target)
        # Before the first step, schedules try the loss once more, to see its form.
        losses = self._losses[-plan.micro_batches :]
        loss = torch.stack(losses).mean() if losses else torch.zeros(())
        if offloading is not None:
            offloading.sync_begins()
        mean = self._watch.timed("gradients_s", self._sum)(loss)
        if offloading is not None:
            offloading.sync_ended()
        with nullcontext() if turn is None else turn.of(number, Kind.update):
            self._watch.timed("optimizer_s", self._update)()
        applied()
        if offloading is not None:
            offloading.update_ended()
        return float(mean), self._watch.take()

    def _sum(self, loss: Tensor) -> Tensor:
        for parameter, members in self._shared:
            average_now(pieces_of([parameter], self._tables), members, 1)  # divided by 1: a sum
        if self._early is not None:
            return self._early.finish(loss)
        return average(self._pieces, loss, self._replicas) if self._plan.data > 1 else loss

    def _update(self) -> None:
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)

    def close(self) -> list[PartMeasured]:
        """Bring all state back into memory; return what became of what was put away."""
        if self._turn is not None:
            self._turn.close()
        if self._offloading is None:
            return []
        found = self._offloading.measured()
        self._offloading.close()
        return found

    def training_state(self) -> dict[str, Any]:
        """Return all that training goes on from."""
        optimizer, random = self._optimizer.state_dict(), torch.get_rng_state()
        return {"module": self.module.state_dict(), "optimizer": optimizer, "random": random}

    def go_on_from(self, state: Mapping[str, Any]) -> None:
        """Take over what another process of this stage returned for that.

        Raises:
            InputError: If it is of another model.
        """
        try:
            self.module.load_state_dict(state["module"])
            self._optimizer.load_state_dict(state["optimizer"])
            torch.set_rng_state(state["random"])  # replicas of a stage draw alike
        except (KeyError, RuntimeError, ValueError, TypeError, AttributeError) as error:
            raise InputError("the checkpoint is of another model", "name another folder to begin anew") from error

    def state(self) -> dict[str, Tensor]:
        """Return parameters and buffers of the stage by the model's own names; of the last, those of no stage too."""
        return state_of(self.module) | self._unused
