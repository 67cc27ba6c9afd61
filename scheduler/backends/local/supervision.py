"""The supervision of an attempt, from its started marker to its exit marker. Standard library only.

`supervise` is the whole of it; `run_ranks` is shared with the supervisors of nodes (shared_folder/node.py).
"""

import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ....cluster.files.durable import is_there, read_whole, write_whole
from ....cluster.files.processes import Process, boot_id, find, free_port, shows_this_process
from .ranks import Gang, RankGroup, Spec, adopt_orphans, confine, decode, kill_children, kill_group, remove

if TYPE_CHECKING:
    from ....cluster.files.processes import Process


SOURCE_ROOT = Path(__file__).absolute().parents[4]  # the folder that holds the package


_HOST = (
    "import os, sys; sys.path.append(sys.argv[1]); "
    "from longshore.scheduler.backends.local.ring_host import main; os._exit(main(sys.argv[2]))"
)


def host_command(path: str) -> tuple[str, ...]:
    """Return what runs the ring of the attempt whose folder this is."""
    return (sys.executable, "-I", "-S", "-X", "utf8", "-c", _HOST, str(SOURCE_ROOT), path)


def host_environment(spec: Spec) -> dict[str, str]:
    """Return the environment of that process, by which it and what it starts find Longshore's own code."""
    found = [str(SOURCE_ROOT), *filter(None, [spec.environment.get("PYTHONPATH")])]
    return {**spec.environment, "PYTHONPATH": os.pathsep.join(found)}


def gpus_of(spec: Spec) -> str:
    """Return all GPUs of an attempt, each once, as CUDA_VISIBLE_DEVICES has them."""
    return ",".join(str(gpu) for gpu in sorted({rank.gpu for rank in spec.ranks}))


SPEC_BYTES = 4 << 20  # of a spec, at most


_POLL_S = 0.5  # between two checks of the cancel file


_DISK_TRIES = 60  # a second apart, when the disk is full


class StopRequests(Protocol):
    """Reasons to stop the ranks other than their own ends and time limit."""

    @property
    def term_reason(self) -> str:
        """Why they are stopped when their supervisor gets SIGTERM."""
        ...

    def reason(self) -> str:
        """Return why they are to be stopped, "" if they are not."""
        ...

    def record_stop(self, reason: str) -> str:
        """Record that they are being stopped, and return the reason to report."""
        ...


class CancelFile:
    """The stop request that a scheduler writes into the attempt's folder.

    Args:
        folder: Descriptor of that folder.
    """

    term_reason = "cancelled"

    def __init__(self, folder: int) -> None:
        self._folder = folder

    def reason(self) -> str:
        """Return why the ranks are to be stopped, "" if they are not."""
        return "cancelled" if is_there(self._folder, "cancel.json") else ""

    def record_stop(self, reason: str) -> str:
        """Return the reason: no other supervisor has to know."""
        return reason


def supervise(folder: int, path: str, guard: Process | None) -> None:
    """Run an attempt to its end, in a process of its own.

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
    spec = decode(read_whole(folder, "spec.json", SPEC_BYTES))
    write_whole(folder, "started.json", own_marker(spec.attempt, guard))
    requests = CancelFile(folder)
    if reason := requests.reason():
        write_exit_patiently(folder, spec.attempt, reason, 0.0, [])
        return
    if spec.seats:
        host = spec._replace(command=host_command(path), environment=host_environment(spec))
        run_ranks(host, RankGroup({0: gpus_of(spec)}, "127.0.0.1", 0), folder, path, requests, confine=confine)
        return
    visible = {rank: str(place.gpu) for rank, place in enumerate(spec.ranks)}
    run_ranks(spec, RankGroup(visible, "127.0.0.1", free_port()), folder, path, requests, confine=confine)


def run_ranks(
    spec: Spec, part: RankGroup, folder: int, path: str, requests: StopRequests,
    *, confine: Callable[[str, Iterable[int]], str] = lambda *_: "",
) -> list[tuple[int, int, int, float]]:  # fmt: skip
    """Run ranks of an attempt to their end, and write the exit marker.

    Args:
        spec: The attempt.
        part: Which of its ranks.
        folder: Descriptor of the folder for their logs and markers.
        path: The same folder.
        requests: Reasons to stop them.
        confine: Moves processes into a control group of their own and returns its path, "" if it does not.

    Returns:
        How they ended, as the exit marker holds it.

    Raises:
        OSError: If they cannot be started, or their end cannot be written.
    """
    gang = Gang(spec, part, folder, path)
    started_s = time.time()
    ranks = gang.pids()
    cgroup = confine(spec.attempt, [pid for pid, _ in ranks])
    marker = {"attempt": spec.attempt, "started_s": started_s, "ranks": ranks, "cgroup": cgroup}
    _write(folder, "ranks.json", marker)
    gang.begin()
    _watch(gang, spec, folder, requests)
    if cgroup:
        with suppress(OSError):  # All at once, also processes that fork faster than they are found.
            kill_group(cgroup)
    kill_children()
    remove(cgroup)
    write_exit_patiently(folder, spec.attempt, gang.reason, started_s, gang.ends)
    return gang.ends


def write_exit(
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
    _write(folder, "exit.json", marker)


def write_exit_patiently(
    folder: int, attempt: str, reason: str, started_s: float, ends: list[tuple[int, int, int, float]]
) -> None:
    """Write the exit marker as `write_exit` does, but try again for a minute where it cannot be written."""
    for _ in range(_DISK_TRIES):
        try:
            return write_exit(folder, attempt, reason, started_s, ends)
        except OSError:
            time.sleep(1.0)  # The disk may be full; without the marker the attempt is lost.
    return write_exit(folder, attempt, reason, started_s, ends)


def _watch(gang: Gang, spec: Spec, folder: int, requests: StopRequests) -> None:
    until_s = float("inf") if spec.limit_s is None else time.monotonic() + spec.limit_s
    written, stopped = 0, False
    while True:
        if gang.wait(max(min(_POLL_S, until_s - time.monotonic()), 0.0)):
            gang.stop(requests.term_reason)
        gang.tend()
        if gang.running and (reason := requests.reason()):
            gang.stop(reason)
        if gang.running and time.monotonic() >= until_s:
            gang.stop("time limit")
            until_s = float("inf")
        if gang.reason and not stopped:
            stopped, gang.reason = True, requests.record_stop(gang.reason)
        if not gang.running:
            return
        if written != len(gang.ends):
            written = len(gang.ends)
            with suppress(OSError):  # The exit marker has it again; no reason to lose the attempt.
                _write(folder, "ends.json", {"attempt": spec.attempt, "ends": gang.ends})


def own_marker(attempt: str, guard: Process | None = None) -> bytes:
    """Return the started marker, which identifies this process.

    Args:
        attempt: Its name.
        guard: The guard of this process, if it has one.

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


def _write(folder: int, name: str, content: object) -> None:
    write_whole(folder, name, json.dumps(content).encode())
