"""The process that runs one attempt and writes down how it ended, also if the scheduler ends first.

1. `main` locks the attempt's folder, forks the daemon and returns: the scheduler waits no longer.
2. The daemon is the guard: it forks the supervisor and kills what that leaves (`run_guarded` in supervision.py).
3. The supervisor writes the started marker, runs the ranks, and writes the exit marker (`supervise`, `run_ranks`).

Standard library only, and one thread. It gets the attempt's folder, which holds `spec.json`, and writes there

    lock          held while it or its guard lives
    started.json  their processes; an attempt that has this never starts again
    ranks.json    the processes of its ranks, before the first of them runs its program
    ends.json     how ranks ended, while others run
    exit.json     how all ranks ended: the only proof of success
    rank-N.log    their output
    supervisor.log  the traceback of an error in the guard or the supervisor
"""

import fcntl
import os
from collections.abc import Callable
from functools import partial
from typing import NoReturn

from ....cluster.files.durable import is_there, open_folder, write_whole

TWIN, STARTED_BEFORE = 75, 76  # exit codes of a second start


def main(path: str) -> int:
    """Start the supervisor of an attempt as a daemon, and return at once.

    Args:
        path: The attempt's folder, absolute.

    Returns:
        0 if it has started, TWIN if a supervisor lives, STARTED_BEFORE if there was one.

    Raises:
        OSError: If the folder cannot be used.
    """
    folder = open_folder(path)
    lock = os.open("lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return TWIN
    if is_there(folder, "started.json") or is_there(folder, "exit.json"):
        return STARTED_BEFORE
    if os.fork() == 0:
        log_error = partial(write_whole, folder, "supervisor.log")
        run_and_exit(partial(_run_daemon, folder, path, log_error), log_error)
    return 0


def _run_daemon(folder: int, path: str, log_error: Callable[[bytes], object]) -> int:
    # Not at the top: the launcher waits for what is above, and these imports take as long again.
    from .supervision import run_guarded, supervise

    return run_guarded(partial(supervise, folder, path), log_error)


def log_to_stderr(error: bytes) -> None:
    """Write a traceback to the standard error."""
    os.write(2, error)


def run_and_exit(run: Callable[[], int], log_error: Callable[[bytes], object] = log_to_stderr) -> NoReturn:
    """Run this process, just forked, to its end.

    Args:
        run: What it does; the return value is its exit code, 1 after an error.
        log_error: Called with the traceback of an error.
    """
    code = 1
    try:
        code = run()
    except BaseException:
        import traceback  # Only here: it takes as much time and memory as all the rest.

        log_error(traceback.format_exc().encode())
    finally:  # The code that forked this process must not continue in it.
        os._exit(code)
