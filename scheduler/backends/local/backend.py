"""The local backend: jobs as processes of this machine, whose nodes and GPUs are slots with names."""

import fcntl
import json
import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from ....cluster.errors import BackendError
from ...layout import Layout
from ..protocol import Attempt, Capabilities, GpuSeen, NodeSeen, Placement, Run, Status
from .durable import is_there, open_file, open_folder, read_whole, write_first
from .launching import refuse_what_cannot_start, spawn_supervisor, spec_of
from .logs import log_name, read_log
from .processes import boot_id
from .reading import proven_gone, read_status
from .spec import decode, encode
from .supervision import SPEC_BYTES, write_exit

_NAME = re.compile(r"ls-[a-z0-9-]{1,60}")
_MOST_RANKS = 1 << 16


class LocalSettings(BaseModel):
    """The local backend has nothing to choose."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class LocalBackend:
    """Runs each attempt under a supervisor, a process of its own that goes on when the scheduler ends.

    All that is known of an attempt is in its folder, so that a fresh object finds the jobs of an earlier one.

    Args:
        folder: Where the attempts' folders are; made if need be.
        nodes: GPUs of each node, in cluster-file order.
    """

    Settings = LocalSettings
    capabilities = Capabilities(exact_gpus=True, atomic_gang=True, enforced=False)

    @classmethod
    def build(cls, settings: LocalSettings, folder: Path, layout: Layout) -> "LocalBackend":
        """Return the backend of a scheduler."""
        return cls(folder, layout.nodes)

    def __init__(self, folder: Path, nodes: Mapping[str, int]) -> None:
        self._attempts = folder.absolute() / "attempts"
        self._attempts.mkdir(parents=True, exist_ok=True)
        self._nodes = dict(nodes)

    def observe(self) -> tuple[NodeSeen, ...]:
        """Return all nodes; slots are always healthy."""
        now_s = time.time()
        return tuple(
            NodeSeen(node, tuple(GpuSeen(gpu) for gpu in range(gpus)), now_s, slots=True)
            for node, gpus in self._nodes.items()
        )

    def launch(self, attempt: Attempt, placement: Placement) -> None:
        """Start an attempt on exactly these GPUs; again, or after its end, it does nothing.

        Raises:
            CannotHonourError: If there are no such GPUs.
            RefusedError: If its program or folder is not there.
            BackendError: If it is not known whether it starts, or another attempt has this name.
        """
        path = self._path(attempt.name)
        spec = spec_of(attempt, placement, self._nodes, path / "work")
        with _told_as_backend_error(attempt.name):
            with self._folder(attempt.name) as folder:
                if folder is not None and _has_begun(folder, attempt.name, encode(spec)):
                    return
            refuse_what_cannot_start(spec, makes_folder=not attempt.folder)
            with self._made_folder(attempt.name) as folder:
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
        self._path(name)
        try:
            with self._folder(name) as folder:
                return Status(Run.ABSENT) if folder is None else read_status(folder, name, boot_id())
        except (OSError, ValueError) as error:
            return Status(Run.UNREACHABLE, reason=str(error))

    def statuses(self, names: tuple[str, ...]) -> dict[str, Status]:
        """Return what is known of many attempts."""
        return {name: self.status(name) for name in names}

    def cancel(self, name: str, reason: str) -> None:
        """Ask an attempt to stop, now or as soon as it starts; asked again, it does nothing.

        Raises:
            BackendError: If the wish could not be written down.
        """
        self._path(name)
        with _told_as_backend_error(name), self._made_folder(name) as folder:
            if is_there(folder, "exit.json"):
                return
            write_first(folder, "cancel.json", json.dumps({"attempt": name, "reason": reason}).encode())
            _end_unless_started(folder, name)

    def released(self, name: str) -> bool:
        """Say whether all processes of an attempt are proven gone, after killing what outlived its supervisor."""
        self._path(name)
        try:
            with self._folder(name) as folder:
                return folder is None or proven_gone(folder, name, boot_id())
        except (OSError, ValueError):
            return False

    def logs(self, name: str, rank: int, offset: int, most: int) -> tuple[bytes, int]:
        """Return at most so many bytes of a rank's output from an offset on, and the offset after them.

        Raises:
            BackendError: If there is no such rank, or its log is not a file.
            ValueError: If the offset or the size is negative.
        """
        self._path(name)
        if offset < 0 or most < 0:
            raise ValueError(f"offset {offset} and most {most} must not be negative")
        if not isinstance(rank, int) or not 0 <= rank < _MOST_RANKS:
            raise BackendError(f"{name}: no rank {rank!r}")
        with _told_as_backend_error(name), self._folder(name) as folder:
            if folder is None:
                raise BackendError(f"no attempt {name}")
            if not is_there(folder, log_name(rank)):
                if rank >= _count_ranks(folder):
                    raise BackendError(f"{name} has no rank {rank}")
                return b"", offset
            log = open_file(folder, log_name(rank))
            try:
                return read_log(log, offset, most)
            finally:
                os.close(log)

    def forget(self, name: str) -> None:
        """Delete what an attempt that ended left here, but for its logs and the proof that it ended.

        Raises:
            BackendError: If its processes are not proven gone, or something cannot be deleted.
        """
        if not self.released(name):
            raise BackendError(f"{name} cannot be forgotten: its processes are not proven gone")
        with _told_as_backend_error(name), self._folder(name) as folder:
            if folder is not None:
                _delete_but_proof(folder)

    def _path(self, name: str) -> Path:
        if not _NAME.fullmatch(name):
            raise BackendError(f"{name!r} is no name of an attempt: ls-, then 1 to 60 of a-z, 0-9 and -")
        return self._attempts / name

    @contextmanager
    def _folder(self, name: str) -> Iterator[int | None]:
        """Open an attempt's folder, which may not be there; that of all attempts has to be, else nothing is known."""
        attempts = open_folder(str(self._attempts))
        try:
            folder = open_folder(name, inside=attempts)
        except FileNotFoundError:
            folder = None
        finally:
            os.close(attempts)
        try:
            yield folder
        finally:
            if folder is not None:
                os.close(folder)

    @contextmanager
    def _made_folder(self, name: str) -> Iterator[int]:
        attempts = open_folder(str(self._attempts))
        try:
            if not is_there(attempts, name):
                os.mkdir(name, 0o700, dir_fd=attempts)
                os.fsync(attempts)
            folder = open_folder(name, inside=attempts)
        finally:
            os.close(attempts)
        try:
            yield folder
        finally:
            os.close(folder)


@contextmanager
def _told_as_backend_error(name: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise BackendError(f"{name}: {error}") from error


def _has_begun(folder: int, name: str, content: bytes) -> bool:
    """Say whether an attempt has started or ended.

    Raises:
        BackendError: If what was to be run under its name is something else.
    """
    if is_there(folder, "spec.json") and read_whole(folder, "spec.json", SPEC_BYTES) != content:
        raise BackendError(f"{name} was launched before with another command or placement")
    return is_there(folder, "started.json") or is_there(folder, "exit.json")


def _count_ranks(folder: int) -> int:
    if not is_there(folder, "spec.json"):
        return 0
    return len(decode(read_whole(folder, "spec.json", SPEC_BYTES)).ranks)


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


def _delete_but_proof(folder: int) -> None:
    """Delete all but logs and the marker without which the attempt could start a second time."""
    proof = "exit.json" if is_there(folder, "exit.json") else "started.json"
    with os.scandir(folder) as entries:
        found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    for name, is_folder in found:
        if is_folder:
            shutil.rmtree(name, dir_fd=folder)
        elif name != proof and not re.fullmatch(r"rank-\d+\.log", name):
            os.unlink(name, dir_fd=folder)
