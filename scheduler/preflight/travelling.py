"""Checks that travel with a job: a wrapper that checks its rank's GPU, then all ranks together, then runs the command.

It needs nothing installed on the node but what the job has: `python -m longshore.preflight -- python train.py`.

Source: SPEC C8.
"""

import argparse
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from ...cluster.files.errors import BackendError, InputError, LongshoreError
from ..model.job_spec import ALL_ATTACHMENTS
from .catalogue import chosen_checks
from .check import Check, Result, Stage
from .context import Chosen, Group, Place
from .readers.gpu_reader import Gpu, GpuLostError
from .readers.nvml import open_nvml
from .readers.shown import shown_gpus
from .report import Report
from .runner import Step, compared, results_of, run_lists
from .warm.messages import Order
from .warm.process import WARM_S, LocalNode
from .workload import Workload

NOT_FIT = 3  # exit status
AGAIN = 75  # EX_TEMPFAIL of sysexits.h: the scheduler tries the job again
TOGETHER_S = 120.0  # ranks load PyTorch before they meet, each in its own time
MOST_RANKS = 1_000_000


class Rank(NamedTuple):
    """A process of a job, as its environment tells."""

    rank: int
    ranks: int
    gpu: int  # on the node
    node: str
    address: str
    port: int
    name: str  # of the attempt


def main(arguments: Sequence[str] | None = None) -> None:
    """Check, and become the command if all is well.

    Raises:
        SystemExit: With 3 if a check has not passed, or 75 if that is asked for; with 2 for wrong usage.
    """
    parser = argparse.ArgumentParser(prog="python -m longshore.preflight", description=__doc__.partition("\n")[0])
    parser.add_argument("--level", type=int, choices=(0, 1), default=1, help="0 looks at the state alone")
    parser.add_argument("--dtype", choices=("fp32", "bf16", "fp16"), default="fp32", help="that the job computes in")
    parser.add_argument("--backend", choices=("gloo", "nccl"), default="gloo", help="of its collectives")
    parser.add_argument(
        "--attachments", nargs="+", choices=ALL_ATTACHMENTS, default=ALL_ATTACHMENTS, help="what the job uses of a node"
    )
    parser.add_argument("--slots", action="store_true", help="slots stand for GPUs here")
    parser.add_argument(
        "--references", type=Path, help="folder of stored references; kept for this job alone if left out"
    )
    parser.add_argument(
        "--again",
        action="store_true",
        help=f"end with {AGAIN} if a check does not pass: try the job again",
    )
    parser.add_argument("command", nargs="+", help="what to run then, behind --")
    given = parser.parse_args(arguments)
    try:
        workload = Workload(dtype=given.dtype, backend=given.backend, attachments=tuple(given.attachments))
        rank = rank_of(os.environ, () if given.slots else _gpus_here())
        report = check_rank(rank, workload, given.level, given.references, slots=given.slots)
    except LongshoreError as error:
        parser.exit(2, f"longshore: {error}\n")
    if not report.passed:
        parser.exit(AGAIN if given.again else NOT_FIT, "".join(f"longshore: {line}\n" for line in report.diagnostics()))
    try:
        os.execvp(given.command[0], given.command)
    except OSError as error:
        parser.exit(127, f"longshore: {given.command[0]} cannot be run: {error.strerror}\n")


def wrapped(command: Sequence[str], workload: Workload, *, slots: bool) -> tuple[str, ...]:
    """Return a command with the checks before it.

    Args:
        command: To run if they pass.
        workload: Of the job.
        slots: Whether slots stand for GPUs there.
    """
    of_job = ("--dtype", workload.dtype, "--backend", workload.backend)
    # Where the job runs there may be a Longshore that does not know this option.
    used = () if workload.attachments == ALL_ATTACHMENTS else ("--attachments", *workload.attachments)
    options = ("--again", *of_job, *used, *(("--slots",) if slots else ()))
    return ("python", "-m", "longshore.preflight", *options, "--", *command)


def rank_of(environment: Mapping[str, str], gpus: Sequence[Gpu] = ()) -> Rank:
    """Return which rank of a job this is.

    Its GPU is that which CUDA shows it. Where it is shown several, or all, it is the one of its LOCAL_RANK.

    Args:
        environment: With what Longshore tells its jobs, or torchrun; a job of one rank needs nothing.
        gpus: All that NVML sees.

    Raises:
        InputError: If it makes no sense.
    """
    rank, ranks = _number(environment, "RANK", 0), _number(environment, "WORLD_SIZE", 1)
    local, port = _number(environment, "LOCAL_RANK", 0), _number(environment, "MASTER_PORT", 29500)
    told = [int(it) for it in environment.get("LONGSHORE_GPUS", "").split(",") if it.isdecimal()]
    # A container or a step of Slurm may number its GPUs anew. What CUDA shows holds there, too.
    shown = (shown_gpus(environment.get("CUDA_VISIBLE_DEVICES"), gpus) if gpus else None) or []
    mine, at = shown or told, 0 if len(shown) == 1 else local
    if rank >= ranks or local > rank:
        raise InputError(f"RANK {rank} and LOCAL_RANK {local} do not fit WORLD_SIZE {ranks}", field="environment")
    gpu = mine[at] if at < len(mine) else local
    node = environment.get("LONGSHORE_NODE", "") or os.uname().nodename
    name = environment.get("LONGSHORE_ATTEMPT", "job")
    return Rank(rank, ranks, gpu, node, environment.get("MASTER_ADDR", "127.0.0.1"), port, name)


def _gpus_here() -> Sequence[Gpu]:
    """Return the GPUs that NVML sees; none without a driver."""
    try:
        return open_nvml().gpus()
    except (BackendError, GpuLostError):
        return ()


def _number(environment: Mapping[str, str], name: str, otherwise: int) -> int:
    told = environment.get(name, "")
    if not told:
        return otherwise
    if not told.isascii() or not told.isdecimal() or len(told) > 9 or int(told) > MOST_RANKS:
        raise InputError(f"{told[:60]!r} is no whole number below {MOST_RANKS}", "unset it, or set it", field=name)
    return int(told)


def check_rank(rank: Rank, workload: Workload, level: int, references: Path | None, *, slots: bool) -> Report:
    """Run the checks of a rank by itself, and if they pass those of all ranks together.

    Raises:
        PluginError: If a registered check cannot be used.
        InputError: If the folder of references cannot be made.
    """
    with tempfile.TemporaryDirectory(prefix="longshore-preflight-") as own:
        member = f"{rank.node}/{rank.rank}"
        place = Place(member, (references or Path(own)).absolute(), slots, workload.dtype, warmed=(rank.gpu,))
        node = LocalNode(place)
        try:
            node.begin()
            node.is_warm(WARM_S)
            results = _run(chosen_checks(Stage.NODE, level, workload), rank, workload, level, node)
            if rank.ranks > 1 and Report((member,), tuple(results)).passed:
                results += _run(chosen_checks(Stage.GROUP, level, workload), rank, workload, level, node)
            return Report((member,), tuple(results))
        finally:
            node.close()


def _run(checks: Sequence[Check], rank: Rank, workload: Workload, level: int, node: LocalNode) -> list[Result]:
    steps = [_step(at, check, rank, workload, level, node.name) for at, check in enumerate(checks, start=1)]
    return results_of(compared(run_lists({node.name: steps}, {node.name: node})))


def _step(number: int, check: Check, rank: Rank, workload: Workload, level: int, member: str) -> Step:
    together = check.stage is Stage.GROUP
    limit_s = TOGETHER_S if together else check.limit_at(level)
    group = None
    if together:
        # Ranks need names that all of them know; what stands for another rank here is never shown.
        members = tuple(member if at == rank.rank else f"rank {at}" for at in range(rank.ranks))
        store = f"tcp://{rank.address}:{rank.port}"
        group = Group(f"{rank.name}-{check.name}", members, (1,) * rank.ranks, store, _own_address(rank))
    chosen = Chosen((rank.gpu,), (member,), level, limit_s)
    return Step(check, Order(number=number, check=check.name, chosen=chosen, workload=workload, group=group), limit_s)


def _own_address(rank: Rank) -> str:
    """Return the address of this machine by which it reaches the first rank."""
    import socket

    if rank.address in ("127.0.0.1", "localhost"):
        return "127.0.0.1"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((rank.address, rank.port))  # nothing is sent
        return str(probe.getsockname()[0])
