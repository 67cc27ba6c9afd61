"""One process of a planned training: it trains one replica of one stage of the model.

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
from ...ring.gradients import Gathered, GradientPiece, average_in_place, check_parameters, pieces_of, sparse_weight_ids
from ..offload.offloading import Offloading, OffloadOptions, PartMeasured
from ..schedule import Schedule, StageSeconds
from ..sharing import DeviceTurn, PassKind
from .cutting import (
    CutModel,
    Passes,
    Script,
    check_layers,
    cut_into_stages,
    parameter_by_any_name,
    stage_passes,
    state_by_name,
    whole_model_passes,
)


class ReplicaGroup:
    """The replicas of a stage, as a process group."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)

    def sum(self, tensor: Tensor) -> None:
        """Replace a tensor by its sum over all members."""
        dist.all_reduce(tensor, group=self.group)


def average_gradients(pieces: Sequence[GradientPiece], loss: Tensor, members: ReplicaGroup) -> Tensor:
    """Replace gradients by their means over members; return the mean of the loss as well.

    Args:
        pieces: Of the parameters, the same on each member.
        loss: Of the member, a number; it is sent with the gradients.
        members: The group.
    """
    if pieces:
        return average_in_place(pieces, members, members.size, [loss.reshape(1)])[0]
    whole = loss.clone()
    members.sum(whole)
    return whole.div_(members.size)


EARLY_SUM_BYTES = 4 << 20


class EarlyGradientSums:
    """Sums that begin in the last backward pass of an iteration.

    Args:
        parameters: The same on each member.
        tables: Identities of those with sparse gradients.
        members: Replicas of the stage.
        micro_batches: Backward passes of an iteration.
        late: Parameters that are summed with other stages first, and so start at the end.
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        tables: Collection[int],
        members: ReplicaGroup,
        micro_batches: int,
        late: Sequence[nn.Parameter],
    ) -> None:
        self._members, self._micro_batches = members, micro_batches
        lates = {id(parameter) for parameter in late}
        early = [parameter for parameter in reversed(parameters) if id(parameter) not in lates]
        self._pieces = [
            *pieces_of(early, tables, EARLY_SUM_BYTES),
            *(GradientPiece([parameter], tables) for parameter in late),
        ]
        # All members start pieces in this order, whichever is complete first: sums of different pieces must not mix.
        self._left = list[int]()  # of each piece, outstanding gradients
        self._begun = list[tuple[Gathered, dist.Work]]()
        self._of = {id(parameter): at for at, piece in enumerate(self._pieces) for parameter in piece.parameters}
        self._lates = lates
        self._reset()
        for parameter in early:
            parameter.register_post_accumulate_grad_hook(self._gradient_arrived)  # type: ignore[no-untyped-call]

    def finish(self, loss: Tensor) -> Tensor:
        """Replace gradients by their means over the members; return the mean of the loss."""
        members = self._members
        for piece in self._pieces[len(self._begun) :]:
            self._begin_sum(piece)
        members.sum(loss)
        for _, work in self._begun:
            work.wait()
        for piece, (own, _) in zip(self._pieces, self._begun, strict=True):
            piece.assign(piece.finish_average(own.flat, own, members, members.size).gradients)
        self._reset()
        return loss.div_(members.size)

    def _reset(self) -> None:
        # A late piece waits for one gradient more than arrives.
        self._left = [
            len(piece.parameters) * self._micro_batches
            + any(id(parameter) in self._lates for parameter in piece.parameters)
            for piece in self._pieces
        ]
        self._begun = []

    def _gradient_arrived(self, parameter: Tensor) -> None:
        self._left[self._of[id(parameter)]] -= 1
        while len(self._begun) < len(self._pieces) and not self._left[len(self._begun)]:
            self._begin_sum(self._pieces[len(self._begun)])

    def _begin_sum(self, piece: GradientPiece) -> None:
        own = piece.gather()
        own.flat.div_(self._members.size)
        piece.assign([None] * len(piece.parameters))
        work = dist.all_reduce(own.flat, group=self._members.group, async_op=True)
        assert work is not None
        self._begun.append((own, work))


ResultT = TypeVar("ResultT")


@dataclass(slots=True)
class PassTimer:
    """Sums the time of calls in a step, by name."""

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

    def take_seconds(self) -> StageSeconds:
        """Return the sums since the last call."""
        spent, self.spent = self.spent, {}
        return StageSeconds(*(spent.get(name, 0.0) for name in StageSeconds._fields))


@dataclass(frozen=True, slots=True)
class Seat:
    """The place of a rank in a plan, with its process groups."""

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


class StageTrainer:
    """Trains the replica of a stage."""

    def __init__(self, plan: PlanFile, script: Script, schedule: Schedule, seat: Seat) -> None:
        self._plan, self._script, self._seat = plan, script, seat
        self._timer = PassTimer()
        self._unused: dict[str, Tensor] = {}
        self._losses: list[Tensor] = []  # of the micro-batches of a step
        self._shared: list[tuple[nn.Parameter, ReplicaGroup]] = []
        self._passes, self.module = self._make_passes(schedule)
        with torch.no_grad():
            for tensor in (*self.module.parameters(), *self.module.buffers()):  # equal, however they were drawn
                dist.broadcast(tensor, seat.stage * plan.data, group=seat.replicas)
        self._parameters = [parameter for parameter in self.module.parameters() if parameter.requires_grad]
        self._tables, self._replicas = sparse_weight_ids(self.module), ReplicaGroup(seat.replicas)
        self._pieces = pieces_of(self._parameters, self._tables)
        # A stage may have only frozen layers, and an optimizer needs a parameter.
        nothing = [nn.Parameter(torch.zeros(0))]
        self._optimizer = (
            script.make_optimizer(self._parameters) if self._parameters else torch.optim.SGD(nothing, lr=0.0)
        )
        self._offloading: Offloading | None = None
        self._turn: DeviceTurn | None = None
        self._early: EarlyGradientSums | None = None
        self._step = 0

    def _share_of_loss(self, output: Any, target: Tensor | None) -> Tensor:
        """Return what a micro-batch adds to the loss: gradients accumulate to a mean."""
        loss = self._script.loss_of(output, target)
        self._losses.append(loss.detach())
        return loss / self._plan.micro_batches

    def _wrap_pass(self, kind: PassKind, call: Callable[..., ResultT]) -> Callable[..., ResultT]:
        """Wrap a pass: measure its time, and in a pipeline wait for the device."""
        timed = self._timer.timed(f"{kind.name}_s", call)
        if self._plan.pipeline == 1:  # all passes hold the device together
            return timed

        def called(micro_batch: int, *args: Any, **kwargs: Any) -> ResultT:
            if self._turn is None:
                return timed(micro_batch, *args, **kwargs)
            with self._turn.hold(self._step, kind, micro_batch):
                return timed(micro_batch, *args, **kwargs)

        return called

    def _make_passes(self, schedule: Schedule) -> tuple[Passes, nn.Module]:
        """Return the passes of this process, with its part of the model."""
        plan, seat, made = self._plan, self._seat, self._script.made
        check_parameters(made.model)
        if plan.pipeline == 1:
            check_layers(made.model, [stage.layers for stage in plan.stages])
            loss, around = self._share_of_loss, self._wrap_pass
            return whole_model_passes(made.model, plan.micro_batch, plan.micro_batches, loss, around), made.model
        found = cut_into_stages(made, [stage.layers for stage in plan.stages], plan.micro_batch)
        part, place = found.stages[seat.stage], (seat.stage, plan.pipeline)
        self._unused = found.unused if seat.stage == plan.pipeline - 1 else {}
        loss = self._timer.timed("forward_s", self._share_of_loss)
        passes = stage_passes(part, place, seat.pipeline, schedule, plan.micro_batches, loss, self._wrap_pass)
        self._shared = self._shared_parameter_groups(found, part.module)
        return passes, part.module

    def _shared_parameter_groups(self, found: CutModel, module: nn.Module) -> list[tuple[nn.Parameter, ReplicaGroup]]:
        """Return parameters that other stages have too, with the groups of these stages."""
        mine = []
        for names, stages in found.shared.items():
            for replica in range(self._plan.data):  # every process creates every group
                group = dist.new_group([k * self._plan.data + replica for k in stages])
                if replica == self._seat.replica and self._seat.stage in stages:
                    mine.append((parameter_by_any_name(module, names), ReplicaGroup(group)))
        return mine

    def start_offloading(self, options: OffloadOptions, print_line: Callable[[str], None]) -> None:
        """Offload state from the first update on, if that pays."""
        self._offloading = Offloading(options, dist.get_rank(), self._optimizer, self._parameters, print_line)

    def share_device(self, turn: DeviceTurn, *, early: bool = True) -> None:
        """Compute only while this sub-task holds the device.

        Args:
            turn: Grants the device.
            early: Whether sums of gradients begin while another sub-task holds it.
        """
        self._turn = turn
        if early and self._plan.data > 1:
            late = [parameter for parameter, _ in self._shared]
            micro_batches = self._plan.micro_batches
            self._early = EarlyGradientSums(self._parameters, self._tables, self._replicas, micro_batches, late)

    @property
    def away_bytes(self) -> int | None:
        """State that is offloaded in a step, None without offloading."""
        return None if self._offloading is None else self._offloading.away_bytes

    @property
    def has_loss(self) -> bool:
        """Whether this process reports the loss of all samples."""
        return self._seat.stage == self._plan.pipeline - 1 and self._seat.replica == 0

    def step(self, step: int, save: Callable[[], object] | None = None) -> tuple[float, StageSeconds]:
        """Train on the samples of a step; return the loss over all of them, where it is known, and the seconds.

        1. Run the forward and backward passes of all micro-batches. The optimizer state may be offloaded.
        2. Sum the gradients over the replicas. The parameters may be offloaded, and the optimizer state returns.
        3. Update the parameters.
        4. Save the state, if it is to be saved, while all of it is in memory.
        """
        plan, seat = self._plan, self._seat
        each = plan.batch // plan.data
        batch, target = self._script.samples(step * plan.batch + seat.replica * each, each)
        self._losses = []
        offloading = self._offloading
        if offloading is not None:
            offloading.begin_step()
        turn, self._step = self._turn, step
        is_alone = turn is None or plan.pipeline > 1
        with nullcontext() if is_alone or turn is None else turn.hold(step, PassKind.phase):
            self._passes(batch, torch.zeros(each) if target is None else target)  # 1
        # Before the first step, schedules compute the loss once more, to find its form.
        losses = self._losses[-plan.micro_batches :]
        loss = torch.stack(losses).mean() if losses else torch.zeros(())
        if offloading is not None:
            offloading.begin_sync()
        mean = self._timer.timed("gradients_s", self._sum_gradients)(loss)  # 2
        if offloading is not None:
            offloading.end_sync()
        with nullcontext() if turn is None else turn.hold(step, PassKind.update):
            self._timer.timed("optimizer_s", self._update_parameters)()  # 3
        if save is not None:
            save()  # 4
        if offloading is not None:
            offloading.end_update()
        return float(mean), self._timer.take_seconds()

    def _sum_gradients(self, loss: Tensor) -> Tensor:
        for parameter, members in self._shared:
            average_in_place(pieces_of([parameter], self._tables), members, 1)  # divided by 1: a sum
        if self._early is not None:
            return self._early.finish(loss)
        return average_gradients(self._pieces, loss, self._replicas) if self._plan.data > 1 else loss

    def _update_parameters(self) -> None:
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)

    def close(self) -> list[PartMeasured]:
        """Bring all state back into memory; return the measurements of offloading."""
        if self._turn is not None:
            self._turn.close()
        if self._offloading is None:
            return []
        found = self._offloading.measurements()
        self._offloading.close()
        return found

    def training_state(self) -> dict[str, Any]:
        """Return the state to resume from."""
        optimizer, random = self._optimizer.state_dict(), torch.get_rng_state()
        return {"module": self.module.state_dict(), "optimizer": optimizer, "random": random}

    def load_training_state(self, state: Mapping[str, Any]) -> None:
        """Load the training state of a process of this stage.

        Raises:
            InputError: If it is of another model.
        """
        try:
            self.module.load_state_dict(state["module"])
            self._optimizer.load_state_dict(state["optimizer"])
            torch.set_rng_state(state["random"])  # replicas of a stage draw the same numbers
        except (KeyError, RuntimeError, ValueError, TypeError, AttributeError) as error:
            raise InputError(
                "the checkpoint is of another model", "name another folder to start from the beginning"
            ) from error

    def state_by_name(self) -> dict[str, Tensor]:
        """Return parameters and buffers of the stage by the model's own names; of the last, those of no stage too."""
        return state_by_name(self.module) | self._unused
