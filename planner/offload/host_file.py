"""A file without a name, of a size for which there is room: the system removes it with the process that holds it.

Source: SPEC P4.
"""

import os
import tempfile
from contextlib import suppress
from pathlib import Path

PREFIX = "longshore-offload-"
MODE = 0o600


def reserved_file(folder: Path, size_bytes: int) -> int:
    """Return a new file, open to read and write, whose whole size is taken on the disk.

    Raises:
        OSError: If there is no room, or no such folder.
    """
    file = _nameless(folder)
    try:
        os.posix_fallocate(file, 0, size_bytes)
    except OSError:
        os.close(file)
        raise
    return file


def _nameless(folder: Path) -> int:
    sweep(folder)
    with suppress(OSError, AttributeError):  # not every file system has it, nor every system
        return os.open(folder, os.O_TMPFILE | os.O_RDWR, MODE)
    file, name = tempfile.mkstemp(prefix=PREFIX, dir=folder)
    Path(name).unlink(missing_ok=True)
    return file


def sweep(folder: Path) -> None:
    """Remove files of processes that were killed before they could take the name away.

    A file that another process has just made may go as well: it needs the open file alone, and removes the name next.
    """
    for path in folder.glob(f"{PREFIX}*"):
        with suppress(OSError):  # another user's, or gone
            path.unlink()
