"""Checks that travel with a job: `python -m longshore.preflight -- python train.py` (docs/preflight.md).

Checks that travel with a job: a wrapper that checks its rank's GPU, then all ranks together, then runs the command.

It needs nothing installed on the node but what the job has: `python -m longshore.preflight -- python train.py`.

Source: SPEC C8.
"""

import argparse
import json
import os
import select
import shutil
import signal
import struct
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Self

from ..cluster.files.errors import BackendError, InputError, LongshoreError
from ..cluster.files.processes import ending_with
from .check import Check, Report, Result, Stage, chosen_checks, limit_of
from .checked_job import ALL_ATTACHMENTS, CheckedJob
from .context import Chosen, Group, NodeSetup
from .readers import Gpu, GpuLostError, open_nvml, shown_gpus
from .round import Step, compared, results_of, run_lists
from .warm import WARM_S, LocalNode
from .warm_worker import Order

SAME_S = 1.0  # within which all processes of a job get a signal that goes to all of them
_REPORT = struct.Struct("<id")  # a signal, and when it came


class Witness:
    """A process beside this one, which reports the signals that it gets.

    A second SIGTERM means "at once" to many programs. So nothing is to hand on to a command what that has got already:
    shells and supervisors signal the group of a job, and Slurm all its processes. Who stops a container signals its
    first process alone.

    Args:
        numbers: The signals that it looks for; it ends with this process.
    """

    def __init__(self, numbers: Sequence[signal.Signals]) -> None:
        self._reads, writes = os.pipe()
        self._reports: list[tuple[int, float]] = []
        own = os.getpid()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
        try:
            self._pid = os.fork()
            if not self._pid:
                _watch(own, writes, numbers)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.close(writes)

    def saw(self, number: int) -> bool:
        """Say whether it has got a signal, too, that this process got just now; wait for that if need be."""
        began_s = time.monotonic()
        self._reports = [it for it in self._reports if it[1] > began_s - SAME_S]
        while True:
            for report in self._reports:
                if report[0] == number:
                    self._reports.remove(report)
                    return True
            left_s = began_s + SAME_S - time.monotonic()
            if left_s <= 0.0 or not select.select([self._reads], [], [], left_s)[0]:
                return False
            if not (came := os.read(self._reads, 64 * _REPORT.size)):
                return False  # it was killed
            self._reports += [it for it in _REPORT.iter_unpack(came) if it[1] > began_s - SAME_S]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(self._pid, 0)


def _watch(parent: int, writes: int, numbers: Sequence[signal.Signals]) -> None:
    """Report each signal, until the parent is gone."""
    try:
        ending_with(parent)()
        while True:
            os.write(writes, _REPORT.pack(signal.sigwait(numbers), time.monotonic()))
    finally:
        os._exit(0)  # whatever happened: this is no second copy of the parent


SCRATCH = "LONGSHORE_SCRATCH"  # variable that names a job's own scratch folder
NOT_FIT = 3  # exit status
AGAIN = 75  # EX_TEMPFAIL of sysexits.h: the scheduler tries the job again
TOGETHER_S = 120.0  # ranks load PyTorch before they meet, each in its own time
MOST_RANKS = 1_000_000
FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


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
    parser.add_argument("--link-bytes-per-s", type=float, default=0.0, help="promised between nodes; 0.8 of it passes")
    parser.add_argument("--sample", help="a command of two steps of the job, as a list of JSON; ours if left out")
    parser.add_argument("--sample-limit", type=float, default=60.0, help="seconds for the sample")
    parser.add_argument("--gpu-clock", type=int, default=0, help="MHz of the GPU while the command runs")
    parser.add_argument("--gpu-power", type=float, default=0.0, help="most W of the GPU while the command runs")
    parser.add_argument("--scratch", type=Path, help="folder in which the rank has one of its own, removed after it")
    parser.add_argument("command", nargs="+", help="what to run then, behind --")
    given = parser.parse_args(arguments)
    try:
        workload = _workload(given)
        rank = rank_of(os.environ, () if given.slots else _gpus_here())
        report = check_rank(rank, workload, given.level, given.references, slots=given.slots)
    except LongshoreError as error:
        parser.exit(2, f"longshore: {error}\n")
    if not report.passed:
        parser.exit(AGAIN if given.again else NOT_FIT, "".join(f"longshore: {line}\n" for line in report.diagnostics()))
    try:
        if not (given.gpu_clock or given.gpu_power or given.scratch):
            os.execvp(given.command[0], given.command)
        status = _run_within(given.command, rank, given.scratch, slots=given.slots)
    except OSError as error:
        parser.exit(127, f"longshore: {given.command[0]} cannot be run: {error.strerror}\n")
    if status < 0:  # as the command ended, so does this process
        if -status != signal.SIGKILL:  # nobody may handle that one
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    raise SystemExit(status)


def _workload(given: argparse.Namespace) -> CheckedJob:
    """Return what was told of the job.

    Raises:
        InputError: If it makes no sense.
    """
    try:
        sample = tuple(json.loads(given.sample)) if given.sample else ()
        return CheckedJob(
            dtype=given.dtype, backend=given.backend, attachments=tuple(given.attachments), sample=sample,
            sample_limit_s=given.sample_limit, sample_folder=str(Path.cwd()) if sample else "",
            environment=tuple(os.environ.items()) if sample else (), link_bytes_per_s=given.link_bytes_per_s,
            clock_mhz=given.gpu_clock, power_w=given.gpu_power,
        )  # fmt: skip
    except (ValueError, TypeError) as error:
        raise InputError("the sample or a number cannot be used", "see --help", field="options") from error


def _run_within(command: Sequence[str], rank: Rank, scratch: Path | None, *, slots: bool) -> int:
    """Run a command to its end, with a scratch folder of its own, and take back what was set; return its status.

    A signal that the command has not got goes to it, too. What kills this process leaves folder and settings as they
    are.

    Raises:
        OSError: If it cannot be run, or the folder not be made.
    """
    own = None if scratch is None else scratch.absolute() / f"{rank.name}-{rank.rank}"
    environment = dict(os.environ)
    try:
        if own is not None:
            own.mkdir(parents=True, exist_ok=True, mode=0o700)
            environment[SCRATCH] = str(own)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # or the system would tell no status
        with Witness(FORWARDED) as witness:
            child = subprocess.Popen(command, env=environment)

            def hand_on(number: int, _: object) -> None:
                with suppress(ProcessLookupError, PermissionError):  # it has ended; it is another user's
                    if os.getpgid(child.pid) != os.getpgrp() or not witness.saw(number):
                        child.send_signal(number)

            for number in FORWARDED:
                signal.signal(number, hand_on)
            return child.wait()
    finally:
        if own is not None:
            shutil.rmtree(own, ignore_errors=True)
        if not slots:
            _reset(rank.gpu)


def _reset(gpu: int) -> None:
    """Let a GPU be as it is by default, if this process may say so."""
    try:
        open_nvml().reset_clocks(gpu)
    except (BackendError, GpuLostError):
        return


def wrapped(
    command: Sequence[str], workload: CheckedJob, *, slots: bool, scratch: Path | None = None
) -> tuple[str, ...]:
    """Return a command with the checks before it.

    Args:
        command: To run if they pass.
        workload: Of the job.
        slots: Whether slots stand for GPUs there.
        scratch: Folder there in which each rank has one of its own; None for none.
    """
    of_job = ("--dtype", workload.dtype, "--backend", workload.backend)
    # Where the job runs there may be a Longshore that does not know this option.
    used = () if workload.attachments == ALL_ATTACHMENTS else ("--attachments", *workload.attachments)
    more = {
        "--link-bytes-per-s": workload.link_bytes_per_s, "--gpu-clock": workload.clock_mhz,
        "--gpu-power": workload.power_w, "--scratch": scratch or "",
    }  # fmt: skip
    if workload.sample:
        more |= {"--sample": json.dumps(workload.sample), "--sample-limit": workload.sample_limit_s}
    told = [word for name, value in more.items() if value for word in (name, str(value))]
    options = ("--again", *of_job, *used, *told, *(("--slots",) if slots else ()))
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


def check_rank(rank: Rank, workload: CheckedJob, level: int, references: Path | None, *, slots: bool) -> Report:
    """Run the checks of a rank by itself, and if they pass those of all ranks together.

    Raises:
        PluginError: If a registered check cannot be used.
        InputError: If the folder of references cannot be made.
    """
    with tempfile.TemporaryDirectory(prefix="longshore-preflight-") as own:
        member = f"{rank.node}/{rank.rank}"
        place = NodeSetup(member, (references or Path(own)).absolute(), slots, workload.dtype, warmed=(rank.gpu,))
        node = LocalNode(place)
        try:
            node.begin()
            node.is_warm(WARM_S)
            results = _run(chosen_checks(Stage.NODE, level, workload), rank, workload, level, node)
            for stage in (Stage.GROUP, Stage.READY):
                if (stage is Stage.READY or rank.ranks > 1) and Report((member,), tuple(results)).passed:
                    results += _run(chosen_checks(stage, level, workload), rank, workload, level, node)
            return Report((member,), tuple(results))
        finally:
            node.close()


def _run(checks: Sequence[Check], rank: Rank, workload: CheckedJob, level: int, node: LocalNode) -> list[Result]:
    steps = [_step(at, check, rank, workload, level, node.name) for at, check in enumerate(checks, start=1)]
    return results_of(compared(run_lists({node.name: steps}, {node.name: node})))


def _step(number: int, check: Check, rank: Rank, workload: CheckedJob, level: int, member: str) -> Step:
    together = check.stage is Stage.GROUP
    limit_s = TOGETHER_S if together else limit_of(check, level, workload)
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
