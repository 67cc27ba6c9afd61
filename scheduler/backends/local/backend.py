"""The local backend: jobs as processes of this machine, whose nodes and GPUs are slots with names."""

import fcntl
import json
import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from ....cluster.files.durable import is_there, open_folder, read_whole, write_first
from ....cluster.files.errors import BackendError, InputError
from ....cluster.files.processes import boot_id, machine_id, shows_this_process
from ....cluster.model.placement import Placement
from ....ring.ring_client import RingClient, ask_report, last_report, retire
from ....ring.wire import RingReport
from ...model.gpu_index import Layout
from ...model.states import Run, Status
from ..protocol import Attempt, Backend, Capabilities, GpuView, MemberPlace, NodeView, StepLines
from .folders import Folders, as_backend_error, delete_but, read_log_of, read_step_lines
from .launching import launched_in, refuse_what_cannot_start, spawn_supervisor, spec_of
from .ranks import encode
from .reading import proven_gone, read_status
from .ring_host import PLACES, RING, add_name, members_in, places_in
from .supervision import SPEC_BYTES, write_exit

_PLACE_BYTES = 4096


class LocalSettings(BaseModel):
    """The local backend has no settings."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class LocalBackend(Backend):
    """Runs each attempt under a supervisor, a process of its own that continues when the scheduler ends.

    All that is known of an attempt is in its folder, so that a new object finds the jobs of an earlier one.

    Args:
        folder: Parent of the attempts' folders; created if missing.
        nodes: GPUs of each node, in cluster-file order.
        machine: Id of the machine on which they run; by default this one.

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
        return cls(folder, layout.nodes)

    def __init__(self, folder: Path, nodes: Mapping[str, int], *, machine: str | None = None) -> None:
        self._folders = Folders(folder)
        # On another machine its attempts would seem never launched, or ended by a restart.
        known_in = f"{machine or machine_id()}/{self._folders.identity()}"
        self.capabilities = Capabilities(
            exact_gpus=True, atomic_gang=True, enforced=False, known_in=known_in,
            lists_attempts=True, reads_steps=True, runs_rings=True,
        )  # fmt: skip
        self._nodes = dict(nodes)

    def observe(self) -> tuple[NodeView, ...]:
        """Return all nodes; slots are always healthy."""
        now_s = time.time()
        return tuple(
            NodeView(node, tuple(GpuView(gpu) for gpu in range(gpus)), now_s, slots=True)
            for node, gpus in self._nodes.items()
        )

    def launch(self, attempt: Attempt, placement: Placement) -> None:
        """Start an attempt on exactly these GPUs; again, or after its end, this does nothing.

        Raises:
            CannotHonourError: If there are no such GPUs.
            RefusedError: If its program or folder does not exist.
            BackendError: If it is not known whether it starts, or another attempt has this name.
        """
        path = self._folders.path(attempt.name)
        spec = spec_of(attempt, placement, self._nodes, path / "work")
        with as_backend_error(attempt.name):
            with self._folders.open(attempt.name) as folder:
                if folder is not None and _has_begun(folder, attempt.name, encode(spec)):
                    return
            refuse_what_cannot_start(spec, makes_folder=not attempt.folder)
            with self._folders.make(attempt.name) as folder:
                if not attempt.folder:
                    (path / "work").mkdir(exist_ok=True)
                if not write_first(folder, "spec.json", encode(spec)):
                    _has_begun(folder, attempt.name, encode(spec))
            spawn_supervisor(path)

    def status(self, name: str) -> Status:
        """Return what is known of an attempt.

        Raises:
            BackendError: If that is no name of an attempt.
        """
        self._folders.path(name)
        try:
            with self._folders.open(name) as folder:
                return Status(Run.ABSENT) if folder is None else read_status(folder, name, boot_id())
        except (OSError, ValueError) as error:
            return Status(Run.UNREACHABLE, words=str(error))

    def statuses(self, names: tuple[str, ...]) -> dict[str, Status]:
        """Return what is known of many attempts."""
        return {name: self.status(name) for name in names}

    def cancel(self, name: str, reason: str) -> None:
        """Ask an attempt to stop, now or as soon as it starts; again, this does nothing.

        Raises:
            BackendError: If the request could not be stored.
        """
        self._folders.path(name)
        with as_backend_error(name), self._folders.make(name) as folder:
            if is_there(folder, "exit.json"):
                return
            write_first(folder, "cancel.json", json.dumps({"attempt": name, "reason": reason}).encode())
            _end_unless_started(folder, name)

    def released(self, name: str) -> bool:
        """Return whether all processes of an attempt are proven gone, after killing what outlived its supervisor."""
        self._folders.path(name)
        try:
            with self._folders.open(name) as folder:
                return folder is None or proven_gone(folder, name, boot_id())
        except (OSError, ValueError):
            return False

    def logs(self, name: str, rank: int, offset: int, max_bytes: int) -> tuple[bytes, int]:
        """Return at most `max_bytes` of a rank's output from an offset on, and the offset after them.

        Raises:
            BackendError: If there is no such rank, or its log is not a file.
            ValueError: If the offset or the size is negative.
        """
        return read_log_of(self._folders, name, rank, offset, max_bytes, lambda _: (".",))

    def step_lines(self, name: str, placement: Placement, before: Sequence[StepLines]) -> list[StepLines]:
        """Return what each rank has reported of its steps and checkpoints since the last call.

        Raises:
            BackendError: If that cannot be read.
        """
        self._folders.path(name)
        with as_backend_error(name), self._folders.open(name) as folder:
            return [] if folder is None else read_step_lines(folder, 0, before)

    def ring_report(self, name: str) -> RingReport | None:
        """Return the state of an attempt's ring, the last known one if its coordinator does not answer.

        Raises:
            BackendError: If that is no name of an attempt.
        """
        return ask_report(self._ring(name)) or last_report(self._ring(name))

    def retire_members(self, name: str, gpus: Collection[tuple[str, int]], reason: str) -> bool:
        """Remove the members on some GPUs from the ring of an attempt, and return whether it continues without them.

        Raises:
            BackendError: If that is no name of an attempt, or its coordinator does not answer.
        """
        members = {member: reason for member, place in enumerate(members_in(self._ring(name))) if place in gpus}
        try:
            return retire(self._ring(name), members)
        except TimeoutError as error:
            raise BackendError(f"{name}: {error}") from error

    def connect_to_ring(self, name: str, wake: Callable[[], object]) -> RingClient:
        """Return a connection to the coordinator of a ring.

        Raises:
            BackendError: If that is no name of an attempt.
        """
        ring = self._ring(name)
        return RingClient(ring, wake, ring / PLACES)

    def ring_places(self, name: str) -> list[MemberPlace] | None:
        """Return all GPUs that the ring of an attempt was ever given, by rank; None if that is not known yet.

        Raises:
            BackendError: If that is no name of an attempt.
        """
        found = places_in(self._ring(name))
        return None if found is None else [MemberPlace(*row) for row in found]

    def add_to_ring(self, name: str, rank: int, node: str, gpu: int) -> None:
        """Add a GPU to a ring, which starts a member there; again, this does nothing.

        Raises:
            BackendError: If the request cannot be stored, there is no such ring, or the rank is another GPU's.
        """
        with as_backend_error(name), self._folders.open(name) as folder:
            content = json.dumps([[node, gpu]]).encode()
            if folder is None:
                raise BackendError(f"{name} does not exist, so its ring cannot have GPU {gpu} of {node}")
            try:
                ring = open_folder(RING, inside=folder)
            except FileNotFoundError as error:
                raise BackendError(f"{name} has no ring") from error
            try:
                if not write_first(ring, add_name(rank), content):
                    known = read_whole(ring, add_name(rank), _PLACE_BYTES)
                    if known != content:
                        raise BackendError(f"rank {rank} of {name} is on {known.decode(errors='replace')}")
            finally:
                os.close(ring)

    def _ring(self, name: str) -> Path:
        """Return the folder of an attempt's ring.

        Raises:
            BackendError: If that is no name of an attempt, or a link lies in its place: it may lead to another's ring.
        """
        path = self._folders.path(name)
        if path.is_symlink():
            raise BackendError(f"the folder of {name} is a link")
        return path / RING

    def launched(self) -> dict[str, tuple[Attempt, Placement]]:
        """Return all attempts that were launched and not forgotten, with their GPUs, by name.

        Raises:
            BackendError: If one of them cannot be read.
        """
        return launched_in(self._folders)

    def forget(self, name: str) -> None:
        """Delete what an attempt that ended left here, except its logs and the proof that it ended.

        Raises:
            BackendError: If its processes are not proven gone, or something cannot be deleted.
        """
        if not self.released(name):
            raise BackendError(f"{name} cannot be forgotten: its processes are not proven gone")
        with as_backend_error(name), self._folders.open(name) as folder:
            if folder is not None:
                # Without an exit marker it never began: a late launch must find that it was cancelled.
                kept = {"exit.json"} if is_there(folder, "exit.json") else {"started.json", "cancel.json"}
                delete_but(folder, kept)


def _has_begun(folder: int, name: str, content: bytes) -> bool:
    """Return whether an attempt has started or ended.

    Raises:
        BackendError: If its name was launched with something else to run.
    """
    if is_there(folder, "spec.json") and read_whole(folder, "spec.json", SPEC_BYTES) != content:
        raise BackendError(f"{name} was launched before with another command or placement")
    return is_there(folder, "started.json") or is_there(folder, "exit.json")


def _end_unless_started(folder: int, name: str) -> None:
    """Write the exit marker of a cancelled attempt that has no supervisor to do so."""
    if not is_there(folder, "spec.json"):
        return
    lock = os.open("lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not is_there(folder, "started.json") and not is_there(folder, "exit.json"):
            write_exit(folder, name, "cancelled", 0.0, [])
    except BlockingIOError:
        pass  # A supervisor lives, and will find the request.
    finally:
        os.close(lock)
