"""Who holds a lease: a process, named so that whoever finds the lease on the same machine can see whether it lives."""

import os
import re
import socket
from pathlib import Path

from .processes import boot_id, find, shows_this_process

_FORM = re.compile(r"^(?P<pid>\d+)@\S+ start (?P<start>\d+) boot (?P<boot>\S+) in (?P<space>\S+)$")


def this_process() -> str:
    """Return the name of this process."""
    process = find(os.getpid()) if shows_this_process() else None
    if process is None:
        return f"{os.getpid()}@{socket.gethostname()}"  # /proc tells of others than it: nobody can see whether it lives
    return f"{os.getpid()}@{socket.gethostname()} start {process.start_ticks} boot {boot_id()} in {_pid_space()}"


def is_proven_dead(owner: str) -> bool:
    """Say whether a process of this machine is gone; False for one that cannot be seen from here."""
    named = _FORM.match(owner)
    if named is None or named["boot"] != boot_id() or named["space"] != _pid_space():
        return False
    process = find(int(named["pid"]))
    if process is not None:
        return process.start_ticks != int(named["start"]) or not process.alive
    try:
        os.kill(int(named["pid"]), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False  # it is there, though /proc does not show it


def _pid_space() -> str:
    """Return what pids count in: a container has its own on a machine that others see too."""
    return str(Path("/proc/self/ns/pid").readlink())
