"""The process that runs one attempt and writes down how it ended, whatever becomes of the scheduler.

Standard library only, and one thread. It is given the attempt's folder, which holds `spec.json`, and leaves there

    lock          held while it or its guard lives
    started.json  who they are; an attempt that has this never starts again
    ranks.json    the processes of its ranks, before the first of them runs its program
    ends.json     how ranks ended, while others run
    exit.json     how all ranks ended: the only proof of success
    rank-N.log    their output

How a supervisor runs an attempt with a ring: one process stands for all ranks, and starts the members.

Standard library only.

The parent of a supervisor: should that be killed, what it leaves behind comes here, and is killed.

Standard library only, and as little of it as will do: there is one for each attempt.
"""

import fcntl
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, Protocol

from ....cluster.files.durable import is_there, open_folder, read_whole, write_whole
from ....cluster.files.network import free_port
from ....cluster.files.processes import Process, boot_id, find, shows_this_process
from .ranks import Gang, Part, Spec, adopt_orphans, confine, decode, kill_children, kill_group, remove, send

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

    try:
        guarded(lambda guard: _supervise(folder, path, guard))
    except BaseException:  # The way out is the same for all: whoever forked this process must not go on in it.
        _tell_why(folder)
    finally:
        os._exit(0)


def _supervise(folder: int, path: str, guard: "Process | None") -> int:

    try:
        supervise(folder, path, guard)
    except BaseException:
        _tell_why(folder)
    return 0


def _tell_why(folder: int) -> None:
    import traceback

    write_whole(folder, "supervisor.log", traceback.format_exc().encode())


ROOT = Path(__file__).absolute().parents[4]  # the folder that holds the package
_HOST = (
    "import os, sys; sys.path.append(sys.argv[1]); "
    "from longshore.scheduler.backends.local.ring_host import main; os._exit(main(sys.argv[2]))"
)


def host_command(path: str) -> tuple[str, ...]:
    """Return what runs the ring of the attempt whose folder this is."""
    return (sys.executable, "-I", "-S", "-X", "utf8", "-c", _HOST, str(ROOT), path)


def host_environment(spec: Spec) -> dict[str, str]:
    """Return the environment of that process, by which it and what it starts find Longshore's own code."""
    found = [str(ROOT), *filter(None, [spec.environment.get("PYTHONPATH")])]
    return {**spec.environment, "PYTHONPATH": os.pathsep.join(found)}


def gpus_of(spec: Spec) -> str:
    """Return all GPUs of an attempt, each once, as CUDA_VISIBLE_DEVICES has them."""
    return ",".join(str(gpu) for gpu in sorted({rank.gpu for rank in spec.ranks}))


SPEC_BYTES = 4 << 20  # of a spec, at most

_POLL_S = 0.5  # between two looks at the cancel file
_DISK_TRIES = 60  # a second apart, when the disk is full


class Wishes(Protocol):
    """What has a say in when the ranks stop, beside themselves and their time limit."""

    @property
    def of_term(self) -> str:
        """Why they are stopped when their supervisor is asked to end."""
        ...

    def asked(self) -> str:
        """Return why they are to be stopped, "" if they are not."""
        ...

    def stopped(self, reason: str) -> str:
        """Take note that they are being stopped, and return the reason that is to be told."""
        ...


class CancelFile:
    """The wish that a scheduler leaves in the attempt's folder.

    Args:
        folder: Descriptor of that folder.
    """

    of_term = "cancelled"

    def __init__(self, folder: int) -> None:
        self._folder = folder

    def asked(self) -> str:
        """Return why the ranks are to be stopped, "" if they are not."""
        return "cancelled" if is_there(self._folder, "cancel.json") else ""

    def stopped(self, reason: str) -> str:
        """Return the reason: there is nobody else to tell."""
        return reason


def supervise(folder: int, path: str, guard: Process | None) -> None:
    """Run an attempt to its end. Call it in a process of its own, which may not have run it before.

    Args:
        folder: Descriptor of the attempt's folder, which is locked.
        path: The same folder.
        guard: The parent of this process, which sees to what is left should this process be killed.

    Raises:
        OSError: If the ranks cannot be started, or their end not be written down.
    """
    adopt_orphans()
    spec = decode(read_whole(folder, "spec.json", SPEC_BYTES))
    write_whole(folder, "started.json", own_marker(spec.attempt, guard))
    wishes = CancelFile(folder)
    if reason := wishes.asked():
        write_exit_patiently(folder, spec.attempt, reason, 0.0, [])
        return
    if spec.seats:
        host = spec._replace(command=host_command(path), environment=host_environment(spec))
        run_ranks(host, Part({0: gpus_of(spec)}, "127.0.0.1", 0), folder, path, wishes, confine=confine)
        return
    visible = {rank: str(place.gpu) for rank, place in enumerate(spec.ranks)}
    run_ranks(spec, Part(visible, "127.0.0.1", free_port()), folder, path, wishes, confine=confine)


def run_ranks(
    spec: Spec, part: Part, folder: int, path: str, wishes: Wishes,
    *, confine: Callable[[str, Iterable[int]], str] = lambda *_: "",
) -> list[tuple[int, int, int, float]]:  # fmt: skip
    """Run ranks of an attempt to their end and write it down.

    Args:
        spec: The attempt.
        part: Which of its ranks.
        folder: Descriptor of the folder for their logs and markers.
        path: The same folder.
        wishes: What has a say in when they stop.
        confine: Moves processes into a control group of their own and returns its path, "" if it does not.

    Returns:
        How they ended, as the exit marker holds it.

    Raises:
        OSError: If they cannot be started, or their end not be written down.
    """
    gang = Gang(spec, part, folder, path)
    started_s = time.time()
    ranks = gang.pids()
    cgroup = confine(spec.attempt, [pid for pid, _ in ranks])
    marker = {"attempt": spec.attempt, "started_s": started_s, "ranks": ranks, "cgroup": cgroup}
    _write(folder, "ranks.json", marker)
    gang.begin()
    _watch(gang, spec, folder, wishes)
    if cgroup:
        with suppress(OSError):  # At once, also what starts others faster than they are found.
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
        reason: Who asked for the end, "" if nobody.
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


def _watch(gang: Gang, spec: Spec, folder: int, wishes: Wishes) -> None:
    until_s = float("inf") if spec.limit_s is None else time.monotonic() + spec.limit_s
    told, stopped = 0, False
    while True:
        if gang.wait(max(min(_POLL_S, until_s - time.monotonic()), 0.0)):
            gang.stop(wishes.of_term)
        gang.tend()
        if gang.running and (reason := wishes.asked()):
            gang.stop(reason)
        if gang.running and time.monotonic() >= until_s:
            gang.stop("time limit")
            until_s = float("inf")
        if gang.reason and not stopped:
            stopped, gang.reason = True, wishes.stopped(gang.reason)
        if not gang.running:
            return
        if told != len(gang.ends):
            told = len(gang.ends)
            with suppress(OSError):  # It is told again in the exit marker; no reason to lose the attempt.
                _write(folder, "ends.json", {"attempt": spec.attempt, "ends": gang.ends})


def own_marker(attempt: str, guard: Process | None = None) -> bytes:
    """Return what says that this process runs an attempt.

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


_KILLED = 128  # and the signal: the exit code of who was ended by one, as shells say it


def guarded(supervise: Callable[[Process | None], int]) -> int:
    """Run a supervisor as a child of this process, and return when it and all that it left are gone.

    Args:
        supervise: What the child does, before it exits with what that returns. It is told who its guard is.

    Returns:
        Exit code of the child.

    Raises:
        OSError: If there can be no further process.
    """
    adopt_orphans()
    guard = find(os.getpid())
    supervisor = os.fork()
    if supervisor == 0:
        _become(supervise, guard)
    code = _wait_for(supervisor)
    kill_children()
    return code


def _become(supervise: Callable[[Process | None], int], guard: Process | None) -> NoReturn:
    code = 1
    try:
        code = supervise(guard)
    except BaseException:
        import traceback  # Only here: it takes as much time and memory as all the rest.

        os.write(2, traceback.format_exc().encode())
    finally:  # A copy of the guard must not live on.
        os._exit(code)


def _wait_for(supervisor: int) -> int:
    """Return the exit code of a child, which gets the wishes to end that come to this process."""
    while True:
        pid, status = os.waitpid(supervisor, os.WNOHANG)
        if pid:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else _KILLED - code
        woken = signal.sigwaitinfo({signal.SIGCHLD, signal.SIGTERM})
        if woken.si_signo == signal.SIGTERM:
            send(os.kill, supervisor, signal.SIGTERM)
