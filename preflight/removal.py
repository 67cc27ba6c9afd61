"""Removal of a folder that a job had, of any depth and with any content."""

import errno
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

MAX_RETURNS = 10_000  # to the top, after another process has removed the folder that was being emptied


def remove_tree(path: Path) -> None:
    """Remove a file, a link (not its target), or a folder with all that is in it.

    The standard library's way calls itself for each folder in a folder, and fails a thousand deep. This one has two
    descriptors at a time, so that neither depth nor the length of paths has a limit. Several processes may remove the
    same folder.

    Raises:
        OSError: If something stays.
    """
    for _ in range(MAX_RETURNS):
        if not os.path.lexists(path):
            return
        try:
            _remove_entry(path)
        except FileNotFoundError:  # another process has removed the folder that was being emptied
            continue
        return
    raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), str(path))


_TO_PASS = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC  # of a folder that need not be readable


class _Level(NamedTuple):
    """A folder on the way to the one that is being emptied."""

    identity: tuple[int, int]  # device and inode
    folders: list[str]  # in it, to be removed; the last one is being emptied


def _remove_entry(path: Path) -> None:
    """Remove what is at a path.

    Raises:
        FileNotFoundError: If another process has removed it, or the folder that was being emptied.
        OSError: If something stays.
    """
    if not stat.S_ISDIR(path.lstat().st_mode):
        path.unlink()
        return
    current = os.open(path.parent, _TO_PASS)
    levels = [_Level(_identity(current), [path.name])]
    try:
        while levels:
            if levels[-1].folders:
                try:
                    inside = _open_with_rights(levels[-1].folders[-1], current)
                except FileNotFoundError:  # another process was faster
                    levels[-1].folders.pop()
                    continue
                os.close(current)
                current = inside
                levels.append(_Level(_identity(current), _unlink_files(current)))
            elif len(levels) > 1:
                above = os.open("..", _TO_PASS, dir_fd=current)
                os.close(current)
                current = above
                levels.pop()
                if _identity(current) != levels[-1].identity:
                    raise OSError(errno.EBUSY, "a folder was moved while it was removed", levels[-1].folders[-1])
                with suppress(FileNotFoundError):
                    os.rmdir(levels[-1].folders.pop(), dir_fd=current)
            else:
                levels.pop()
    finally:
        os.close(current)


def _identity(folder: int) -> tuple[int, int]:
    found = os.fstat(folder)
    return found.st_dev, found.st_ino


def _open_with_rights(name: str, inside: int) -> int:
    """Open a folder, after its owner got the rights to list and empty it; no link is followed."""
    place = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=inside)
    try:
        if os.fstat(place).st_mode & stat.S_IRWXU != stat.S_IRWXU:
            with suppress(PermissionError):  # another user's, which may be empty
                os.chmod(f"/proc/self/fd/{place}", stat.S_IRWXU)  # noqa: PTH101
        return os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=place)
    finally:
        os.close(place)


def _unlink_files(folder: int) -> list[str]:
    """Remove what is no folder, and return the names of folders."""
    with os.scandir(folder) as found:
        entries = list(found)
    for entry in entries:
        if not entry.is_dir(follow_symlinks=False):
            with suppress(FileNotFoundError):
                os.unlink(entry.name, dir_fd=folder)
    return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
