"""Checks that travel with a job: `python -m longshore.preflight -- python train.py` (docs/preflight.md).

A wrapper checks its rank's GPU, then all ranks together, and then runs the command. It needs nothing on the node but
what the job has.

Source: SPEC C8.
"""

import argparse
import json
import os
import select
import signal
import struct
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Self

from ..cluster.files.errors import BackendError, InputError, LongshoreError, error_line
from ..cluster.files.processes import kill_with_parent_hook
from .check import (
    ALL_ATTACHMENTS,
    Check,
    CheckedJob,
    CheckResult,
    CheckStage,
    RoundReport,
    check_limit_s,
    chosen_checks,
    find_check,
    incomplete,
)
from .checks import power_limit_of, restore_gpu
from .context import CheckGroup, CheckScope, NodeSetup
from .readers import GpuInfo, GpuLostError, open_nvml, visible_gpus
from .removal import remove_tree
from .running import INSPECT_NODE, compare_nodes, results_of, run_lists
from .warm import WARM_S, LocalNode, end_fork_server
from .warm_worker import CheckRequest

SAME_S = 1.0  # within which all processes of a job get a signal that goes to all of them
_REPORT = struct.Struct("<id")  # a signal, and when it came


class SignalWitness:
    """A process beside this one, which reports the signals that it gets, and ends with this one.

    A second SIGTERM means "at once" to many programs, so a signal that the command has received already is not
    forwarded: shells and supervisors signal the group of a job, and Slurm all its processes. A container runtime
    signals only the first process.
    """

    def __init__(self, signals: Sequence[signal.Signals]) -> None:
        self._reads, writes = os.pipe()
        self._readable = select.poll()  # `select.select` refuses descriptors from 1024 on
        self._readable.register(self._reads, select.POLLIN)
        self._reports: list[tuple[int, float]] = []
        own = os.getpid()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
        try:
            self._pid = os.fork()
            if not self._pid:
                _report_signals(own, writes, signals)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.close(writes)

    def has_received(self, signal_number: int) -> bool:
        """Return whether it received a signal, too, that this process has just received; wait for that if necessary."""
        began_s = time.monotonic()
        self._reports = [report for report in self._reports if report[1] > began_s - SAME_S]
        while True:
            for report in self._reports:
                if report[0] == signal_number:
                    self._reports.remove(report)
                    return True
            left_s = began_s + SAME_S - time.monotonic()
            if left_s <= 0.0 or not self._readable.poll(1000.0 * left_s):
                return False
            if not (received := os.read(self._reads, 64 * _REPORT.size)):
                return False  # it was killed
            self._reports += [report for report in _REPORT.iter_unpack(received) if report[1] > began_s - SAME_S]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(self._pid, 0)


def _report_signals(parent: int, report_fd: int, signals: Sequence[signal.Signals]) -> None:
    """Report each signal, until the parent has exited."""
    try:
        kill_with_parent_hook(parent)()
        while True:
            os.write(report_fd, _REPORT.pack(signal.sigwait(signals), time.monotonic()))
    finally:
        os._exit(0)  # whatever happened: the parent's code must not run twice


SCRATCH = "LONGSHORE_SCRATCH"  # variable that names a job's own scratch folder
NOT_FIT = 3  # exit status
EX_TEMPFAIL = 75  # EX_TEMPFAIL of sysexits.h: the scheduler tries the job again
GROUP_LIMIT_S = 120.0  # ranks load PyTorch before they meet, each in its own time
RESOLVE_POLL_S = 1.0  # between two attempts to resolve the name of the first rank
MAX_JOB_RANKS = 1_000_000
FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


class JobRank(NamedTuple):
    """A process of a job, as its environment describes it."""

    rank: int
    ranks: int
    gpu: int  # on the node
    node: str
    address: str
    port: int
    name: str  # of the attempt


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the checks, and become the command if they pass.

    Raises:
        SystemExit: With 3 if a check has not passed, or 75 with `--again`; with 2 for wrong usage.
    """
    parser = argparse.ArgumentParser(prog="python -m longshore.preflight", description=__doc__.partition("\n")[0])
    parser.add_argument("--level", type=int, choices=(0, 1), default=1, help="0 checks the state only")
    parser.add_argument("--dtype", choices=("fp32", "bf16", "fp16"), default="fp32", help="that the job computes in")
    parser.add_argument("--backend", choices=("gloo", "nccl"), default="gloo", help="of its collectives")
    parser.add_argument(
        "--attachments", nargs="+", choices=ALL_ATTACHMENTS, default=ALL_ATTACHMENTS, help="what the job uses of a node"
    )
    parser.add_argument("--slots", action="store_true", help="slots stand for GPUs here")
    parser.add_argument("--references", type=Path, help="folder of stored references; temporary by default")
    parser.add_argument(
        "--again",
        action="store_true",
        help=f"end with {EX_TEMPFAIL} if a check does not pass: try the job again",
    )
    parser.add_argument("--link-bytes-per-s", type=float, default=0.0, help="promised between nodes; 0.8 of it passes")
    parser.add_argument("--sample", help="a command of two steps of the job, as a JSON list; ours by default")
    parser.add_argument("--sample-limit", type=float, default=60.0, help="seconds for the sample")
    parser.add_argument("--gpu-clock", type=int, default=0, help="MHz of the GPU while the command runs")
    parser.add_argument("--gpu-power", type=float, default=0.0, help="power limit of the GPU in W meanwhile")
    parser.add_argument("--scratch", type=Path, help="folder for a scratch folder of the rank, removed at the end")
    parser.add_argument("command", nargs="+", help="command to run after the checks, behind --")
    given = parser.parse_args(arguments)
    try:
        workload = _job_of_options(given)
        rank = rank_of_environment(os.environ, () if given.slots else _gpus_here())
        restore = _make_restore(rank.gpu, workload, slots=given.slots)
        report = check_rank(rank, workload, given.level, given.references, slots=given.slots)
    except LongshoreError as error:
        parser.exit(2, f"longshore: {error}\n")
    not_fit = EX_TEMPFAIL if given.again else NOT_FIT
    if not report.passed:
        parser.exit(not_fit, "".join(f"longshore: {line}\n" for line in report.diagnostics()))
    end_fork_server()
    try:
        scratch = None if given.scratch is None else _make_scratch(given.scratch, rank)
    except OSError as error:
        restore()
        parser.exit(not_fit, f"longshore: no scratch folder can be made in {given.scratch}: {error.strerror}\n")
    try:
        if not (given.gpu_clock or given.gpu_power or scratch):
            for number in (signal.SIGPIPE, signal.SIGXFSZ):  # which Python ignores: the command would, too
                signal.signal(number, signal.SIG_DFL)
            os.execvp(given.command[0], given.command)
        status = _run_command(given.command, scratch, restore)
    except OSError as error:
        parser.exit(127, f"longshore: {given.command[0]} cannot be run: {error.strerror}\n")
    if status < 0:  # as the command ended, so does this process
        if -status != signal.SIGKILL:  # it cannot be handled
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    raise SystemExit(status)


def _job_of_options(given: argparse.Namespace) -> CheckedJob:
    """Return the job that the options describe.

    Raises:
        InputError: If an option is invalid.
    """
    try:
        sample = tuple(json.loads(given.sample.encode())) if given.sample else ()
        job = CheckedJob(
            dtype=given.dtype, backend=given.backend, attachments=tuple(given.attachments), sample=sample,
            sample_limit_s=given.sample_limit, sample_folder="." if sample else "",
            link_bytes_per_s=given.link_bytes_per_s, clock_mhz=given.gpu_clock, power_w=given.gpu_power,
        )  # fmt: skip
        job.model_dump_json()  # as it is sent
    except (ValueError, TypeError) as error:
        raise InputError("the sample or a number cannot be used", "see --help", field="options") from error
    return job


def _make_scratch(folder: Path, rank: JobRank) -> Path:
    """Make a folder that only this user can enter, and that no other process has.

    Raises:
        OSError: If it cannot be made.
    """
    folder.mkdir(parents=True, exist_ok=True)
    name = rank.name.replace("/", "_")[:100]
    return Path(tempfile.mkdtemp(prefix=f"{name}-{rank.rank}-", dir=folder.absolute()))


def _run_command(command: Sequence[str], scratch: Path | None, restore: Callable[[], None]) -> int:
    """Run a command; remove its scratch folder, restore the settings of the GPU, and return the status.

    Signals that the command has not received are forwarded to it. If this process is killed, folder and settings stay.

    Raises:
        OSError: If it cannot be run.
    """
    environment = dict(os.environ) if scratch is None else {**os.environ, SCRATCH: str(scratch)}
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # or the system reports no status
        with SignalWitness(FORWARDED) as witness:
            child = subprocess.Popen(command, env=environment)

            def forward(number: int, _: object) -> None:
                with suppress(ProcessLookupError, PermissionError):  # it has ended, or is another user's
                    if os.getpgid(child.pid) != os.getpgrp() or not witness.has_received(number):
                        child.send_signal(number)

            for number in FORWARDED:
                signal.signal(number, forward)
            return child.wait()
    finally:
        restore()
        if scratch is not None:
            _remove_scratch(scratch)


def _remove_scratch(folder: Path) -> None:
    """Remove a folder; what stays is reported, and changes no status."""
    try:
        remove_tree(folder)
    except OSError as error:
        with suppress(OSError):
            os.write(2, f"longshore: {folder} is not removed: {error}\n".encode("utf-8", "surrogateescape"))


def _make_restore(gpu: int, workload: CheckedJob, *, slots: bool) -> Callable[[], None]:
    """Return what restores the settings of a GPU after the job, if this process may; called before they are set."""
    if slots or not (workload.clock_mhz or workload.power_w):
        return lambda: None
    try:
        reader = open_nvml()
        before_w = power_limit_of(reader, gpu)
    except (BackendError, GpuLostError):
        return lambda: None

    def restore() -> None:
        with suppress(GpuLostError):
            list(restore_gpu(reader, gpu, workload, before_w))

    return restore


def wrap_command(
    command: Sequence[str], workload: CheckedJob, *, slots: bool, scratch: Path | None = None
) -> tuple[str, ...]:
    """Return a command with the checks before it.

    Args:
        command: To run if the checks pass.
        workload: Of the job.
        slots: Whether slots stand for GPUs there.
        scratch: Folder there for a scratch folder of each rank; None for none.
    """
    of_job = ("--dtype", workload.dtype, "--backend", workload.backend)
    used = () if workload.attachments == ALL_ATTACHMENTS else ("--attachments", *workload.attachments)
    more = {
        "--link-bytes-per-s": workload.link_bytes_per_s, "--gpu-clock": workload.clock_mhz,
        "--gpu-power": workload.power_w, "--scratch": scratch or "",
    }  # fmt: skip
    if workload.sample:
        more |= {"--sample": json.dumps(workload.sample), "--sample-limit": workload.sample_limit_s}
    others = [word for name, value in more.items() if value for word in (name, str(value))]
    options = ("--again", *of_job, *used, *others, *(("--slots",) if slots else ()))
    return ("python", "-m", "longshore.preflight", *options, "--", *command)


def rank_of_environment(environment: Mapping[str, str], gpus: Sequence[GpuInfo] = ()) -> JobRank:
    """Return the rank of a job that this process is.

    Its GPU is the one that CUDA shows it. If CUDA shows several, or all, it is the one of its LOCAL_RANK.

    Args:
        environment: With the variables of Longshore or torchrun; a job of one rank needs none.
        gpus: All that NVML sees.

    Raises:
        InputError: If a variable is invalid.
    """
    rank, ranks = _read_number(environment, "RANK", 0), _read_number(environment, "WORLD_SIZE", 1)
    local, port = _read_number(environment, "LOCAL_RANK", 0), _read_number(environment, "MASTER_PORT", 29500)
    gpus_of_node = [int(gpu) for gpu in environment.get("LONGSHORE_GPUS", "").split(",") if gpu.isdecimal()]
    # A container or a Slurm step may renumber its GPUs. What CUDA shows is right there, too.
    shown = (visible_gpus(environment.get("CUDA_VISIBLE_DEVICES"), gpus) if gpus else None) or []
    mine, at = shown or gpus_of_node, 0 if len(shown) == 1 else local
    if rank >= ranks or local > rank:
        raise InputError(f"RANK {rank} and LOCAL_RANK {local} do not fit WORLD_SIZE {ranks}", field="environment")
    gpu = mine[at] if at < len(mine) else local
    node = environment.get("LONGSHORE_NODE", "") or os.uname().nodename
    name = environment.get("LONGSHORE_ATTEMPT", "job")
    return JobRank(rank, ranks, gpu, node, environment.get("MASTER_ADDR", "127.0.0.1"), port, name)


def _gpus_here() -> Sequence[GpuInfo]:
    """Return the GPUs that NVML sees; none without a driver."""
    try:
        return open_nvml().gpus()
    except (BackendError, GpuLostError):
        return ()


def _read_number(environment: Mapping[str, str], name: str, default: int) -> int:
    text = environment.get(name, "")
    if not text:
        return default
    if not text.isascii() or not text.isdecimal() or len(text) > 9 or int(text) > MAX_JOB_RANKS:
        raise InputError(f"{text[:60]!r} is no whole number below {MAX_JOB_RANKS}", "unset it, or set it", field=name)
    return int(text)


def check_rank(rank: JobRank, workload: CheckedJob, level: int, references: Path | None, *, slots: bool) -> RoundReport:
    """Run the checks of a rank by itself, then, if they pass, those of all ranks together.

    Raises:
        PluginError: If a registered check cannot be used.
        InputError: If the folder of references cannot be made.
    """
    with tempfile.TemporaryDirectory(prefix="longshore-preflight-") as own:
        member = f"{rank.node}/{rank.rank}"
        setup = NodeSetup(member, Path(os.path.realpath(references or own)), slots, workload.dtype, warmed=(rank.gpu,))
        node = LocalNode(setup)
        try:
            try:
                node.start()
            except (OSError, EOFError) as error:
                unstarted = incomplete(f"its process cannot be started: {error_line(error)}", INSPECT_NODE)
                found = results_of({member: [(find_check("response"), unstarted, 0.0)]})
                return RoundReport((member,), tuple(found))
            node.wait_until_warm(WARM_S)
            results = list[CheckResult]()
            for stage in (CheckStage.NODE, CheckStage.GROUP, CheckStage.LAST, CheckStage.READY):
                checks = chosen_checks(stage, level, workload)
                if checks and (stage is not CheckStage.GROUP or rank.ranks > 1):
                    results += _run_checks(checks, rank, workload, level, node)
                if not RoundReport((member,), tuple(results)).passed:
                    break
            return RoundReport((member,), tuple(results))
        finally:
            node.close()


def _run_checks(
    checks: Sequence[Check], rank: JobRank, workload: CheckedJob, level: int, node: LocalNode
) -> list[CheckResult]:
    """Run checks of one stage."""
    try:
        address = _own_address(rank) if checks[0].stage is CheckStage.GROUP else ""
    except (OSError, ValueError) as error:
        reason = f"{rank.address!r}, the address of the first rank, cannot be resolved: {error}"
        unresolved = incomplete(reason, "is MASTER_ADDR right, and its name known on this node?")
        return results_of({node.name: [(checks[0], unresolved, 0.0)]})
    requests = [
        _make_request(at, check, rank, workload, level, node.name, address) for at, check in enumerate(checks, start=1)
    ]
    return results_of(compare_nodes(run_lists({node.name: requests}, {node.name: node})))


def _make_request(
    number: int, check: Check, rank: JobRank, workload: CheckedJob, level: int, member: str, address: str
) -> CheckRequest:
    group, limit_s = None, check_limit_s(check, level, workload)
    if check.stage is CheckStage.GROUP:
        # All ranks use the same number of members; the names of the others are never shown.
        members = tuple(member if at == rank.rank else f"rank {at}" for at in range(rank.ranks))
        store = f"tcp://{rank.address}:{rank.port}"
        group = CheckGroup(f"{rank.name}-{check.name}", members, (1,) * rank.ranks, store, address, rank.node)
        limit_s = GROUP_LIMIT_S
    chosen = CheckScope((rank.gpu,), (member,), level, limit_s)
    return CheckRequest(number=number, check=check.name, chosen=chosen, workload=workload, group=group)


def _own_address(rank: JobRank) -> str:
    """Return the address of this machine on its route to the first rank, whose name may be published with a delay.

    Raises:
        OSError: If the name is still unknown after the limit of a group.
        ValueError: If it is no name.
    """
    until_s = time.monotonic() + GROUP_LIMIT_S
    while True:
        try:
            return _address_on_route(rank.address, rank.port)
        except OSError:
            if time.monotonic() > until_s:
                raise
        time.sleep(RESOLVE_POLL_S)


def _address_on_route(host: str, port: int) -> str:
    """Return the address of this machine on its route to another one.

    Raises:
        OSError: If the name is unknown, or there is no route.
        ValueError: If it is no name.
    """
    import socket

    last = OSError(f"{host} has no address")
    found = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
    # The same family on all nodes: an older one, which every node has, first.
    for family, kind, protocol, _, address in sorted(found, key=lambda one: one[0] != socket.AF_INET):
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.connect(address)  # nothing is sent
                return str(probe.getsockname()[0])
        except OSError as error:
            last = error
    raise last
