"""Processes of an attempt that has no supervisor: found by their traces, and killed. Standard library only."""

import os
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ....cluster.files.durable import open_folder
from ....cluster.files.processes import Process, environment, kill, living
from . import ranks
from .ranks import is_log

_KILL_PAUSE_S = 0.02


class Traces(NamedTuple):
    """How an attempt's processes are recognised."""

    attempt: str  # in the environment of each, as LONGSHORE_ATTEMPT
    folder: int  # descriptor of its folder
    session: int  # of its supervisor, and so of its ranks' groups
    groups: Mapping[int, int]  # group of each rank, and the start of the rank that leads it; none after a restart
    cgroup: str = ""  # path of their control group, "" for none


def left_of(traces: Traces) -> list[Process]:
    """Return the living processes of an attempt: by groups, environment and output, and the descendants of those."""
    processes, logs = living(), _logs_in(traces.folder)
    found = {
        process.pid
        for process in processes
        if _is_of_group(process, traces) or _names_attempt(process, traces) or _writes_to(process, logs)
    }
    before = 0
    while before != len(found):
        before = len(found)
        found |= {process.pid for process in processes if process.parent in found}
    return [process for process in processes if process.pid in found]


def kill_all(traces: Traces, within_s: float) -> bool:
    """Kill what is left of an attempt, and return whether nothing is.

    Args:
        traces: How its processes are recognised.
        within_s: How long to try.

    Returns:
        Whether the last read of their control group, and of all processes, found none of them.

    Raises:
        OSError: If their control group cannot be read.
    """
    until_s = time.monotonic() + within_s
    while True:
        is_populated = _is_populated(traces.cgroup)
        left = left_of(traces)
        if not (is_populated or left):
            ranks.remove(traces.cgroup)
            return True
        if time.monotonic() > until_s:
            return False
        for process in left:
            kill(process)
        time.sleep(_KILL_PAUSE_S)


def _is_populated(cgroup: str) -> bool:
    """Return whether a process lives in a control group, after killing all that are in it."""
    if not cgroup:
        return False
    ranks.kill_group(cgroup)
    return ranks.is_populated(cgroup)


def _is_of_group(process: Process, traces: Traces) -> bool:
    # Once the group is empty its number may be reused, but not in the same session by a process as old.
    led_since = traces.groups.get(process.group)
    return led_since is not None and process.session == traces.session and process.start_ticks >= led_since


def _logs_in(folder: int) -> set[tuple[int, int]]:
    """Return the identity of each log in an attempt's folder: device and inode."""
    found = set()
    for name in filter(is_log, os.listdir(folder)):
        with suppress(OSError):
            seen = os.stat(name, dir_fd=folder, follow_symlinks=False)
            found.add((seen.st_dev, seen.st_ino))
    return found


def _writes_to(process: Process, logs: Collection[tuple[int, int]]) -> bool:
    if process.uid != os.getuid():
        return False
    for descriptor in (1, 2):
        with suppress(OSError):
            seen = Path(f"/proc/{process.pid}/fd/{descriptor}").stat()
            if (seen.st_dev, seen.st_ino) in logs:
                return True
    return False


def _names_attempt(process: Process, traces: Traces) -> bool:
    if process.uid != os.getuid():
        return False
    found = environment(process, b"LONGSHORE_ATTEMPT", b"LONGSHORE_PROGRESS")
    if found.get(b"LONGSHORE_ATTEMPT") != traces.attempt.encode():
        return False
    path = os.fsdecode(found.get(b"LONGSHORE_PROGRESS", b""))
    return not _is_elsewhere(path.rpartition("/")[0], traces.folder)


def _is_elsewhere(path: str, folder: int) -> bool:
    """Return whether a folder exists and is another one: of an attempt of the same name under another scheduler."""
    try:
        other = open_folder(path)
    except OSError:
        return False
    try:
        return not os.path.sameopenfile(other, folder)
    finally:
        os.close(other)
