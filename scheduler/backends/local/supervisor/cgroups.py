"""A control group (version 2) for the processes of an attempt, where this user may make one.

Whatever a process does to its session, its parent or its environment, what it starts is born into its group.

The supervisor uses it: standard library only.
"""

import errno
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from ....files.processes import read_file

_GONE = (errno.ENOENT, errno.ENODEV)  # the second: it went while its file was open


def confine(attempt: str, pids: Iterable[int]) -> str:
    """Move processes into a control group of their own, below that of this process.

    Args:
        attempt: Name that the group is known by.
        pids: The processes, which have started none.

    Returns:
        Path of the group, "" where there can be none: then nothing has happened.
    """
    try:
        path = Path(_own_group()) / f"longshore-{attempt}-{os.urandom(4).hex()}"
        path.mkdir()
    except OSError:
        return ""
    try:
        (path / "cgroup.kill").stat()  # Linux 5.14 and later
        for pid in pids:
            with suppress(ProcessLookupError):
                (path / "cgroup.procs").write_text(str(pid))
    except OSError:
        remove(str(path))
        return ""
    return str(path)


def kill_group(path: str) -> None:
    """Kill all processes of a group at once, those of groups inside it too.

    Raises:
        OSError: If that is not allowed.
    """
    try:
        file = os.open(f"{path}/cgroup.kill", os.O_WRONLY | os.O_CLOEXEC)  # which makes no file where there is none
        try:
            os.write(file, b"1")
        finally:
            os.close(file)
    except OSError as error:
        if error.errno not in _GONE:
            raise


def is_populated(path: str) -> bool:
    """Say whether a process lives in a group, or in one inside it; a group that is gone had none.

    Raises:
        OSError: If that cannot be told.
    """
    try:
        return b"populated 0" not in read_file(f"{path}/cgroup.events")[0].splitlines()
    except OSError as error:
        if error.errno in _GONE:
            return False
        raise


def remove(path: str) -> None:
    """Remove a group in which no process is left, with those that were made inside it."""
    with suppress(OSError):  # It costs next to nothing where it stays.
        for folder, _, _ in os.walk(path, topdown=False):
            Path(folder).rmdir()


def _own_group() -> str:
    """Return the path of the group that this process is in.

    Raises:
        OSError: If it has none that can be seen.
    """
    lines = os.fsdecode(read_file("/proc/self/cgroup")[0]).splitlines()
    own = next((line.removeprefix("0::") for line in lines if line.startswith("0::")), "")
    for mount in os.fsdecode(read_file("/proc/self/mountinfo")[0]).splitlines():
        fields, _, kind = mount.partition(" - ")
        root, point = fields.split()[3:5]
        root = root.rstrip("/")
        if kind.startswith("cgroup2 ") and own.startswith(f"{root}/"):
            return point + own.removeprefix(root).rstrip("/")
    raise FileNotFoundError("no control group of version 2 is mounted")
