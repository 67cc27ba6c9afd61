"""The process that runs one attempt and writes down how it ended, whatever becomes of the scheduler.

Standard library only, and one thread. It is given the attempt's folder, which holds `spec.json`, and leaves there

    lock          held while it or its guard lives
    started.json  who they are; an attempt that has this never starts again
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

TWIN, STARTED_BEFORE = 75, 76  # exit codes of a start that is one too many


def main(path: str) -> int:
    """Take over an attempt and return at once; a daemon goes on with it.

    Args:
        path: The attempt's folder, absolute.

    Returns:
        0 if it was taken over, TWIN if a supervisor lives, STARTED_BEFORE if there was one.

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
        _live(folder, path)
    return 0


def _live(folder: int, path: str) -> None:
    # Not at the top: the launcher waits for what is above, and these imports take as long again.
    from .guard import guarded

    try:
        guarded(lambda guard: _supervise(folder, path, guard))
    except BaseException:  # The way out is the same for all: whoever forked this process must not go on in it.
        _tell_why(folder)
    finally:
        os._exit(0)


def _supervise(folder: int, path: str, guard: "Process | None") -> int:
    from .supervision import supervise

    try:
        supervise(folder, path, guard)
    except BaseException:
        _tell_why(folder)
    return 0


def _tell_why(folder: int) -> None:
    import traceback

    write_whole(folder, "supervisor.log", traceback.format_exc().encode())
