"""Files that are whole or not there, also after a crash; their folder is an open descriptor, so no link leads astray.

The supervisor uses it: standard library only.
"""

import errno
import os
import stat
from contextlib import suppress


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
    draft = _write_draft(folder, name, content)
    try:
        os.rename(draft, name, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError:
        os.unlink(draft, dir_fd=folder)
        raise
    os.fsync(folder)


def write_first(folder: int, name: str, content: bytes) -> bool:
    """Write a file durably unless it is there already, and return whether it was written.

    Raises:
        OSError: If it cannot be written.
    """
    draft = _write_draft(folder, name, content)
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
    """Return whether a folder has an entry of that name; without a folder the name is a path.

    Raises:
        OSError: If that cannot be read.
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
        with suppress(FileExistsError):  # Another process was faster.
            os.mkdir(name, 0o700, dir_fd=inside)
        os.fsync(inside)


def _write_draft(folder: int, name: str, content: bytes) -> str:
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
