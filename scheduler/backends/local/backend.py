"""The local backend: jobs as processes of this machine, whose nodes and GPUs are slots with names.

An attempt whose supervisor is gone has its processes found by their traces, and killed. A process loses the trace of
its control group only by leaving the group on purpose; the others are lost more easily (docs/nodes.md).
"""

import errno
import fcntl
import json
import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from ....cluster.files.durable import is_there, open_file, read_whole, write_first
from ....cluster.files.errors import BackendError, InputError
from ....cluster.files.processes import Identity, boot_id, is_alive, last_error_in_log, machine_id, shows_this_process
from ....cluster.model.placement import Placement
from ...model.gpu_index import Layout
from ...model.states import EndedBy, Run, Status, parse_reason_line
from ..protocol import Attempt, Capabilities, GpuView, NodeView, StepLines
from .folders import (
    NO_FILE_OF_OURS,
    AttemptFolders,
    EndsMarker,
    ExitMarker,
    RanksMarker,
    StartedMarker,
    as_backend_error,
    delete_all_but,
    launched_attempts,
    rank_ends,
    read_marker,
    read_progress,
    read_rank_log,
    read_step_lines,
    write_spec,
)
from .own_gpus import OwnGpus, own_gpus_of
from .ranks import SPEC_FILE, AttemptTraces, kill_all, log_name
from .rings import FolderRings
from .supervision import CANCELLED, python_command, write_exit_marker
from .supervisor import STARTED_BEFORE, TWIN

_START_WITHIN_S = 30.0  # a machine under load; usually 0.03
_KILL_WITHIN_S = 0.3  # what needs longer is tried again with the next call
_NOTE_BYTES = 1 << 20


class LocalSettings(BaseModel):
    """The local backend has no settings."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class LocalBackend(FolderRings):
    """Runs each attempt under a supervisor, a process of its own that continues when the scheduler ends.

    All that is known of an attempt is in its folder, so that a new object finds the jobs of an earlier one.

    Args:
        folder: Parent of the attempts' folders; created if missing.
        nodes: GPUs of each node, in cluster-file order.
        machine: Id of the machine on which they run; by default this one.
        own_gpus: Those of the node with this machine's name. Those of all other nodes are slots.

    Raises:
        BackendError: If the folder cannot be written.
    """

    Settings = LocalSettings

    @classmethod
    def build(cls, settings: LocalSettings, folder: Path, layout: Layout) -> "LocalBackend":
        """Return the backend of a scheduler.

        Raises:
            InputError: If this machine does not show its processes, so that no job could be started or followed.
        """
        if not shows_this_process():
            fix = "mount it (mount -t proc proc /proc) before the scheduler starts"
            raise InputError("/proc does not show the processes of this machine, and jobs are followed by it", fix)
        return cls(folder, layout.nodes, own_gpus=own_gpus_of(dict(layout.nodes)))

    def __init__(
        self, folder: Path, nodes: Mapping[str, int], *, machine: str | None = None, own_gpus: OwnGpus | None = None
    ) -> None:
        self._own_gpus = own_gpus
        self._folders = AttemptFolders(folder)
        # On another machine its attempts would seem never launched, or ended by a restart.
        known_in = f"{machine or machine_id()}/{self._folders.identity()}"
        self.capabilities = Capabilities(
            exact_gpus=True, atomic_gang=True, enforced=False, known_in=known_in,
            lists_attempts=True, reads_steps=True, runs_rings=True,
            moves_coordinators=True,  # it is on none of the nodes, so it stays
        )  # fmt: skip
        self._nodes = dict(nodes)

    def observe(self) -> tuple[NodeView, ...]:
        """Return all nodes; slots are always healthy."""
        return tuple(self._view_node(node, gpus) for node, gpus in self._nodes.items())

    def _view_node(self, node: str, gpus: int) -> NodeView:
        if self._own_gpus is not None and node == os.uname().nodename:
            return NodeView(node, self._own_gpus.views(gpus), time.time())
        return NodeView(node, tuple(GpuView(gpu) for gpu in range(gpus)), time.time(), slots=True)

    def close(self) -> None:
        """Read no more of this machine's GPUs; jobs continue."""
        if self._own_gpus is not None:
            self._own_gpus.close()

    def launch(self, attempt: Attempt, placement: Placement) -> None:
        """Start an attempt on exactly these GPUs; again, or after its end, this does nothing."""
        if write_spec(self._folders, attempt, placement, self._nodes, ("started.json", "exit.json")) is not None:
            _spawn_supervisor(self._folders.path(attempt.name))

    def status(self, name: str) -> Status:
        """Return what is known of an attempt."""
        self._folders.path(name)
        try:
            with self._folders.open(name) as folder:
                return Status(Run.ABSENT) if folder is None else _read_status(folder, name, boot_id())
        except (OSError, ValueError) as error:
            return Status(Run.UNREACHABLE, words=str(error))

    def cancel(self, name: str, reason: str) -> None:
        """Ask an attempt to stop, now or as soon as it starts; again, this does nothing."""
        self._folders.path(name)
        with as_backend_error(name), self._folders.open_or_create(name) as folder:
            if is_there(folder, "exit.json"):
                return
            write_first(folder, "cancel.json", json.dumps({"attempt": name, "reason": reason}).encode())
            _mark_ended_unless_started(folder, name)

    def is_proven_gone(self, name: str) -> bool:
        """Return whether all processes of an attempt are proven gone, after killing what outlived its supervisor."""
        self._folders.path(name)
        try:
            with self._folders.open(name) as folder:
                return folder is None or _prove_gone(folder, name, boot_id())
        except (OSError, ValueError):
            return False

    def logs(self, name: str, rank: int, offset: int, max_bytes: int) -> tuple[bytes, int]:
        """Return at most `max_bytes` of a rank's output from an offset on, and the offset after them."""
        return read_rank_log(self._folders, name, rank, offset, max_bytes, lambda _: (".",))

    def step_lines(self, name: str, placement: Placement, before: Sequence[StepLines]) -> list[StepLines]:
        """Return what each rank has reported of its steps and checkpoints since the last call."""
        self._folders.path(name)
        with as_backend_error(name), self._folders.open(name) as folder:
            return [] if folder is None else read_step_lines(folder, 0, before)

    def launched(self) -> dict[str, tuple[Attempt, Placement]]:
        """Return all attempts that were launched and not forgotten, with their GPUs, by name."""
        return launched_attempts(self._folders)

    def forget(self, name: str) -> None:
        """Delete what an attempt that ended left here, except its logs and the proof that it ended."""
        if not self.is_proven_gone(name):
            raise BackendError(f"{name} cannot be forgotten: its processes are not proven gone")
        with as_backend_error(name), self._folders.open(name) as folder:
            if folder is not None:
                # Without an exit marker it never began: a late launch must find that it was cancelled.
                kept = {"exit.json"} if is_there(folder, "exit.json") else {"started.json", "cancel.json"}
                delete_all_but(folder, kept)


def _spawn_supervisor(path: Path) -> None:
    """Start a supervisor on an attempt's folder, unless there is or was one."""
    command, null = python_command("local.supervisor", "main", str(path)), subprocess.DEVNULL
    # It has nothing of the environment but HOME, for ranks of a user whom the machine does not know.
    environment = {"HOME": os.environ["HOME"]} if "HOME" in os.environ else {}
    try:
        done = subprocess.run(
            command, stdin=null, stdout=null, stderr=null, cwd="/", env=environment,
            start_new_session=True, timeout=_START_WITHIN_S, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BackendError(f"{path.name}: its supervisor could not be started: {error}") from error
    if done.returncode not in (0, TWIN, STARTED_BEFORE):
        raise BackendError(f"{path.name}: its supervisor ended with {done.returncode} at its start")


def _mark_ended_unless_started(folder: int, name: str) -> None:
    """Write the exit marker of a cancelled attempt that has no supervisor to do so."""
    if not is_there(folder, SPEC_FILE):
        return
    lock = os.open("lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not is_there(folder, "started.json") and not is_there(folder, "exit.json"):
            write_exit_marker(folder, name, CANCELLED, 0.0, [])
    except BlockingIOError:
        pass  # A supervisor lives, and will find the request.
    finally:
        os.close(lock)


def _read_status(folder: int, attempt: str, boot: str) -> Status:
    """Return what is known of an attempt; first ends one whose supervisor was killed."""
    ended = _read_end(folder, attempt)
    if ended is not None:
        return ended
    started = read_marker(folder, attempt, StartedMarker)
    if started is None:
        return Status(Run.PENDING if is_there(folder, SPEC_FILE) else Run.ABSENT)
    if not _supervisor_lives(folder, started, boot):
        # It may have written the exit marker since that was read.
        return _read_end(folder, attempt) or _end_lost_attempt(folder, started, boot)
    ranks = read_marker(folder, attempt, RanksMarker)
    if ranks is None:
        return Status(Run.PENDING)
    ends = rank_ends(read_marker(folder, attempt, EndsMarker))
    return Status(Run.RUNNING, ends, started_s=ranks.started_s, progress=read_progress(folder))


def _prove_gone(folder: int, attempt: str, boot: str) -> bool:
    """Return whether no process of an attempt is left, after killing what outlived its supervisor."""
    ended = read_marker(folder, attempt, ExitMarker)
    started = read_marker(folder, attempt, StartedMarker)
    if started is None:
        # Launched and neither started nor ended: it could start at any moment.
        may_start = ended is None and is_there(folder, SPEC_FILE)
        return not may_start and kill_all(AttemptTraces(attempt, folder, -1, {}), _KILL_WITHIN_S)
    if _supervisor_lives(folder, started, boot) or _guard_lives(started, boot):
        return False
    return _kill_leftovers(folder, started, boot)


def _read_end(folder: int, attempt: str) -> Status | None:
    ended = read_marker(folder, attempt, ExitMarker)
    if ended is None:
        return None
    by, words = parse_reason_line(ended.reason)
    ends = rank_ends(ended)
    failed = next((end for end in ends if end.code), None) if by in (EndedBy.NONE, EndedBy.RANK_FAILED) else None
    if failed is not None and not words:
        words = last_error_in_log(log_name(failed.rank), folder)
    return Status(Run.EXITED, ends, by, words, ended.started_s, read_progress(folder))


def _end_lost_attempt(folder: int, started: StartedMarker, boot: str) -> Status:
    if _guard_lives(started, boot) or not _kill_leftovers(folder, started, boot):
        return Status(Run.UNREACHABLE, words="its supervisor is gone, and processes of it still live")
    ranks = read_marker(folder, started.attempt, RanksMarker)
    return Status(
        Run.LOST,
        rank_ends(read_marker(folder, started.attempt, EndsMarker)),
        EndedBy.NONE,
        f"supervisor lost: {_why_lost(folder, started, boot)}",
        0.0 if ranks is None else ranks.started_s,
        read_progress(folder),
    )


def _why_lost(folder: int, started: StartedMarker, boot: str) -> str:
    if started.boot != boot:
        return "the machine was restarted"
    try:
        note = read_whole(folder, "supervisor.log", _NOTE_BYTES).decode(errors="replace").split("\n")
    except OSError:
        return "it was killed"
    return next((line for line in reversed(note) if line), "it failed")


def _supervisor_lives(folder: int, started: StartedMarker, boot: str) -> bool:
    """Return whether the supervisor of an attempt lives, here or in another PID namespace, such as a container's.

    There /proc shows neither it nor its guard, but one of them holds the attempt's lock.
    """
    if is_alive(Identity(started.pid, started.start_ticks, started.boot), boot):
        return True
    return not _guard_lives(started, boot) and _is_locked(folder)


def _is_locked(folder: int) -> bool:
    """Return whether a process holds an attempt's lock; none does if the job has put something else in its place."""
    try:
        lock = open_file(folder, "lock")
    except OSError as error:
        if error.errno not in (errno.ENOENT, *NO_FILE_OF_OURS):
            raise
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def _guard_lives(started: StartedMarker, boot: str) -> bool:
    """Return whether the guard lives: it adopts what is left, and ends when nothing is."""
    return is_alive(Identity(*started.guard, started.boot), boot)


def _kill_leftovers(folder: int, started: StartedMarker, boot: str) -> bool:
    # After a restart of the machine the numbers of groups and sessions are other processes'.
    ranks = read_marker(folder, started.attempt, RanksMarker) if started.boot == boot else None
    groups = {} if ranks is None else dict(ranks.ranks)
    cgroup = "" if ranks is None else ranks.cgroup
    return kill_all(AttemptTraces(started.attempt, folder, started.session, groups, cgroup), _KILL_WITHIN_S)
