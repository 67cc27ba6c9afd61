"""The supervision of an attempt, from its started marker to its exit marker. Standard library only.

`run_guarded` runs a supervisor as the child of a guard: if the supervisor is killed, its orphans become children of the
guard, which kills them. `supervise` is the whole of a supervisor; `run_ranks` is shared with the supervisors of nodes
(shared_folder/node.py).
"""

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from ....cluster.files.durable import is_there, write_whole
from ....cluster.files.processes import Process, boot_id, find, free_port, shows_this_process
from .ranks import (
    Gang,
    RankGroup,
    Spec,
    adopt_orphans,
    confine_to_cgroup,
    kill_cgroup,
    kill_children,
    read_spec,
    remove_cgroup,
    send_signal,
)
from .supervisor import log_to_stderr, run_and_exit

_SIGNAL_EXIT = 128  # plus the signal: exit code of a process that a signal ended, as in shells
_SOURCE_ROOT = Path(__file__).absolute().parents[4]  # the folder that holds the package
_CALL_FUNCTION = (
    "import importlib, os, sys; sys.path += filter(None, sys.argv[1:3]); "
    "call = getattr(importlib.import_module('longshore.scheduler.backends.' + sys.argv[3]), sys.argv[4]); "
    "os._exit(call(*sys.argv[5:]))"
)
_POLL_S = 0.5  # between two checks of the cancel file
_DISK_TRIES = 60  # a second apart, when the disk is full
_STOP_TRIES = 120  # to record a stop, at the checks of the cancel file
CANCELLED, TIME_LIMIT = "cancelled", "time limit"  # reasons


def python_command(module: str, function: str, *arguments: str, packages: str = "") -> list[str]:
    """Return the command that calls a function of this package and exits with what it returns.

    On another node, Python and this package must be found under the same paths as here.

    Args:
        module: Of the package of all backends, such as `slurm.node`.
        function: Takes texts and returns an exit code.
        arguments: For it.
        packages: Folder of packages that it needs beside the standard library.
    """
    # -I -S: none of the user's settings or site packages, which also makes it start fast.
    flags = ("-I", "-S", "-X", "utf8")
    return [sys.executable, *flags, "-c", _CALL_FUNCTION, str(_SOURCE_ROOT), packages, module, function, *arguments]


def run_guarded(
    supervise: Callable[[Process | None], int], log_error: Callable[[bytes], object] = log_to_stderr
) -> int:  # fmt: skip
    """Run a supervisor as a child of this process, and return when it and all that it left are gone.

    Args:
        supervise: What the child does; its return value is the exit code. It gets this process as its guard.
        log_error: Called with the traceback of an error in the child.

    Returns:
        Exit code of the child.

    Raises:
        OSError: If there can be no further process.
    """
    adopt_orphans()
    guard = find(os.getpid())
    supervisor = os.fork()
    if supervisor == 0:
        run_and_exit(partial(supervise, guard), log_error)
    code = _wait_for_exit(supervisor)
    kill_children()
    return code


def _wait_for_exit(supervisor: int) -> int:
    """Return the exit code of a child; a SIGTERM of this process is passed on to it."""
    while True:
        pid, status = os.waitpid(supervisor, os.WNOHANG)
        if pid:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else _SIGNAL_EXIT - code
        woken = signal.sigwaitinfo({signal.SIGCHLD, signal.SIGTERM})
        if woken.si_signo == signal.SIGTERM:
            send_signal(os.kill, supervisor, signal.SIGTERM)


class StopRequests:
    """Reasons to stop the ranks other than their own ends and time limit: the scheduler's request in their folder."""

    term_reason = CANCELLED  # why they are stopped when their supervisor gets SIGTERM

    def __init__(self, folder: int) -> None:
        self.folder = folder

    def reason(self) -> str:
        """Return why the ranks are to be stopped, "" if they are not."""
        return CANCELLED if is_there(self.folder, "cancel.json") else ""

    def record_stop(self, reason: str) -> str | None:
        """Record that they are being stopped; return the reason to report, None if it could not be recorded.

        Here no other supervisor has to know it.
        """
        return reason


def supervise(folder: int, path: str, guard: Process | None) -> int:
    """Run an attempt to its end, in a process of its own, and return 0; the exit marker has how it ended.

    1. Adopt orphans, so that no process of the attempt is lost.
    2. Write the started marker: from here on the attempt never starts again.
    3. If it was cancelled before, write the exit marker.
    4. Else start its ranks, or the host of its ring, and wait for their end.
    5. Kill what they left, and write the exit marker.

    Args:
        folder: Descriptor of the attempt's folder, which is locked.
        path: The same folder.
        guard: The parent of this process, which kills what is left if this process is killed.

    Raises:
        OSError: If the ranks cannot be started, or their end cannot be written.
    """
    adopt_orphans()
    spec = read_spec(folder)
    write_whole(folder, "started.json", started_marker(spec.attempt, guard))
    requests = StopRequests(folder)
    if reason := requests.reason():
        write_exit_marker_patiently(folder, spec.attempt, reason, 0.0, [])
    elif spec.seats:
        gpus = ",".join(str(gpu) for gpu in sorted({rank.gpu for rank in spec.ranks}))
        host = ring_host_spec(spec, path)
        run_ranks(host, RankGroup({0: gpus}, "127.0.0.1", 0), folder, path, requests, confines=True)
    else:
        visible = {rank: str(place.gpu) for rank, place in enumerate(spec.ranks)}
        run_ranks(spec, RankGroup(visible, "127.0.0.1", free_port()), folder, path, requests, confines=True)
    return 0


def ring_host_spec(spec: Spec, path: str, *part: str) -> Spec:
    """Return what runs the ring of an attempt, or a part of it, which `ring_files.encode_part` has encoded.

    By its environment it and what it starts find Longshore's own code.
    """
    command = tuple(python_command("local.ring_host", "main", path, *part))
    found = [str(_SOURCE_ROOT), *filter(None, [spec.environment.get("PYTHONPATH")])]
    return spec._replace(command=command, environment={**spec.environment, "PYTHONPATH": os.pathsep.join(found)})


def run_ranks(
    spec: Spec, part: RankGroup, folder: int, path: str, requests: StopRequests, *, confines: bool = False
) -> list[tuple[int, int, int, float]]:  # fmt: skip
    """Run ranks of an attempt to their end, and write the exit marker.

    Args:
        spec: The attempt.
        part: Which of its ranks.
        folder: Descriptor of the folder for their logs and markers.
        path: The same folder.
        requests: Reasons to stop them.
        confines: Whether they get a control group of their own, where that can be created.

    Returns:
        How they ended, as the exit marker holds it.

    Raises:
        OSError: If they cannot be started, or their end cannot be written.
    """
    gang = Gang(spec, part, folder, path)
    started_s = time.time()
    ranks = gang.pids_and_starts()
    cgroup = confine_to_cgroup(spec.attempt, [pid for pid, _ in ranks]) if confines else ""
    marker = {"attempt": spec.attempt, "started_s": started_s, "ranks": ranks, "cgroup": cgroup}
    _write_json(folder, "ranks.json", marker)
    gang.open_gate()
    _watch_ranks(gang, spec, folder, requests)
    if cgroup:
        with suppress(OSError):  # All at once, also processes that fork faster than they are found.
            kill_cgroup(cgroup)
    kill_children()
    remove_cgroup(cgroup)
    write_exit_marker_patiently(folder, spec.attempt, gang.reason, started_s, gang.ends)
    return gang.ends


def write_exit_marker(
    folder: int, attempt: str, reason: str, started_s: float, ends: list[tuple[int, int, int, float]]
) -> None:
    """Write the exit marker.

    Args:
        folder: Descriptor of the attempt's folder.
        attempt: Its name.
        reason: Why it was stopped, "" if it was not.
        started_s: Unix time of the start, 0 if the ranks never started.
        ends: Rank, exit code, signal and Unix time, in the order of the ends.

    Raises:
        OSError: If it cannot be written.
    """
    marker = {"attempt": attempt, "boot": boot_id(), "reason": reason, "started_s": started_s, "ends": ends}
    _write_json(folder, "exit.json", marker)


def write_exit_marker_patiently(
    folder: int, attempt: str, reason: str, started_s: float, ends: list[tuple[int, int, int, float]]
) -> None:
    """Write the exit marker as `write_exit_marker` does, but try again for a minute where it cannot be written."""
    for _ in range(_DISK_TRIES):
        try:
            return write_exit_marker(folder, attempt, reason, started_s, ends)
        except OSError:
            time.sleep(1.0)  # The disk may be full; without the marker the attempt is lost.
    return write_exit_marker(folder, attempt, reason, started_s, ends)


def _watch_ranks(gang: Gang, spec: Spec, folder: int, requests: StopRequests) -> None:
    until_s = float("inf") if spec.limit_s is None else time.monotonic() + spec.limit_s
    written, stopped, tries = 0, False, _STOP_TRIES
    while True:
        if gang.wait_for_sigterm_or_end(max(min(_POLL_S, until_s - time.monotonic()), 0.0)):
            gang.stop(requests.term_reason)
        gang.tend()
        if gang.is_running and (reason := requests.reason()):
            gang.stop(reason)
        if gang.is_running and time.monotonic() >= until_s:
            gang.stop(TIME_LIMIT)
            until_s = float("inf")
        if gang.reason and not stopped and tries > 0:
            recorded, tries = requests.record_stop(gang.reason), tries - 1
            stopped, gang.reason = recorded is not None, recorded or gang.reason
        if not gang.is_running and (stopped or not gang.reason or not tries):
            return
        if written != len(gang.ends):
            written = len(gang.ends)
            with suppress(OSError):  # The exit marker has it again; no reason to lose the attempt.
                _write_json(folder, "ends.json", {"attempt": spec.attempt, "ends": gang.ends})


def started_marker(attempt: str, guard: Process | None = None) -> bytes:
    """Return the started marker, which identifies this process.

    Raises:
        OSError: If /proc cannot be read.
    """
    own = find(os.getpid()) if shows_this_process() else None
    if own is None:
        raise ProcessLookupError("/proc does not show this process")
    marker = {
        "attempt": attempt,
        "pid": own.pid,
        "start_ticks": own.start_ticks,
        "boot": boot_id(),
        "session": own.session,
        "guard": (0, 0) if guard is None else (guard.pid, guard.start_ticks),
    }
    return json.dumps(marker).encode()


def _write_json(folder: int, name: str, content: object) -> None:
    write_whole(folder, name, json.dumps(content).encode())
