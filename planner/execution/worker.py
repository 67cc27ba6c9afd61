"""The command of each process that carries out a plan: `python -m longshore.stage plan.json train.py:build`.

It finds the others by RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, which all back ends set; as a member of a ring, by
that.

Source: SPEC P1.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import ceil, nan
from pathlib import Path
from statistics import median
from typing import Annotated, Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist
from pydantic import BaseModel, BeforeValidator, ConfigDict
from rich.console import Console
from rich.table import Table

from ...cluster.files.errors import InputError, LongshoreError
from ...cluster.files.output_file import in_one_line
from ...cluster.model.training_plan import PlanFile, StagePlan
from ...reporting import Steps
from ..model import Offload, Schedule, Seconds, schedule_of
from ..offload.offloading import PartMeasured, Wish
from ..profile.building import BuildError
from ..sharing import Turn
from .checkpoints import Checkpoints, resume
from .cutting import Script, script_of
from .in_ring import MakeRing, train_in_ring
from .plan_file import plan_in, read_plan
from .training import Member, Seat, take_seat

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


ROWS = {"forward_s": "forward", "backward_s": "backward", "gradients_s": "gradients", "optimizer_s": "optimizer"}


def print_comparison(console: Console, plan: PlanFile, found: Measured, ranks_per_device: int = 1) -> None:
    """Print the times of an iteration; without a prediction, what was measured alone.

    Args:
        console: To print on.
        plan: With what was predicted, for ranks that have a device each.
        found: What was measured.
        ranks_per_device: That took turns.
    """
    table = Table("stage", "layers", "what", box=None, pad_edge=False)
    for heading in ("predicted", "measured", "off"):
        table.add_column(heading, justify="right")
    for k, (stage, took) in enumerate(zip(plan.stages, found.stages, strict=True)):
        names = stage.layers[0] if len(stage.layers) == 1 else f"{stage.layers[0]} ... {stage.layers[-1]}"
        predicted, head = _predicted(stage), (str(k), names)
        for field, what in ROWS.items():
            if getattr(took.seconds, field) or getattr(predicted, field):
                table.add_row(*head, what, *_cells(plan, getattr(predicted, field), getattr(took.seconds, field)))
                head = ("", "")
        table.add_row(*head, "wait", *_cells(plan, _wait_s(plan, predicted), took.wait_s))
    table.add_row("all", f"{plan.ranks} ranks", "iteration", *_cells(plan, plan.step_s, found.step_s))
    console.print()
    console.print(table)
    if plan.step_s and ranks_per_device > 1:
        console.print(f"Predicted for ranks that have a device each. Here {ranks_per_device} took turns on one.")
    if found.offload:
        console.print(_offloaded(found))


def _offloaded(found: Measured) -> Table:
    table = Table("rank", "what was put away", box=None, pad_edge=False)
    for heading in ("size", "steps", "out", "back", "longer by, predicted", "waited for"):
        table.add_column(heading, justify="right")
    for it in found.offload:
        times = (f"{1e3 * seconds:.1f} ms" for seconds in (it.out_s, it.back_s, it.unhidden_s, it.waited_s))
        table.add_row(str(it.rank), it.what, f"{it.size_bytes / 1e6:.1f} MB", str(it.trips), *times)
    return table


def _predicted(stage: StagePlan) -> Seconds:
    return Seconds(stage.forward_s, stage.backward_s, stage.gradients_s, stage.optimizer_s)


def _wait_s(plan: PlanFile, predicted: Seconds) -> float:
    return max(0.0, plan.step_s - predicted.total_s)


def _cells(plan: PlanFile, predicted_s: float, measured_s: float) -> tuple[str, str, str]:
    took = f"{1e3 * measured_s:.1f} ms"
    if not plan.step_s:
        return "", took, ""
    off = f"{100 * (predicted_s / measured_s - 1):+.0f} %" if measured_s > 0.01 * plan.step_s else ""
    return f"{1e3 * predicted_s:.1f} ms", took, off


LEAST_REPORT_S = 0.1  # between two reports of steps: a scheduler skips what comes faster
MOST_S = 1e9  # between two checkpoints
OF_JOB = "-"  # in place of a file: the plan of the job that the process is of
VARIABLE = "LONGSHORE_PLAN"  # has that plan
NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def main(arguments: Sequence[str] | None = None, ring: MakeRing | None = None) -> int:
    """Carry out one process's part of a plan; return the exit status.

    Args:
        arguments: In place of the command line's.
        ring: Makes the ring of which this process is a member, None if it is of none.
    """
    given = _parsed(arguments)
    try:
        plan = _plan_of(given.plan)
        _use_own_gpu()
        if given.save is not None:
            _make(given.save)
        if ring is not None:
            train_in_ring(plan, given, script_of(given.model, given.seed), ring, _say)
            return 0
        _check_environment(plan)
        _train(plan, given)
    except (BuildError, LongshoreError) as error:
        print(f"longshore.stage: {in_one_line(str(error))}", file=sys.stderr, flush=True)  # noqa: T201
        return 2
    return 0


def _use_own_gpu() -> None:
    """Let `cuda` mean the GPU of this process to a script: it may see those of all ranks on its node."""
    local = int(os.environ.get("LOCAL_RANK") or 0)
    if 0 < local < torch.cuda.device_count():  # the first is what it means anyway, and CUDA may not be needed
        torch.cuda.set_device(local)


def _make(folder: Path) -> None:
    """Make the folder for the weights: at the end of a training it would be too late to find that it cannot be.

    Raises:
        InputError: If it cannot be made, or nothing can be written there.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder} is no folder: {error.strerror}", "name another one", field="--save") from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise InputError(f"nothing can be written to {folder}", "name another folder", field="--save")


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m longshore.stage", description="Carry out one process's part of a plan."
    )
    parser.add_argument("plan", help="plan of `longshore plan find --out`; - for that of the job")
    parser.add_argument("model", help="FILE.py:FUNCTION, as for `longshore plan find`")
    parser.add_argument("--steps", type=_count, default=20, help="iterations (20)")
    parser.add_argument(
        "--schedule", choices=[it.value for it in Schedule], help="1f1b, or gpipe for few micro-batches"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the initial weights (0)")
    parser.add_argument("--save", type=Path, help="folder for the weights of each stage, stage-0.pt and so on")
    parser.add_argument(
        "--checkpoints",
        type=Path,
        help="folder for checkpoints, on storage that all nodes share; training goes on from the newest",
    )
    parser.add_argument("--checkpoint-s", type=_seconds, default=600.0, help="seconds between two checkpoints (600)")
    parser.add_argument("--json", type=Path, help="file for losses and measured times")
    parser.add_argument(
        "--offload",
        type=Offload,
        choices=list(Offload),
        default=Offload.never,
        help="put state away while nothing needs it: auto, while that takes longer than both copies; "
        "one-copy, longer than one; never (the default)",
    )
    parser.add_argument(
        "--offload-folder", type=Path, default=Path(tempfile.gettempdir()), help="for what is put away, without GPUs"
    )
    parser.add_argument(
        "--ranks-per-device",
        type=int,
        default=1,
        help="so many neighbours take turns on a device of their node: one computes while others wait or sum (1)",
    )
    return parser.parse_args(arguments)


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 11 and int(text)):
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of 1 or more")
    return int(text)


def _seconds(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0.0 <= found <= MOST_S:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds from 0 to {MOST_S:g}")
    return found


def _plan_of(name: str) -> PlanFile:
    if name != OF_JOB:
        return read_plan(Path(name))
    if VARIABLE not in os.environ:
        raise InputError(f"{VARIABLE} is not set", "submit a job with a plan, or name a file", field="PLAN")
    return plan_in(os.environ[VARIABLE], VARIABLE)


def _check_environment(plan: PlanFile) -> None:
    absent = [name for name in NEEDED if name not in os.environ]
    if absent:
        fix = "start it with `longshore plan run`, or as a job of so many ranks"
        raise InputError(f"{absent[0]} is not set", fix, field="environment")
    if int(os.environ["WORLD_SIZE"]) != plan.ranks:
        raise InputError(
            f"there are {os.environ['WORLD_SIZE']} processes, and the plan is for {plan.ranks}",
            f"start {plan.ranks}", field="WORLD_SIZE",
        )  # fmt: skip


def _train(plan: PlanFile, given: argparse.Namespace) -> None:
    script = script_of(given.model, given.seed)
    dist.init_process_group("gloo")
    try:
        seat = take_seat(plan)
        assert seat is not None  # there are as many processes as the plan has ranks
        member = _member(plan, given, script, seat)
        if member.has_loss and not script.has_data:
            _say("the file has no function data(first, samples): the example batch is trained on again and again")
        times = RankTimes(seat.stage, [], [], [], [])
        _take_steps(plan, given, member, seat, times)
        times.offload.extend(member.close())
        if given.save is not None and seat.replica == 0:
            torch.save(member.state(), given.save / f"stage-{seat.stage}.pt")
        if times.step_s:
            _tell(plan, times, given)
        elif given.json is not None and dist.get_rank() == 0:
            _say(f"no step was left to take, so nothing was measured and {given.json} is not written")
    finally:
        dist.destroy_process_group()


def _member(plan: PlanFile, given: argparse.Namespace, script: Script, seat: Seat) -> Member:
    """Return this process's side of the training, as the options have it."""
    if given.schedule and plan.pipeline == 1:
        raise InputError("passes through a whole model have one order", "leave it out", field="--schedule")
    schedule = Schedule(given.schedule) if given.schedule else schedule_of(plan.micro_batches, plan.pipeline)
    member = Member(plan, script, schedule, seat)
    if given.offload is not Offload.never:
        cores = len(os.sched_getaffinity(0))
        here = int(os.environ.get("LOCAL_WORLD_SIZE", plan.ranks))
        member.offload(Wish(given.offload, given.offload_folder, has_own_core=cores >= 2 * here), _say)
    if given.ranks_per_device > 1:
        member.share(_turn(given.ranks_per_device))
    return member


def _take_steps(plan: PlanFile, given: argparse.Namespace, member: Member, seat: Seat, times: RankTimes) -> None:
    """Take the steps that are left, behind the last checkpoint if there is one."""
    reports, every = Steps(), _steps_between_reports(plan)
    first = resume(given.checkpoints, plan, seat, member.go_on_from)
    if first and dist.get_rank() == 0:
        _say(f"a checkpoint has {first} of {given.steps} steps")
    saves = _never
    if given.checkpoints is not None:
        steps = range(first, given.steps)
        saves = Checkpoints(given.checkpoints, given.checkpoint_s, steps, every, plan, seat, reports, _say).after
    loss: float | None = None
    dist.barrier()
    for step in range(first, given.steps):
        if step % every == 0:
            reports.begin(step, computed_s=_computed_s(times, every), loss=loss, away_bytes=member.away_bytes)
        began_s = time.perf_counter()
        mean, seconds = member.step(step, partial(saves, step, member.training_state))
        times.step_s.append(time.perf_counter() - began_s)
        times.seconds.append(seconds)
        if member.has_loss:
            loss = mean
            times.losses.append(loss)
            _say(f"step {step + 1} of {given.steps}: loss {loss:.6f}, {times.step_s[-1]:.3f} s")
    reports.done(loss=loss)


def _never(step: int, state: Callable[[], Mapping[str, Any]]) -> None:
    """Write no checkpoint."""


def _turn(ranks_per_device: int) -> Turn:
    """Return this process's side of the device that it shares; the first of those that do starts its arbiter."""
    rank = dist.get_rank()
    local = int(os.environ.get("LOCAL_RANK", rank))
    job = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    return Turn(job, local // ranks_per_device, rank, starts=local % ranks_per_device == 0)


def _steps_between_reports(plan: PlanFile) -> int:
    return max(1, ceil(LEAST_REPORT_S / plan.step_s)) if plan.step_s else 1


def _computed_s(times: RankTimes, steps: int) -> float | None:
    """Return how long one of the last steps computed; the sum of gradients is left out, as replicas wait there."""
    last = times.seconds[-steps:]
    return sum(it.total_s - it.gradients_s for it in last) / len(last) if last else None


def _tell(plan: PlanFile, times: RankTimes, given: argparse.Namespace) -> None:
    """Let the first process say what all have measured."""
    every: list[RankTimes | None] | None = [None] * plan.ranks if dist.get_rank() == 0 else None
    dist.gather_object(times, every)
    if every is None:
        return
    found = measured([it for it in every if it is not None], plan.pipeline)
    if given.json is not None:
        given.json.write_text(found.model_dump_json(indent=2) + "\n", encoding="utf-8")
    console = Console(emoji=False, width=None if sys.stdout.isatty() else 100)
    print_comparison(console, plan, found, given.ranks_per_device)


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201  # the output of a training
