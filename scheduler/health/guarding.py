"""The guard of a node: kills the processes of all attempts there once the lease of its agent has run out.

It is a process of its own beside the agent, so that a lease runs out also where the agent was killed or is stuck. Both
know the lease by a file that the agent renews. The file says the end of the lease by the machine's own clock since its
start, which nobody sets and which goes on while the machine sleeps.

Source: docs/nodes.md, Leases.
"""

import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ...cluster.files.processes import Process, boot_id, environment, kill, living

LOOK_S = 0.2  # between two looks at the lease
NAME = b"ls-"  # how the names of attempts begin
FOLDER = Path("/run/longshore")


class Lease(NamedTuple):
    """What the file says."""

    boot: str  # boot id under which it holds
    until_s: float  # by `since_start_s`
    token: int  # of the scheduler that granted it
    guard: int  # process that guards it: an older one ends


def since_start_s() -> float:
    """Return the seconds since the machine's start, those included in which it slept."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def is_valid(lease: Lease | None, boot: str, now_s: float) -> bool:
    """Return whether processes may live by a lease.

    Args:
        lease: What the file says; None if it cannot be read.
        boot: Boot id of the machine.
        now_s: As `since_start_s` has it.
    """
    return lease is not None and lease.boot == boot and now_s < lease.until_s


def read_lease(file: Path) -> Lease | None:
    """Return what a file says, None if it cannot be read."""
    try:
        boot, until_s, token, guard = file.read_text(encoding="ascii").split()
        return Lease(boot, float(until_s), int(token), int(guard))
    except (OSError, ValueError):
        return None


def write_lease(file: Path, lease: Lease) -> None:
    """Write what a file is to say, whole or not at all.

    Raises:
        OSError: If that cannot be done; then the last lease runs out.
    """
    draft = file.with_suffix(f".{os.getpid()}")
    draft.write_text(f"{lease.boot} {lease.until_s!r} {lease.token} {lease.guard}\n", encoding="ascii")
    draft.replace(file)


def attempts_here() -> dict[str, list[Process]]:
    """Return the living processes of each attempt on this machine: by their environment, and all they started."""
    everyone = living()
    owner = {it.pid: told for it in everyone if (told := _attempt_of(it))}
    before = -1
    while before != len(owner):
        before = len(owner)
        owner |= {it.pid: owner[it.parent] for it in everyone if it.parent in owner and it.pid not in owner}
    found: dict[str, list[Process]] = {}
    for it in everyone:
        if it.pid in owner:
            found.setdefault(owner[it.pid], []).append(it)
    return found


def _attempt_of(process: Process) -> str:
    told = environment(process, b"LONGSHORE_ATTEMPT").get(b"LONGSHORE_ATTEMPT", b"")
    return told.decode("ascii", errors="replace") if told.startswith(NAME) else ""


def kill_attempts(names: frozenset[str] | None = None) -> int:
    """Kill all processes of some attempts, or of all, and return how many there were."""
    found = [it for name, them in attempts_here().items() if names is None or name in names for it in them]
    for process in found:
        kill(process)
    return len(found)


def guard(file: Path, agent: int) -> None:
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
        if not is_valid(lease, boot, since_start_s()):
            left = kill_attempts()
            if not left and os.getppid() != agent:
                return
        time.sleep(LOOK_S)


def start_guard(file: Path) -> "subprocess.Popen[bytes]":
    """Start a guard, in a session of its own: what ends the agent does not end it.

    Raises:
        OSError: If it cannot be started.
    """
    command = [sys.executable, "-m", __name__, str(file), str(os.getpid())]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)


def lease_file(node: str) -> Path:
    """Return the file of a node's lease, in a folder that only root writes to.

    Raises:
        OSError: If the folder cannot be made.
    """
    FOLDER.mkdir(mode=0o755, exist_ok=True)
    return FOLDER / f"{node}.lease"


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        guard(Path(sys.argv[1]), int(sys.argv[2]))
