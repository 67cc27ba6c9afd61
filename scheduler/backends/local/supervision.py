"""What a supervisor does with its attempt, from the started marker to the exit marker. Standard library only."""

import json
import os
import signal
import time
from contextlib import suppress

from .durable import is_there, read_whole, write_whole
from .gang import Gang
from .processes import boot_id, find
from .rank import libc
from .spec import Spec, decode

SPEC_BYTES = 4 << 20  # of a spec, at most

_PR_SET_CHILD_SUBREAPER = 36
_POLL_S = 0.5  # between two looks at the cancel file
_DISK_TRIES = 60  # a second apart, when the disk is full


def supervise(folder: int, path: str) -> None:
    """Run an attempt to its end. Call it in a process of its own, which may not have run it before.

    Args:
        folder: Descriptor of the attempt's folder, which is locked.
        path: The same folder.

    Raises:
        OSError: If the ranks cannot be started, or their end not be written down.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # Ignored, it would hide how the ranks end.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    spec = decode(read_whole(folder, "spec.json", SPEC_BYTES))
    _write(folder, "started.json", _own_marker(spec))
    if is_there(folder, "cancel.json"):
        _write_exit_patiently(folder, spec.attempt, "cancelled", 0.0, [])
        return
    gang = Gang(spec, folder, path)
    started_s = time.time()
    _write(folder, "ranks.json", {"attempt": spec.attempt, "started_s": started_s, "ranks": gang.pids()})
    gang.begin()
    _watch(gang, spec, folder)
    gang.kill_rest()
    _write_exit_patiently(folder, spec.attempt, gang.reason, started_s, gang.ends)


def write_exit(
    folder: int, attempt: str, reason: str, started_s: float, ends: list[tuple[int, int, int, float]]
) -> None:
    """Write the exit marker.

    Args:
        folder: Descriptor of the attempt's folder.
        attempt: Its name.
        reason: Who asked for the end, "" if nobody.
        started_s: Unix time of the start, 0 if the ranks never started.
        ends: Rank, exit code, signal and Unix time, in the order of the ends.

    Raises:
        OSError: If it cannot be written.
    """
    marker = {"attempt": attempt, "boot": boot_id(), "reason": reason, "started_s": started_s, "ends": ends}
    _write(folder, "exit.json", marker)


def _write_exit_patiently(
    folder: int, attempt: str, reason: str, started_s: float, ends: list[tuple[int, int, int, float]]
) -> None:
    for _ in range(_DISK_TRIES):
        try:
            return write_exit(folder, attempt, reason, started_s, ends)
        except OSError:
            time.sleep(1.0)  # The disk may be full; without the marker the attempt is lost.
    return write_exit(folder, attempt, reason, started_s, ends)


def _watch(gang: Gang, spec: Spec, folder: int) -> None:
    until_s = float("inf") if spec.limit_s is None else time.monotonic() + spec.limit_s
    told = 0
    while True:
        asked = gang.wait(max(min(_POLL_S, until_s - time.monotonic()), 0.0))
        gang.tend()
        if not gang.running:
            return
        if asked or is_there(folder, "cancel.json"):
            gang.stop("cancelled")
        if time.monotonic() >= until_s:
            gang.stop("time limit")
            until_s = float("inf")
        if told != len(gang.ends):
            told = len(gang.ends)
            with suppress(OSError):  # It is told again in the exit marker; no reason to lose the attempt.
                _write(folder, "ends.json", {"attempt": spec.attempt, "ends": gang.ends})


def _own_marker(spec: Spec) -> dict[str, str | int]:
    own = find(os.getpid())
    if own is None:
        raise ProcessLookupError("/proc does not show this process")
    return {
        "attempt": spec.attempt,
        "pid": own.pid,
        "start_ticks": own.start_ticks,
        "boot": boot_id(),
        "session": own.session,
    }


def _write(folder: int, name: str, content: object) -> None:
    write_whole(folder, name, json.dumps(content).encode())
