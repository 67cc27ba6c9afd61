"""Starts Longshore's own programs beside a job: nothing in the job's folder takes the place of what they import.

Standard library only.
"""

import asyncio
import ctypes
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).absolute().parents[4]  # the folder that holds the package
# Without the folder that the program runs in, which Python puts first.
BEGIN = (
    "import sys; sys.path = [it for it in sys.path if it]; sys.path.append(sys.argv.pop(1)); "
    "from importlib import import_module; import_module(sys.argv.pop(1)).main()"
)
ALONE = ("-I", "-S", "-X", "utf8")  # for what needs the standard library alone
_PR_SET_PDEATHSIG, _NOT_STARTED = 1, 127
_libc = ctypes.CDLL(None, use_errno=True)


async def start_tool(
    module: str, *arguments: str, flags: Sequence[str] = (), outlives: bool = False
) -> asyncio.subprocess.Process:
    """Start a program of Longshore.

    Args:
        module: That has its `main`.
        arguments: That the program is given.
        flags: For the interpreter.
        outlives: Whether it lives on when this process is killed.

    Raises:
        OSError: If it cannot be started.
        subprocess.SubprocessError: The same.
    """
    return await asyncio.create_subprocess_exec(
        sys.executable, *flags, "-c", BEGIN, str(ROOT), module, *arguments, stdin=asyncio.subprocess.DEVNULL,
        start_new_session=True, preexec_fn=None if outlives else ending_with(os.getpid()),
    )  # fmt: skip


def ending_with(parent: int) -> Callable[[], None]:
    """Return what a child calls before its program begins: it is killed then when its parent ends, however it does."""

    def prepare() -> None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it had ended before that
            os._exit(_NOT_STARTED)

    return prepare
