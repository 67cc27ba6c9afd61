"""The command of each process of a planned training: `python -m longshore.stage plan.json train.py:build`.

Processes find each other by RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, which all back ends set. Members of a ring
train the replicas of a data-parallel plan, and outlive each other (docs/failover.md).

Source: SPEC F8, P1, P3.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from math import ceil, nan
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated, NamedTuple, TypeVar

import torch
import torch.distributed as dist
from pydantic import BaseModel, BeforeValidator
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from ...cluster.files.errors import InputError, LongshoreError
from ...cluster.files.output_file import in_one_line
from ...cluster.model.training_plan import PlanFile
from ...reporting import Steps
from ..memory import OffloadMode
from ..offload.offloading import OffloadOptions, PartMeasured
from ..profile.building import BuildError
from ..schedule import Schedule, StageSeconds, default_schedule
from ..sharing import DeviceTurn
from .checkpoints import NAME_ANOTHER_FOLDER, Checkpoints, has_checkpoints_without_ring, job_folder_and_attempt, resume
from .cutting import Script, check_layers, load_script, model_arguments, refuse_exit, slice_samples, state_by_name
from .plan_file import parse_plan, read_plan
from .training import Seat, StageTrainer, take_seat

if TYPE_CHECKING:
    from ...ring import Ring

StepT = TypeVar("StepT")
Loss = Annotated[float, BeforeValidator(lambda value: nan if value is None else value)]
WARM_UP_STEPS = 1  # steps that are not counted: the first one connects ranks and allocates memory


class RankMeasurements(NamedTuple):
    """The measurements of one process."""

    stage: int
    step_s: list[float]  # of each step, from its start to that of the next
    seconds: list[StageSeconds]  # of each step
    losses: list[float]  # of each step, if it has them
    offload: list[PartMeasured]  # measurements of offloading


class StageMeasured(BaseModel, frozen=True, extra="forbid"):
    """Times of a stage in an iteration, in the median of steps and the mean of its replicas."""

    forward_s: float
    backward_s: float
    gradients_s: float
    optimizer_s: float
    wait_s: float  # the rest of the iteration: for other stages, and to send to them


class MeasuredTraining(BaseModel, frozen=True, extra="forbid"):
    """The measurements of a training."""

    step_s: float  # of an iteration, in the median
    stages: tuple[StageMeasured, ...]
    losses: tuple[Loss, ...]  # of each step, over all samples; null in the file if not a number
    offload: tuple[PartMeasured, ...] = ()  # of each rank


def combine_measurements(ranks: Sequence[RankMeasurements], stages: int) -> MeasuredTraining:
    """Combine the measurements of all processes, by stage."""
    # A step ends for all ranks with the slowest; medians, as other work may disturb some steps.
    step_s = max(median(_without_warm_up(rank.step_s)) for rank in ranks)
    return MeasuredTraining(
        step_s=step_s,
        stages=tuple(_stage_measured([rank for rank in ranks if rank.stage == k], step_s) for k in range(stages)),
        losses=next(tuple(rank.losses) for rank in ranks if rank.losses),
        offload=tuple(part for rank in ranks for part in rank.offload),
    )


def _stage_measured(replicas: Sequence[RankMeasurements], step_s: float) -> StageMeasured:
    columns = [
        [median(column) for column in zip(*_without_warm_up(replica.seconds), strict=True)] for replica in replicas
    ]
    spent = StageSeconds(*(sum(column) / len(replicas) for column in zip(*columns, strict=True)))
    return StageMeasured(**spent._asdict(), wait_s=max(0.0, step_s - spent.total_s))


def _without_warm_up(steps: Sequence[StepT]) -> Sequence[StepT]:
    return steps[WARM_UP_STEPS:] if len(steps) > WARM_UP_STEPS else steps


TIME_LABELS = {"forward_s": "forward", "backward_s": "backward", "gradients_s": "gradients", "optimizer_s": "optimizer"}


def print_comparison(console: Console, plan: PlanFile, found: MeasuredTraining, ranks_per_device: int = 1) -> None:
    """Print the times of an iteration, measured and, if there are any, predicted."""
    table = Table("stage", "layers", "what", box=None, pad_edge=False)
    for heading in ("predicted", "measured", "off"):
        table.add_column(heading, justify="right")
    for k, (stage, took) in enumerate(zip(plan.stages, found.stages, strict=True)):
        names = stage.layers[0] if len(stage.layers) == 1 else f"{stage.layers[0]} ... {stage.layers[-1]}"
        head = (str(k), names)
        for field, what in TIME_LABELS.items():
            predicted_s, measured_s = getattr(stage, field), getattr(took, field)
            if measured_s or predicted_s:
                table.add_row(*head, what, *_comparison_cells(plan, predicted_s, measured_s))
                head = ("", "")
        wait_s = max(0.0, plan.step_s - sum(getattr(stage, field) for field in TIME_LABELS))
        table.add_row(*head, "wait", *_comparison_cells(plan, wait_s, took.wait_s))
    table.add_row("all", f"{plan.ranks} ranks", "iteration", *_comparison_cells(plan, plan.step_s, found.step_s))
    console.print()
    console.print(table)
    if plan.step_s and ranks_per_device > 1:
        console.print(f"Predicted for ranks with a device each. Here {ranks_per_device} shared one.")
    if found.offload:
        console.print(_offload_table(found))


def _offload_table(found: MeasuredTraining) -> Table:
    table = Table("rank", "offloaded", box=None, pad_edge=False)
    for heading in ("size", "steps", "out", "back", "added, predicted", "waited for"):
        table.add_column(heading, justify="right")
    for part in found.offload:
        times = (f"{1e3 * seconds:.1f} ms" for seconds in (part.out_s, part.back_s, part.unhidden_s, part.waited_s))
        table.add_row(str(part.rank), part.what, f"{part.size_bytes / 1e6:.1f} MB", str(part.trips), *times)
    return table


def _comparison_cells(plan: PlanFile, predicted_s: float, measured_s: float) -> tuple[str, str, str]:
    took = f"{1e3 * measured_s:.1f} ms"
    if not plan.step_s:
        return "", took, ""
    off = f"{100 * (predicted_s / measured_s - 1):+.0f} %" if measured_s > 0.01 * plan.step_s else ""
    return f"{1e3 * predicted_s:.1f} ms", took, off


MakeRing = Callable[..., "Ring"]  # of a model, an optimizer and `checkpoints`; returns once this process has a seat


def train_in_ring(plan: PlanFile, given: argparse.Namespace, script: Script, make: MakeRing) -> None:
    """Train as a member of a ring.

    Raises:
        InputError: If the plan or the options do not work in a ring.
        BuildError: If the plan is of another model.
    """
    _check_ring_options(plan, given)
    model = script.made.model
    check_layers(model, [stage.layers for stage in plan.stages])
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = script.make_optimizer(trained)
    folder = None if given.checkpoints is None else job_folder_and_attempt(given.checkpoints)[0]
    if folder is not None and has_checkpoints_without_ring(folder):
        raise InputError("its checkpoints are of a training without a ring", NAME_ANOTHER_FOLDER, path=folder)
    taken_s: list[float] = []
    with make(model, optimizer, checkpoints=folder) as ring:
        if ring.seats != plan.data:
            raise InputError(f"the ring has {ring.seats} seats, and the plan is for {plan.data}", field="environment")
        saved_s = time.monotonic()
        for step in ring.steps(until=given.steps):
            began_s = time.monotonic()
            loss = torch.stack([_accumulate_shard_gradients(plan, script, step, shard) for shard in ring.shards]).mean()
            if not ring.step(loss=loss):
                continue
            now_s = time.monotonic()
            taken_s.append(now_s - began_s)
            if ring.seat == 0:
                _print_line(f"step {step + 1} of {given.steps}: loss of this replica {loss:.6f}, {taken_s[-1]:.3f} s")
            if folder is not None and (now_s - saved_s >= given.checkpoint_s or step + 1 == given.steps):
                _save_ring_checkpoint(ring, step)
                saved_s = now_s
        if ring.seat == 0:
            _finish_ring_training(plan, given, model, taken_s)


def _save_ring_checkpoint(ring: "Ring", step: int) -> None:
    try:
        ring.save()
    except (OSError, RuntimeError) as error:  # the latter is PyTorch's for a full disk
        problem = getattr(error, "strerror", None) or str(error).partition("\n")[0]
        _print_line(f"no checkpoint of step {step + 1}: {problem}; training continues")


def _check_ring_options(plan: PlanFile, given: argparse.Namespace) -> None:
    if not plan.is_replicated:
        fix = "use `failover: restart`, or plan with `failover: switch`"
        raise InputError("only the replicas of a data-parallel plan have seats of a ring", fix, field="PLAN")
    usual = {"offload": OffloadMode.never, "ranks_per_device": 1, "schedule": None, "json": None}
    given_option = next((name for name, value in usual.items() if getattr(given, name) != value), None)
    if given_option is not None:
        option = f"--{given_option.replace('_', '-')}"
        raise InputError("a ring does not have this option", "omit it, or use `failover: restart`", field=option)


@refuse_exit()
def _accumulate_shard_gradients(plan: PlanFile, script: Script, step: int, shard: int) -> Tensor:
    """Add the gradients of all micro-batches of a shard of the batch; return the mean loss."""
    each, size = plan.batch // plan.data, plan.micro_batch
    batch, target = script.samples(step * plan.batch + shard * each, each)
    losses = []
    for first in range(0, each, size):
        args, kwargs = model_arguments(slice_samples(batch, first, size))
        loss = script.loss_of(script.made.model(*args, **kwargs), slice_samples(target, first, size))
        torch.autograd.backward(loss / plan.micro_batches)
        losses.append(loss.detach())
    return torch.stack(losses).mean()


def _finish_ring_training(plan: PlanFile, given: argparse.Namespace, model: nn.Module, taken_s: list[float]) -> None:
    """Save the weights if requested, and compare the times with the prediction."""
    if given.save is not None:
        torch.save(state_by_name(model), given.save / "stage-0.pt")
    if taken_s:
        predicted = f"; predicted {plan.step_s:.3f} s" if plan.step_s else ""
        _print_line(f"a step took {median(taken_s):.3f} s in the median{predicted}")


LEAST_REPORT_S = 0.1  # between two reports of steps: a scheduler skips faster ones
MAX_CHECKPOINT_S = 1e9  # between two checkpoints
OF_JOB = "-"  # instead of a file: the plan of the process's job
PLAN_VARIABLE = "LONGSHORE_PLAN"  # has that plan
NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def main(arguments: Sequence[str] | None = None, ring: MakeRing | None = None) -> int:
    """Run one process of a planned training; return the exit status.

    Args:
        arguments: Instead of the command line.
        ring: Joins the ring of this process, None without a ring.
    """
    given = _parse_arguments(arguments)
    try:
        plan = _read_plan_of_file_or_job(given.plan)
        _use_own_gpu()
        if given.save is not None:
            _make_weights_folder(given.save)
        if ring is not None:
            train_in_ring(plan, given, load_script(given.model, given.seed), ring)
            return 0
        _check_environment(plan)
        _train(plan, given)
    except (BuildError, LongshoreError) as error:
        print(f"longshore.stage: {in_one_line(str(error))}", file=sys.stderr, flush=True)  # noqa: T201
        return 2
    return 0


def _use_own_gpu() -> None:
    """Make `cuda` the GPU of this process for a script, which may see the GPUs of all ranks on its node."""
    local = int(os.environ.get("LOCAL_RANK") or 0)
    if 0 < local < torch.cuda.device_count():  # the first is the default, and CUDA may not be needed
        torch.cuda.set_device(local)


def _make_weights_folder(folder: Path) -> None:
    """Make the folder for the weights now: the end of a training would be too late to find a problem.

    Raises:
        InputError: If it cannot be made, or nothing can be written there.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder} is not a folder: {error.strerror}", "name another one", field="--save") from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise InputError(f"nothing can be written to {folder}", "name another folder", field="--save")


def _parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m longshore.stage", description="Run one process of a planned training."
    )
    parser.add_argument("plan", help="plan of `longshore plan find --out`; - for that of the job")
    parser.add_argument("model", help="FILE.py:FUNCTION, as for `longshore plan find`")
    parser.add_argument("--steps", type=_parse_count, default=20, help="iterations (20)")
    parser.add_argument(
        "--schedule", choices=[schedule.value for schedule in Schedule], help="1f1b, or gpipe for few micro-batches"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the initial weights (0)")
    parser.add_argument("--save", type=Path, help="folder for the weights of each stage, stage-0.pt and so on")
    parser.add_argument(
        "--checkpoints",
        type=Path,
        help="folder for checkpoints, on storage that all nodes share; training resumes from the newest",
    )
    parser.add_argument(
        "--checkpoint-s", type=_parse_seconds, default=600.0, help="seconds between two checkpoints (600)"
    )
    parser.add_argument("--json", type=Path, help="file for losses and measured times")
    parser.add_argument(
        "--offload",
        type=OffloadMode,
        choices=list(OffloadMode),
        default=OffloadMode.never,
        help="offload state while it is idle: auto, if that is longer than both copies take; "
        "one-copy, longer than one takes; never (the default)",
    )
    parser.add_argument(
        "--offload-folder", type=Path, default=Path(tempfile.gettempdir()), help="for offloaded state, without GPUs"
    )
    parser.add_argument(
        "--ranks-per-device",
        type=int,
        default=1,
        help="neighbours that share a device of their node: one computes while others wait or sum (1)",
    )
    return parser.parse_args(arguments)


def _parse_count(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 11 and int(text)):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def _parse_seconds(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0.0 <= found <= MAX_CHECKPOINT_S:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from 0 to {MAX_CHECKPOINT_S:g}")
    return found


def _read_plan_of_file_or_job(name: str) -> PlanFile:
    if name != OF_JOB:
        return read_plan(Path(name))
    if PLAN_VARIABLE not in os.environ:
        raise InputError(f"{PLAN_VARIABLE} is not set", "submit a job with a plan, or name a file", field="PLAN")
    return parse_plan(os.environ[PLAN_VARIABLE], PLAN_VARIABLE)


def _check_environment(plan: PlanFile) -> None:
    absent = [name for name in NEEDED if name not in os.environ]
    if absent:
        fix = "start it with `longshore plan run`, or as a job with a plan"
        raise InputError(f"{absent[0]} is not set", fix, field="environment")
    if int(os.environ["WORLD_SIZE"]) != plan.ranks:
        raise InputError(
            f"there are {os.environ['WORLD_SIZE']} processes, and the plan is for {plan.ranks}",
            f"start {plan.ranks}", field="WORLD_SIZE",
        )  # fmt: skip


@refuse_exit()
def _train(plan: PlanFile, given: argparse.Namespace) -> None:
    script = load_script(given.model, given.seed)
    dist.init_process_group("gloo")
    try:
        seat = take_seat(plan)
        assert seat is not None  # there are as many processes as the plan has ranks
        member = _make_trainer(plan, given, script, seat)
        if member.has_loss and not script.has_data:
            _print_line("the file has no function data(first, samples): every step trains on the example batch")
        times = RankMeasurements(seat.stage, [], [], [], [])
        _train_steps(plan, given, member, seat, times)
        times.offload.extend(member.close())
        if given.save is not None and seat.replica == 0:
            torch.save(member.state_by_name(), given.save / f"stage-{seat.stage}.pt")
        if times.step_s:
            _report_measurements(plan, times, given)
        elif given.json is not None and dist.get_rank() == 0:
            _print_line(f"no step was left, so nothing was measured and {given.json} is not written")
    finally:
        dist.destroy_process_group()


def _make_trainer(plan: PlanFile, given: argparse.Namespace, script: Script, seat: Seat) -> StageTrainer:
    """Return this process's trainer, as the options configure it."""
    if given.schedule and plan.pipeline == 1:
        raise InputError("a model without a pipeline has no schedule", "omit it", field="--schedule")
    schedule = Schedule(given.schedule) if given.schedule else default_schedule(plan.micro_batches, plan.pipeline)
    member = StageTrainer(plan, script, schedule, seat)
    if given.offload is not OffloadMode.never:
        cores = len(os.sched_getaffinity(0))
        here = int(os.environ.get("LOCAL_WORLD_SIZE", plan.ranks))
        member.start_offloading(
            OffloadOptions(given.offload, given.offload_folder, has_own_core=cores >= 2 * here), _print_line
        )
    if given.ranks_per_device > 1:
        member.share_device(_connect_to_device(given.ranks_per_device))
    return member


def _train_steps(
    plan: PlanFile, given: argparse.Namespace, member: StageTrainer, seat: Seat, times: RankMeasurements
) -> None:
    """Take the remaining steps, after the last checkpoint if there is one."""
    reports, every = Steps(), max(1, ceil(LEAST_REPORT_S / plan.step_s)) if plan.step_s else 1
    first = resume(given.checkpoints, plan, seat, member.load_training_state)
    if first and dist.get_rank() == 0:
        _print_line(f"a checkpoint has {first} of {given.steps} steps")
    steps, checkpoints = range(first, given.steps), None
    if given.checkpoints is not None:
        checkpoints = Checkpoints(given.checkpoints, given.checkpoint_s, steps, every, plan, seat, reports, _print_line)
    loss: float | None = None
    dist.barrier()
    for step in steps:
        if step % every == 0:
            reports.begin(step, computed_s=_mean_compute_s(times, every), loss=loss, away_bytes=member.away_bytes)
        began_s = time.perf_counter()
        save = partial(checkpoints.write_if_due, step, member.training_state) if checkpoints is not None else None
        mean, seconds = member.step(step, save)
        times.step_s.append(time.perf_counter() - began_s)
        times.seconds.append(seconds)
        if member.has_loss:
            loss = mean
            times.losses.append(loss)
            _print_line(f"step {step + 1} of {given.steps}: loss {loss:.6f}, {times.step_s[-1]:.3f} s")
    reports.done(loss=loss)


def _connect_to_device(ranks_per_device: int) -> DeviceTurn:
    """Return this process's connection to its shared device; the first process on the device starts its arbiter."""
    rank = dist.get_rank()
    local = int(os.environ.get("LOCAL_RANK", rank))
    job = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    return DeviceTurn(job, local // ranks_per_device, rank, starts=local % ranks_per_device == 0)


def _mean_compute_s(times: RankMeasurements, steps: int) -> float | None:
    """Return the mean computing time of the last steps, without the sum of gradients, where replicas wait."""
    last = times.seconds[-steps:]
    return sum(seconds.total_s - seconds.gradients_s for seconds in last) / len(last) if last else None


def _report_measurements(plan: PlanFile, times: RankMeasurements, given: argparse.Namespace) -> None:
    """Collect all measurements in the first process, which prints them."""
    every: list[RankMeasurements | None] | None = [None] * plan.ranks if dist.get_rank() == 0 else None
    dist.gather_object(times, every)
    if every is None:
        return
    found = combine_measurements([rank for rank in every if rank is not None], plan.pipeline)
    if given.json is not None:
        given.json.write_text(found.model_dump_json(indent=2) + "\n", encoding="utf-8")
    console = Console(emoji=False, width=None if sys.stdout.isatty() else 100)
    print_comparison(console, plan, found, given.ranks_per_device)


def _print_line(text: str) -> None:
    print(text, flush=True)  # noqa: T201  # the output of a training
