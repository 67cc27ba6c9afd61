"""Who holds a lease: a process, named so that whoever finds the lease on the same machine can see whether it lives."""

import os
import re
import socket
from pathlib import Path

from .backends.local.processes import Identity, boot_id, find, is_alive

_FORM = re.compile(r"^(?P<pid>\d+)@\S+ start (?P<start>\d+) boot (?P<boot>\S+) in (?P<space>\S+)$")


def this_process() -> str:
    """Return the name of this process."""
    process = find(os.getpid())
    start_ticks = 0 if process is None else process.start_ticks
    return f"{os.getpid()}@{socket.gethostname()} start {start_ticks} boot {boot_id()} in {_pid_space()}"


def is_proven_dead(owner: str) -> bool:
    """Say whether a process of this machine is gone; False for one that cannot be seen from here."""
    named = _FORM.match(owner)
    if named is None or named["boot"] != boot_id() or named["space"] != _pid_space():
        return False
    return not is_alive(Identity(int(named["pid"]), int(named["start"]), named["boot"]), boot_id())


def _pid_space() -> str:
    """Return what pids count in: a container has its own on a machine that others see too."""
    return str(Path("/proc/self/ns/pid").readlink())
