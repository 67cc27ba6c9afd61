"""What to do about processes that lose their parent: they come to an ancestor that asks for them.

The supervisor and its guard use it: standard library only.
"""

import os
import signal
from collections.abc import Callable
from contextlib import suppress

from ....files.processes import children
from .rank import libc

_PR_SET_CHILD_SUBREAPER = 36
_LOOK_AGAIN_S = 0.5  # for what does not die at once


def adopt_orphans() -> None:
    """Let this process learn of the ends of its children and of all they leave behind, and of who asks it to end."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # Ignored, it would hide how the ranks end.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def kill_children() -> None:
    """Kill all children, and theirs, which come to this process then; return when none is left.

    A process that cannot die, as it waits for a disk or a GPU, is waited for: it may still hold the GPU.
    """
    while True:
        try:
            while os.waitpid(-1, os.WNOHANG) != (0, 0):
                pass
        except ChildProcessError:
            return
        for child in children(os.getpid()):
            send(os.kill, child.pid, signal.SIGKILL)
        signal.sigtimedwait({signal.SIGCHLD}, _LOOK_AGAIN_S)


def send(call: Callable[[int, int], None], to: int, number: int) -> None:
    """Send a signal with `os.kill` or `os.killpg`, if there is still something to send it to."""
    with suppress(ProcessLookupError, PermissionError):  # Gone, or another user's now: it is waited for.
        call(to, number)
