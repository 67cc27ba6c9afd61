"""All processes of a plan on this machine.

Source: SPEC P1.
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from math import inf
from pathlib import Path
from types import FrameType

from ...cluster.files.errors import InputError
from ...cluster.files.free_port import free_port

# The system ends a process whose launcher ends, in whatever way (1 is PR_SET_PDEATHSIG); it may have ended before.
_RUN = """\
import ctypes, os, runpy, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
if os.getppid() != int(sys.argv[1]):
    os._exit(1)
sys.argv[:] = sys.argv[2:]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""
LOOK_S = 0.05
OTHERS_S = 2.0  # for others to end once one has failed: that may only be what follows
PREFIX = re.compile(r"^(\[rank\d+\]: ?)+")  # of PyTorch, before each line of a traceback
ERROR = re.compile(r"^[\w.]+(Error|Exception|Interrupt|Exit)\b")


def launch(ranks: int, arguments: Sequence[str], *, module: str = "longshore.stage") -> None:
    """Run a module in so many processes, which find one another, and wait for them; their output is ours.

    Args:
        ranks: How many.
        arguments: Of each.
        module: What to run.

    Raises:
        InputError: If one of them fails; the others are ended then.
    """
    with _tidy_at_sigterm(), tempfile.TemporaryDirectory(prefix="longshore-ranks-") as folder:
        said = [Path(folder) / f"{rank}.err" for rank in range(ranks)]
        processes = list[subprocess.Popen[bytes]]()
        try:
            port = free_port()
            line = [sys.executable, "-c", _RUN, str(os.getpid()), module, *arguments]
            for rank in range(ranks):
                processes.append(_started(rank, ranks, port, line, said[rank]))
            failed = _failed(processes)
        finally:
            for process in processes:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        if failed:
            raise InputError(*_problem(failed, processes, said))


@contextmanager
def _tidy_at_sigterm() -> Iterator[None]:
    """Let SIGTERM end this process as Ctrl-C does, so that ranks and files do not stay behind."""

    def end(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _started(rank: int, ranks: int, port: int, line: Sequence[str], said: Path) -> "subprocess.Popen[bytes]":
    environment = {
        **os.environ, "RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    with said.open("wb") as errors:
        return subprocess.Popen(line, env=environment, stdin=subprocess.DEVNULL, stderr=errors, start_new_session=True)


def _failed(processes: Sequence["subprocess.Popen[bytes]"]) -> list[int]:
    """Wait until all have ended well, or one has not; return those that have not, the first one first."""
    failed, until_s = list[int](), inf
    while time.monotonic() < until_s:
        statuses = [process.poll() for process in processes]
        failed += [rank for rank, status in enumerate(statuses) if status and rank not in failed]
        if all(status is not None for status in statuses):
            break
        if failed and until_s == inf:
            until_s = time.monotonic() + OTHERS_S
        time.sleep(LOOK_S)
    return failed


def _problem(
    failed: Sequence[int], processes: Sequence["subprocess.Popen[bytes]"], said: Sequence[Path]
) -> tuple[str, str]:
    """Return what is wrong, and what to do: by who knows it, else by the first that failed."""
    texts = [PREFIX.sub("", line) for rank in failed for line in said[rank].read_text(errors="replace").splitlines()]
    own = [line for line in texts if line.startswith("longshore.stage: ")]
    if own:
        problem, _, fix = own[-1].removeprefix("longshore.stage: ").rpartition("; ")
        return (problem, fix) if problem else (fix, "")
    rank, status = failed[0], processes[failed[0]].returncode
    lines = [PREFIX.sub("", line) for line in said[rank].read_text(errors="replace").splitlines()]
    told = [line for line in lines if ERROR.match(line)] or lines or ["nothing"]
    return f"rank {rank} ended with status {status} and said: {told[-1]}", "see that the model trains in one process"
