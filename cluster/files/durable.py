"""Files that are whole or not there, also after a crash, and room on disks to write them.

Files that are whole or not there, also after a crash; their folder is an open descriptor, so no link leads astray.

The supervisor uses it: standard library only.

Dataclasses of exactly known types as what JSON knows, and back.

The process that coordinates a ring imports this module: standard library only.
"""

import errno
import logging
import os
import stat
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints


def open_folder(path: str, *, inside: int | None = None) -> int:
    """Open a folder; the last part of its path is no symbolic link.

    Args:
        path: The folder.
        inside: Descriptor of the folder that a relative path begins at.

    Returns:
        Its descriptor, for the caller to close.

    Raises:
        OSError: If it is not there or cannot be opened.
    """
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=inside)


def write_whole(folder: int, name: str, content: bytes) -> None:
    """Write a file durably, in place of what had its name; a crash leaves the old or the new one.

    Raises:
        OSError: If it cannot be written; the old one stays.
    """
    draft = _draft(folder, name, content)
    try:
        os.rename(draft, name, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError:
        os.unlink(draft, dir_fd=folder)
        raise
    os.fsync(folder)


def write_first(folder: int, name: str, content: bytes) -> bool:
    """Write a file durably unless it is there already, and say whether it was written.

    Raises:
        OSError: If it cannot be written.
    """
    draft = _draft(folder, name, content)
    try:
        os.link(draft, name, src_dir_fd=folder, dst_dir_fd=folder)
    except FileExistsError:
        return False
    finally:
        os.unlink(draft, dir_fd=folder)
        os.fsync(folder)
    return True


def open_file(folder: int, name: str) -> int:
    """Open a file for reading, and nothing but a file: what a job put in its place is refused.

    Returns:
        Its descriptor, for the caller to close.

    Raises:
        OSError: If it is not there, or is a link, a pipe or the like.
    """
    # O_NONBLOCK: to open a pipe would wait for its writer.
    file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError(errno.EINVAL, "not a regular file", name)
    return file


def read_whole(folder: int, name: str, most_bytes: int) -> bytes:
    """Return what a file holds.

    Raises:
        OSError: If it is not there, cannot be read, or is larger than that.
    """
    file = open_file(folder, name)
    try:
        content = os.read(file, most_bytes + 1)
    finally:
        os.close(file)
    if len(content) > most_bytes:
        raise OSError(errno.EFBIG, f"larger than {most_bytes} bytes", name)
    return content


def is_there(folder: int | None, name: str) -> bool:
    """Say whether a folder has an entry of that name; without a folder the name is a path.

    Raises:
        OSError: If that cannot be told.
    """
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def make_folder(inside: int, name: str) -> None:
    """Make a folder durably unless it is there.

    Raises:
        OSError: If it cannot be made.
    """
    if not is_there(inside, name):
        with suppress(FileExistsError):  # Somebody else was faster.
            os.mkdir(name, 0o700, dir_fd=inside)
        os.fsync(inside)


def _draft(folder: int, name: str, content: bytes) -> str:
    draft = f".{name}.{os.urandom(8).hex()}"
    file = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=folder)
    try:
        while content:
            content = content[os.write(file, content) :]
        os.fsync(file)
    except OSError:
        os.unlink(draft, dir_fd=folder)
        raise
    finally:
        os.close(file)
    return draft


log = logging.getLogger(__name__)

RESERVE = "reserve"  # name of the file
RESERVE_BYTES = 32 << 20  # at most; ends and cancels of thousands of jobs


class Room:
    """Watches how much room is left where a scheduler writes. Any thread may use it.

    Args:
        folders: On the disks; the reserve is in the first.
        least_free_bytes: With less, no job is admitted and none is started; 0 for no bound.
    """

    def __init__(self, folders: Sequence[Path], least_free_bytes: int) -> None:
        self.least_free_bytes = least_free_bytes
        self._folders, self._reserve, self._one = folders, folders[0] / RESERVE, threading.Lock()
        self._reserve_bytes = min(RESERVE_BYTES, least_free_bytes // 4)
        self._was_low = False

    def free_bytes(self) -> int:
        """Return what is left on the fullest of the disks, without the reserve.

        Raises:
            OSError: If that cannot be seen.
        """
        found = [os.statvfs(folder) for folder in self._folders]
        return min(it.f_bavail * it.f_frsize for it in found)

    def is_low(self) -> bool:
        """Say whether there is too little for more jobs; what cannot be seen is not there."""
        try:
            return self.free_bytes() < self.least_free_bytes
        except OSError:
            return self.least_free_bytes > 0

    def against_starts(self) -> str:
        """Return why no job may start, "" if there is room for more."""
        return "nothing starts, as the disk that the scheduler writes to is nearly full" if self.is_low() else ""

    def look(self) -> None:
        """Give the reserve up where nothing else is left, and take it again where there is plenty.

        Raises:
            OSError: If nothing can be seen there.
        """
        free_bytes = self.free_bytes()
        self._tell(free_bytes)
        if free_bytes < self._reserve_bytes // 4:
            self.release()
        elif free_bytes >= self.least_free_bytes + self._reserve_bytes:
            self._take()

    def release(self) -> bool:
        """Give the reserve up, and say whether there was one."""
        with self._one:
            try:
                self._reserve.unlink()
            except OSError:
                return False
        log.error("the disk of %s is full: its reserve is given up, so that ends can be written", self._reserve.parent)
        return True

    def _take(self) -> None:
        with self._one:
            if not self._reserve_bytes or self._reserve.exists():
                return
            try:
                file = os.open(self._reserve, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
                try:
                    os.posix_fallocate(file, 0, self._reserve_bytes)
                finally:
                    os.close(file)
            except OSError as error:
                self._reserve.unlink(missing_ok=True)
                log.warning("%s: no reserve can be kept: %s", self._reserve, error)

    def _tell(self, free_bytes: int) -> None:
        is_low = free_bytes < self.least_free_bytes
        if is_low and not self._was_low:
            log.error(
                "%d bytes are left where the scheduler writes: until there are %d, no job is admitted and none starts",
                free_bytes, self.least_free_bytes,
            )  # fmt: skip
        elif self._was_low and not is_low:
            log.warning("there is room again: jobs are admitted and start")
        self._was_low = is_low


def as_json(it: Any) -> Any:
    """Return a dataclass, or a part of one, as what JSON knows."""
    if is_dataclass(it):
        return {one.name: as_json(getattr(it, one.name)) for one in fields(it)}
    return [as_json(one) for one in it] if isinstance(it, list) else it


def from_json(content: Any, kind: Any) -> Any:
    """Return what a dataclass or a part of one holds, of exactly the types that its class has.

    Raises:
        ValueError: If the types are others, or numbers are not of this world.
    """
    if isinstance(kind, type) and is_dataclass(kind):
        hints = _hints(kind)
        if not isinstance(content, dict) or not content.keys() <= hints.keys():
            raise ValueError(f"not the fields of {kind.__name__}: {str(content)[:80]}")
        try:
            return kind(**{name: from_json(value, hints[name]) for name, value in content.items()})
        except TypeError as error:
            raise ValueError(f"{kind.__name__}: {error}") from error
    if get_origin(kind) is list and isinstance(content, list):
        return [from_json(one, get_args(kind)[0]) for one in content]
    if get_origin(kind) is dict and isinstance(content, dict):
        return {name: from_json(one, get_args(kind)[1]) for name, one in content.items()}
    if kind is float and type(content) in (int, float) and abs(content) < 1e18:
        return float(content)
    if type(content) is kind and (kind is not int or abs(content) < 1 << 53):
        return content
    raise ValueError(f"not a {kind}: {str(content)[:80]}")


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)
