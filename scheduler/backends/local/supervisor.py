"""The process that runs one attempt and writes down how it ended, also if the scheduler ends first.

Standard library only, and one thread. It gets the attempt's folder, which holds `spec.json`, and writes there

    lock          held while it or its guard lives
    started.json  their processes; an attempt that has this never starts again
    ranks.json    the processes of its ranks, before the first of them runs its program
    ends.json     how ranks ended, while others run
    exit.json     how all ranks ended: the only proof of success
    rank-N.log    their output
"""

import fcntl
import os
from typing import TYPE_CHECKING

from ....cluster.files.durable import is_there, open_folder, write_whole

if TYPE_CHECKING:
    from ....cluster.files.processes import Process

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
        _run_and_exit(folder, path)
    return 0


def _run_and_exit(folder: int, path: str) -> None:
    # Not at the top: the launcher waits for what is above, and these imports take as long again.
    from .supervision import run_guarded

    try:
        run_guarded(lambda guard: _supervise_with_log(folder, path, guard))
    except BaseException:  # Every exit is the same: the code that forked this process must not continue in it.
        _log_error(folder)
    finally:
        os._exit(0)


def _supervise_with_log(folder: int, path: str, guard: "Process | None") -> int:
    from .supervision import supervise

    try:
        supervise(folder, path, guard)
    except BaseException:
        _log_error(folder)
    return 0


def _log_error(folder: int) -> None:
    import traceback

    write_whole(folder, "supervisor.log", traceback.format_exc().encode())
