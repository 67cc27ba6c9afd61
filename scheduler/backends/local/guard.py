"""The parent of a supervisor: if the supervisor is killed, its orphans become children of the guard, which kills them.

Standard library only, and little of it: each attempt has a guard.
"""

import os
import signal
from collections.abc import Callable
from typing import NoReturn

from ....cluster.files.processes import Process, find
from .ranks import adopt_orphans, kill_children, send

_SIGNAL_EXIT = 128  # plus the signal: exit code of a process that a signal ended, as in shells


def guarded(supervise: Callable[[Process | None], int]) -> int:
    """Run a supervisor as a child of this process, and return when it and all that it left are gone.

    Args:
        supervise: What the child does; its return value is the exit code. It gets this process as its guard.

    Returns:
        Exit code of the child.

    Raises:
        OSError: If there can be no further process.
    """
    adopt_orphans()
    guard = find(os.getpid())
    supervisor = os.fork()
    if supervisor == 0:
        _become(supervise, guard)
    code = _wait_for(supervisor)
    kill_children()
    return code


def _become(supervise: Callable[[Process | None], int], guard: Process | None) -> NoReturn:
    code = 1
    try:
        code = supervise(guard)
    except BaseException:
        import traceback  # Only here: it takes as much time and memory as all the rest.

        os.write(2, traceback.format_exc().encode())
    finally:  # A copy of the guard must not live on.
        os._exit(code)


def _wait_for(supervisor: int) -> int:
    """Return the exit code of a child; a SIGTERM of this process is passed on to it."""
    while True:
        pid, status = os.waitpid(supervisor, os.WNOHANG)
        if pid:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else _SIGNAL_EXIT - code
        woken = signal.sigwaitinfo({signal.SIGCHLD, signal.SIGTERM})
        if woken.si_signo == signal.SIGTERM:
            send(os.kill, supervisor, signal.SIGTERM)
