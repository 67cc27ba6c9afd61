"""Starts all processes of a plan on this machine, from the plan's file.

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
from typing import TYPE_CHECKING

from ...cluster.files.errors import InputError
from ...cluster.files.processes import free_port
from ...cluster.files.signals import unwound_by_signals

if TYPE_CHECKING:
    pass

RANKS = "longshore.planner.execution.ranks"
LOOK_S = 0.05
GONE_S = 5.0  # for what was killed to be gone
OTHERS_S = 2.0  # for others to end once one has failed: that may only be what follows
PREFIX = re.compile(r"^(\[rank\d+\]: ?)+")  # of PyTorch, before each line of a traceback
ERROR = re.compile(r"^[\w.]+(Error|Exception|Interrupt|Exit)\b")


def launch(ranks: int, arguments: Sequence[str], *, module: str = "longshore.stage", pipelines: bool = False) -> None:
    """Run a module in so many processes, which find one another, and wait for them; their output is ours.

    Args:
        ranks: How many.
        arguments: Of each.
        module: What to run.
        pipelines: Whether the ranks have stages: what these need is loaded once for all of them.

    Raises:
        InputError: If one of them fails; the others are ended then.
    """
    with unwound_by_signals(), tempfile.TemporaryDirectory(prefix="longshore-ranks-") as folder:
        errors = [Path(folder) / f"{rank}.err" for rank in range(ranks)]
        with _Ranks(ranks, Path(folder), [module, *arguments], pipelines=pipelines) as started:
            failed = _failed(started)
        if failed:
            raise InputError(*_problem(failed, started.statuses[failed[0]], errors))
        if started.broke is not None:
            raise InputError(f"the process that starts the ranks {started.broke}", "see that `import torch` works")


class _Ranks:
    """The processes of a plan, which `ranks.py` starts; where the context ends, all of them are killed.

    Args:
        ranks: How many.
        folder: For their standard errors.
        line: Module to run, and its arguments.
        pipelines: Whether they have stages.
    """

    def __init__(self, ranks: int, folder: Path, line: Sequence[str], *, pipelines: bool) -> None:
        self.pids: dict[int, int] = {}
        self.statuses: dict[int, int] = {}
        self.broke: str | None = None  # how the process ended that starts the ranks, if that was before them
        self._ranks, self._left, self._errors = ranks, b"", folder / "ranks.err"
        port = free_port()
        self._reports, writes = os.pipe()
        given = {
            "--launcher": os.getpid(), "--reports": writes, "--ranks": ranks, "--port": port, "--errors": folder,
        }  # fmt: skip
        words = [str(part) for name, value in given.items() for part in (name, value)]
        path = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        started = [sys.executable, "-m", RANKS, *words, *(["--pipelines"] if pipelines else []), *line]
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
                self._parent.wait(GONE_S)  # once all of them are gone
        _kill_group(self._parent.pid)
        self._parent.wait()
        os.close(self._reports)

    def look(self, wait_s: float) -> bool:
        """Wait some seconds for reports, and take them; return whether there can be more."""
        if not wait([self._reports], wait_s):
            return True
        came = os.read(self._reports, 1 << 16)
        *lines, self._left = (self._left + came).split(b"\n")
        for line in lines:
            rank, what, value = line.split()
            (self.pids if what == b"pid" else self.statuses)[int(rank)] = int(value)
        if not came and len(self.statuses) < self._ranks:
            wrote = [*_lines_of(self._errors), "nothing"][-2:]
            self.broke = f"ended with status {self._parent.wait()} and wrote: {wrote[0]}"
        return bool(came)


def _kill_group(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def _failed(started: _Ranks) -> list[int]:
    """Wait until all ranks have ended well, or one has not; return those that have not, the first one first."""
    failed, until_s, goes_on = list[int](), inf, True
    while goes_on and time.monotonic() < until_s:
        goes_on = started.look(LOOK_S)
        failed += [rank for rank, status in started.statuses.items() if status and rank not in failed]
        if failed and until_s == inf:
            until_s = time.monotonic() + OTHERS_S
    return failed


def _problem(failed: Sequence[int], status: int, errors: Sequence[Path]) -> tuple[str, str]:
    """Return what is wrong, and what to do: by who knows it, else by the first that failed."""
    texts = [line for rank in failed for line in _lines_of(errors[rank])]
    own = [line for line in texts if line.startswith("longshore.stage: ")]
    if own:
        problem, _, fix = own[-1].removeprefix("longshore.stage: ").rpartition("; ")
        return (problem, fix) if problem else (fix, "")
    lines = _lines_of(errors[failed[0]])
    shown = [line for line in lines if ERROR.match(line)] or lines or ["nothing"]
    return (
        f"rank {failed[0]} ended with status {status} and said: {shown[-1]}",
        "see that the model trains in one process",
    )


def _lines_of(errors: Path) -> list[str]:
    """Return what a rank wrote to standard error; it may have ended before that."""
    text = errors.read_text(errors="replace") if errors.exists() else ""
    return [PREFIX.sub("", line) for line in text.splitlines()]
