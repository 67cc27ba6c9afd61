"""Starts the ranks of a plan on this machine, and those that measure it.

Source: SPEC P1.
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from math import inf
from multiprocessing.connection import wait
from pathlib import Path

from ...cluster.files.errors import InputError
from ...cluster.files.processes import free_port
from ...cluster.files.signals import unwound_by_signals
from ..hardware import HostProfile
from .ranks import completed_path

RANKS_MODULE = "longshore.planner.execution.ranks"
REPORT_POLL_S = 0.05
GONE_S = 5.0  # until killed processes have exited
OTHERS_S = 2.0  # until other ranks end, once one has failed: their failures may be its effect
RANK_PREFIX = re.compile(r"^(\[rank\d+\]: ?)+")  # of PyTorch, before each line of a traceback
ERROR_LINE = re.compile(r"^[\w.]+(Error|Exception|Interrupt|Exit)\b")


def launch_ranks(
    ranks: int, arguments: Sequence[str], *, module: str = "longshore.stage", pipelines: bool = False
) -> None:
    """Run a module in N processes of one process group, and wait for them; they share our standard output.

    Args:
        ranks: Number of processes.
        arguments: Of each.
        module: To run.
        pipelines: Whether the ranks have stages, whose library is loaded once for all of them.

    Raises:
        InputError: If one of them fails; the others are killed then.
    """
    with unwound_by_signals(), tempfile.TemporaryDirectory(prefix="longshore-ranks-") as folder:
        errors = [Path(folder) / f"{rank}.err" for rank in range(ranks)]
        with _Ranks(ranks, Path(folder), [module, *arguments], pipelines=pipelines) as started:
            failed = _wait_for_failed_ranks(started)
        if failed:
            raise InputError(*_problem_and_fix(failed, started.statuses[failed[0]], errors))
        if started.broke is not None:
            raise InputError(f"the process that starts the ranks {started.broke}", "check that `import torch` works")


def measure_host(ranks: int) -> HostProfile:
    """Return the profile of this machine with N ranks, measured in processes of their own.

    Args:
        ranks: Processes that plans may have; 2 cores do not make 4 of them as fast as 2.

    Raises:
        InputError: If a process fails.
    """
    with tempfile.TemporaryDirectory(prefix="longshore-host-") as folder:
        path = Path(folder) / "host.json"
        launch_ranks(ranks, [str(path)], module="longshore.planner.measuring_worker")
        return HostProfile.model_validate_json(path.read_text(encoding="utf-8"))


class _Ranks:
    """The processes of a plan, which `ranks.py` starts; at the end of the context all of them are killed."""

    def __init__(self, ranks: int, folder: Path, line: Sequence[str], *, pipelines: bool) -> None:
        self.pids: dict[int, int] = {}
        self.statuses: dict[int, int] = {}
        self.broke: str | None = None  # how the process that starts the ranks ended, if before them
        self._ranks, self._left, self._folder, self._errors = ranks, b"", folder, folder / "ranks.err"
        port = free_port()
        self._reports, writes = os.pipe()
        given = {
            "--launcher": os.getpid(), "--reports": writes, "--ranks": ranks, "--port": port, "--errors": folder,
        }  # fmt: skip
        words = [str(part) for name, value in given.items() for part in (name, value)]
        path = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        started = [sys.executable, "-m", RANKS_MODULE, *words, *(["--pipelines"] if pipelines else []), *line]
        try:
            with self._errors.open("wb") as errors:
                self._parent = subprocess.Popen(
                    started, env=path, stdin=subprocess.DEVNULL, stderr=errors, start_new_session=True,
                    pass_fds=[writes],
                )  # fmt: skip
        except BaseException:
            os.close(self._reports)
            raise
        finally:
            os.close(writes)

    def __enter__(self) -> "_Ranks":
        return self

    def __exit__(self, *_: object) -> None:
        for pid in self.pids.values():
            _kill_group(pid)  # with all that the user's code has started
        if len(self.pids) == self._ranks:
            with suppress(subprocess.TimeoutExpired):
                self._parent.wait(GONE_S)  # once all of them have exited
        _kill_group(self._parent.pid)
        self._parent.wait()
        os.close(self._reports)

    @property
    def failed(self) -> list[int]:
        """Ranks that have ended before their work was done, whatever their status, in order of time."""
        return [
            rank for rank, status in self.statuses.items() if status or not completed_path(self._folder, rank).exists()
        ]

    def poll(self, wait_s: float) -> bool:
        """Wait some seconds for reports, and read them; return whether more can follow."""
        if not wait([self._reports], wait_s):
            return True
        received = os.read(self._reports, 1 << 16)
        *lines, self._left = (self._left + received).split(b"\n")
        for line in lines:
            rank, what, value = line.split()
            (self.pids if what == b"pid" else self.statuses)[int(rank)] = int(value)
        if not received and len(self.statuses) < self._ranks:
            wrote = [*_stderr_lines(self._errors), "nothing"][-2:]
            self.broke = f"ended with status {self._parent.wait()} and wrote: {wrote[0]}"
        return bool(received)


def _kill_group(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def _wait_for_failed_ranks(started: _Ranks) -> list[int]:
    """Wait until all ranks have ended, or one has failed; return those that failed, in order of time."""
    failed, until_s, can_report = list[int](), inf, True
    while can_report and time.monotonic() < until_s:
        can_report = started.poll(REPORT_POLL_S)
        failed += [rank for rank in started.failed if rank not in failed]
        if failed and until_s == inf:
            until_s = time.monotonic() + OTHERS_S
    return failed


def _problem_and_fix(failed: Sequence[int], status: int, errors: Sequence[Path]) -> tuple[str, str]:
    """Return the problem and what to do: as a rank reports it, else from the first that failed."""
    texts = [line for rank in failed for line in _stderr_lines(errors[rank])]
    own = [line for line in texts if line.startswith("longshore.stage: ")]
    if own:
        problem, _, fix = own[-1].removeprefix("longshore.stage: ").rpartition("; ")
        return (problem, fix) if problem else (fix, "")
    lines = _stderr_lines(errors[failed[0]])
    shown = [line for line in lines if ERROR_LINE.match(line)] or lines or ["nothing"]
    early = "" if status else ", before its work was done,"
    return (
        f"rank {failed[0]} ended with status {status}{early} and wrote: {shown[-1]}",
        "check that the model trains in one process",
    )


def _stderr_lines(stderr_file: Path) -> list[str]:
    """Return what a rank wrote to standard error, if it did."""
    text = stderr_file.read_text(errors="replace") if stderr_file.exists() else ""
    return [RANK_PREFIX.sub("", line) for line in text.splitlines()]
