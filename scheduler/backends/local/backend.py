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
from ....ring.asking import RingDesk, ask_report, last_report, retire
from ....ring.wire import Report
from ...model.gpu_index import Layout
from ...model.states import Run, Status
from ..protocol import Attempt, Capabilities, GpuView, MemberPlace, NodeView, StepLines
from .folders import Folders, delete_but, read_log_of, read_told, told_as_backend_error
from .launching import refuse_what_cannot_start, remembered_in, spawn_supervisor, spec_of
from .ranks import encode
from .reading import proven_gone, read_status
from .ring_host import PLACES, RING, add_name, members_in, places_in
from .supervision import SPEC_BYTES, write_exit

_PLACE_BYTES = 4096


class LocalRings:
    """What the local backend offers of the protocol `Seats`; its methods say there what they do.

    Args:
        folders: Of the attempts.
    """

    def __init__(self, folders: Folders) -> None:
        self._folders = folders

    def _ring(self, name: str) -> Path:
        """Return the folder of an attempt's ring.

        Raises:
            BackendError: If that is no name of an attempt, or a link lies in its place: it may lead to another's ring.
        """
        path = self._folders.path(name)
        if path.is_symlink():
            raise BackendError(f"a link lies in the place of the folder of {name}")
        return path / RING

    def ring(self, name: str) -> Report | None:
        """Return how the ring of an attempt stands, or stood last if nobody answers; None of one that has none.

        Raises:
            BackendError: If that is no name of an attempt.
        """
        return ask_report(self._ring(name)) or last_report(self._ring(name))

    def retire(self, name: str, gpus: Collection[tuple[str, int]], reason: str) -> bool:
        """Let the members on some GPUs leave the ring of an attempt, and say whether it goes on without them.

        Raises:
            BackendError: If that is no name of an attempt, or its coordinator does not answer.
        """
        members = {it: reason for it, place in enumerate(members_in(self._ring(name))) if place in gpus}
        try:
            return retire(self._ring(name), members)
        except TimeoutError as error:
            raise BackendError(f"{name}: {error}") from error

    def desk(self, name: str, wake: Callable[[], object]) -> RingDesk:
        """Return a desk for the ring of an attempt.

        Raises:
            BackendError: If that is no name of an attempt.
        """
        ring = self._ring(name)
        return RingDesk(ring, wake, ring / PLACES)

    def places(self, name: str) -> list[MemberPlace] | None:
        """Return all GPUs that the ring of an attempt was ever given, by rank; None if that cannot be told yet.

        Raises:
            BackendError: If that is no name of an attempt.
        """
        found = places_in(self._ring(name))
        return None if found is None else [MemberPlace(*it) for it in found]

    def add(self, name: str, rank: int, node: str, gpu: int) -> None:
        """Let a ring have one GPU more; again, it does nothing.

        Raises:
            BackendError: If that cannot be written down, there is no such ring, or the rank is another GPU's.
        """
        with told_as_backend_error(name), self._folders.open(name) as folder:
            content = json.dumps([[node, gpu]]).encode()
            if folder is None:
                raise BackendError(f"{name} is not there, so its ring cannot have GPU {gpu} of {node}")
            inside = self._open_ring(folder, name)
            try:
                if not write_first(inside, add_name(rank), content):
                    known = read_whole(inside, add_name(rank), _PLACE_BYTES)
                    if known != content:
                        raise BackendError(f"rank {rank} of {name} is on {known.decode(errors='replace')}")
            finally:
                os.close(inside)

    def _open_ring(self, folder: int, name: str) -> int:
        """Open the folder of a ring.

        Raises:
            BackendError: If there is none.
        """
        try:
            return open_folder(RING, inside=folder)
        except FileNotFoundError as error:
            raise BackendError(f"{name} has no ring") from error


class LocalSettings(BaseModel):
    """The local backend has nothing to choose."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class LocalBackend:
    """Runs each attempt under a supervisor, a process of its own that goes on when the scheduler ends.

    All that is known of an attempt is in its folder, so that a fresh object finds the jobs of an earlier one.

    Args:
        folder: Where the attempts' folders are; made if need be.
        nodes: GPUs of each node, in cluster-file order.
        machine: On which they run; this one if left out.

    Raises:
        BackendError: If the folder cannot be written.
    """

    Settings = LocalSettings

    @classmethod
    def build(cls, settings: LocalSettings, folder: Path, layout: Layout) -> "LocalBackend":
        """Return the backend of a scheduler.

        Raises:
            InputError: If this machine does not show its processes, so that no job could be started or seen.
        """
        if not shows_this_process():
            fix = "mount it (mount -t proc proc /proc) before the scheduler starts"
            raise InputError("/proc does not show the processes of this machine, and jobs are followed by it", fix)
        return cls(folder, layout.nodes)

    def __init__(self, folder: Path, nodes: Mapping[str, int], *, machine: str | None = None) -> None:
        self._folders = Folders(folder)
        self._rings = LocalRings(self._folders)
        # Elsewhere its attempts would look as if they had never been, or as if the machine had been restarted.
        known_in = f"{machine or machine_id()}/{self._folders.identity()}"
        self.capabilities = Capabilities(exact_gpus=True, atomic_gang=True, enforced=False, known_in=known_in)
        self._nodes = dict(nodes)

    def observe(self) -> tuple[NodeView, ...]:
        """Return all nodes; slots are always healthy."""
        now_s = time.time()
        return tuple(
            NodeView(node, tuple(GpuView(gpu) for gpu in range(gpus)), now_s, slots=True)
            for node, gpus in self._nodes.items()
        )

    def launch(self, attempt: Attempt, placement: Placement) -> None:
        """Start an attempt on exactly these GPUs; again, or after its end, it does nothing.

        Raises:
            CannotHonourError: If there are no such GPUs.
            RefusedError: If its program or folder is not there.
            BackendError: If it is not known whether it starts, or another attempt has this name.
        """
        path = self._folders.path(attempt.name)
        spec = spec_of(attempt, placement, self._nodes, path / "work")
        with told_as_backend_error(attempt.name):
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
        """Ask an attempt to stop, now or as soon as it starts; asked again, it does nothing.

        Raises:
            BackendError: If the wish could not be written down.
        """
        self._folders.path(name)
        with told_as_backend_error(name), self._folders.make(name) as folder:
            if is_there(folder, "exit.json"):
                return
            write_first(folder, "cancel.json", json.dumps({"attempt": name, "reason": reason}).encode())
            _end_unless_started(folder, name)

    def released(self, name: str) -> bool:
        """Say whether all processes of an attempt are proven gone, after killing what outlived its supervisor."""
        self._folders.path(name)
        try:
            with self._folders.open(name) as folder:
                return folder is None or proven_gone(folder, name, boot_id())
        except (OSError, ValueError):
            return False

    def logs(self, name: str, rank: int, offset: int, most: int) -> tuple[bytes, int]:
        """Return at most so many bytes of a rank's output from an offset on, and the offset after them.

        Raises:
            BackendError: If there is no such rank, or its log is not a file.
            ValueError: If the offset or the size is negative.
        """
        return read_log_of(self._folders, name, rank, offset, most, lambda _: (".",))

    def step_lines(self, name: str, placement: Placement, before: Sequence[StepLines]) -> list[StepLines]:
        """Return what each rank has told of its steps and checkpoints since the last time.

        Raises:
            BackendError: If that cannot be seen.
        """
        self._folders.path(name)
        with told_as_backend_error(name), self._folders.open(name) as folder:
            return [] if folder is None else read_told(folder, 0, before)

    def ring(self, name: str) -> Report | None:
        """Return how the ring of an attempt stands, as `Seats` has it."""
        return self._rings.ring(name)

    def retire(self, name: str, gpus: Collection[tuple[str, int]], reason: str) -> bool:
        """Let the members on some GPUs leave the ring of an attempt, as `Seats` has it."""
        return self._rings.retire(name, gpus, reason)

    def desk(self, name: str, wake: Callable[[], object]) -> RingDesk:
        """Return a desk for the ring of an attempt, as `Seats` has it."""
        return self._rings.desk(name, wake)

    def places(self, name: str) -> list[MemberPlace] | None:
        """Return all GPUs that the ring of an attempt was ever given, as `Seats` has it."""
        return self._rings.places(name)

    def add(self, name: str, rank: int, node: str, gpu: int) -> None:
        """Let a ring have one GPU more, as `Seats` has it."""
        self._rings.add(name, rank, node, gpu)

    def remembered(self) -> dict[str, tuple[Attempt, Placement]]:
        """Return all attempts that were launched and not forgotten, with their GPUs, by name.

        Raises:
            BackendError: If one of them cannot be read.
        """
        return remembered_in(self._folders)

    def forget(self, name: str) -> None:
        """Delete what an attempt that ended left here, but for its logs and the proof that it ended.

        Raises:
            BackendError: If its processes are not proven gone, or something cannot be deleted.
        """
        if not self.released(name):
            raise BackendError(f"{name} cannot be forgotten: its processes are not proven gone")
        with told_as_backend_error(name), self._folders.open(name) as folder:
            if folder is not None:
                # Without an end it never began: a launch that comes late must find that it was cancelled.
                kept = {"exit.json"} if is_there(folder, "exit.json") else {"started.json", "cancel.json"}
                delete_but(folder, kept)


def _has_begun(folder: int, name: str, content: bytes) -> bool:
    """Say whether an attempt has started or ended.

    Raises:
        BackendError: If what was to be run under its name is something else.
    """
    if is_there(folder, "spec.json") and read_whole(folder, "spec.json", SPEC_BYTES) != content:
        raise BackendError(f"{name} was launched before with another command or placement")
    return is_there(folder, "started.json") or is_there(folder, "exit.json")


def _end_unless_started(folder: int, name: str) -> None:
    """Write down the end of a cancelled attempt that has no supervisor, in place of one."""
    if not is_there(folder, "spec.json"):
        return
    lock = os.open("lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not is_there(folder, "started.json") and not is_there(folder, "exit.json"):
            write_exit(folder, name, "cancelled", 0.0, [])
    except BlockingIOError:
        pass  # A supervisor lives, and will see the wish.
    finally:
        os.close(lock)
