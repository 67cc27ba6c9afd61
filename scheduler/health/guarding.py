"""The guard of a node: kills the processes of all attempts there once the lease of its agent has run out.

It is a process of its own beside the agent, so that a lease runs out also where the agent was killed or is stuck. Both
share the lease in a file that the agent renews. The file has the end of the lease by the machine's clock since its
start, which cannot be set and which also runs while the machine sleeps.

Source: docs/nodes.md, Leases.
"""

import os
import re
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ...cluster.files.processes import Process, boot_id, environment, kill, living

LEASE_POLL_S = 0.2  # between two reads of the lease
ATTEMPT_NAME = re.compile(rb"ls-[0-9a-z]{1,40}-[0-9]{1,9}")  # any process may name something else
LEASE_FOLDER = Path("/run/longshore")


class Lease(NamedTuple):
    """The content of the file."""

    boot: str  # boot id under which it holds
    until_s: float  # by `since_start_s`
    token: int  # of the scheduler that granted it
    guard: int  # process that guards it: an older one ends


def since_start_s() -> float:
    """Return the seconds since the machine's start, those included in which it slept."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def is_lease_valid(lease: Lease | None, boot: str, now_s: float) -> bool:
    """Return whether a lease lets processes live.

    Args:
        lease: The content of the file; None if it cannot be read.
        boot: Boot id of the machine.
        now_s: As `since_start_s` has it.
    """
    return lease is not None and lease.boot == boot and now_s < lease.until_s


def read_lease(file: Path) -> Lease | None:
    """Return the lease in a file, None if it cannot be read."""
    try:
        boot, until_s, token, guard = file.read_text(encoding="ascii").split()
        return Lease(boot, float(until_s), int(token), int(guard))
    except (OSError, ValueError):
        return None


def write_lease(file: Path, lease: Lease) -> None:
    """Write a lease to a file, whole or not at all.

    Raises:
        OSError: If that cannot be done; then the last lease runs out.
    """
    draft = file.with_suffix(f".{os.getpid()}")
    draft.write_text(f"{lease.boot} {lease.until_s!r} {lease.token} {lease.guard}\n", encoding="ascii")
    draft.replace(file)


def processes_by_attempt() -> dict[str, list[Process]]:
    """Return the living processes of each attempt on this machine: by their environment, and all they started."""
    processes = living()
    owner = {process.pid: attempt for process in processes if (attempt := _attempt_of(process))}
    before = -1
    while before != len(owner):
        before = len(owner)
        owner |= {
            process.pid: owner[process.parent]
            for process in processes
            if process.parent in owner and process.pid not in owner
        }
    found: dict[str, list[Process]] = {}
    for process in processes:
        if process.pid in owner:
            found.setdefault(owner[process.pid], []).append(process)
    return found


def _attempt_of(process: Process) -> str:
    name = environment(process, b"LONGSHORE_ATTEMPT").get(b"LONGSHORE_ATTEMPT", b"")
    return name.decode("ascii") if ATTEMPT_NAME.fullmatch(name) else ""


def kill_attempts(names: frozenset[str] | None = None) -> int:
    """Kill all processes of some attempts, or of all, and return how many there were."""
    found = [each for name, them in processes_by_attempt().items() if names is None or name in names for each in them]
    for process in found:
        kill(process)
    return len(found)


def guard_lease(file: Path, agent: int) -> None:
    """Guard the lease of a file until another guard does, or until the agent is gone and nothing is left to kill.

    Args:
        file: Of the lease.
        agent: Process id of the agent that started this guard.
    """
    boot = boot_id()
    while True:
        lease = read_lease(file)
        if lease is not None and lease.guard not in (0, os.getpid()):
            return
        if not is_lease_valid(lease, boot, since_start_s()):
            left = kill_attempts()
            if not left and os.getppid() != agent:
                return
        time.sleep(LEASE_POLL_S)


def start_guard(file: Path) -> "subprocess.Popen[bytes]":
    """Start a guard, in a session of its own: a signal to the agent's session does not end it.

    Raises:
        OSError: If it cannot be started.
    """
    command = [sys.executable, "-m", __name__, str(file), str(os.getpid())]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)


def lease_path(node: str) -> Path:
    """Return the file of a node's lease, in a folder that only root writes to.

    Raises:
        OSError: If the folder cannot be made.
    """
    LEASE_FOLDER.mkdir(mode=0o755, exist_ok=True)
    return LEASE_FOLDER / f"{node}.lease"


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        guard_lease(Path(sys.argv[1]), int(sys.argv[2]))
