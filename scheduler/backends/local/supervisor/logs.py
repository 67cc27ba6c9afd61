"""The output of ranks: files that grow, hold back only their last part, and are read from an offset on.

The supervisor uses it: standard library only.
"""

import ctypes
import errno
import os

_KEEP_SIZE, _PUNCH_HOLE = 0x01, 0x02  # linux/falloc.h


def log_name(rank: int) -> str:
    """Return the name of a rank's log in the folder of its attempt."""
    return f"rank-{rank}.log"


def is_log(name: str) -> bool:
    """Say whether that is the name of a rank's log."""
    return name.startswith("rank-") and name.endswith(".log")


def open_log(folder: int, rank: int) -> int:
    """Open a rank's log for writing at its end, and return its descriptor.

    Raises:
        OSError: If it cannot be made.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(log_name(rank), flags, 0o600, dir_fd=folder)


def drop_beginning(log: int, keep_bytes: int) -> None:
    """Give back the disk space of all but the last bytes of a log that holds over twice as much.

    Offsets stay as they are: the beginning turns into a hole. A file system without holes keeps it all.

    Args:
        log: Descriptor of the log, open for writing.
        keep_bytes: What to keep.
    """
    seen = os.fstat(log)
    if seen.st_blocks * 512 <= 2 * keep_bytes:  # 512: the unit of st_blocks everywhere
        return
    libc = ctypes.CDLL(None, use_errno=True)
    libc.fallocate64.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    libc.fallocate64(log, _KEEP_SIZE | _PUNCH_HOLE, 0, seen.st_size - keep_bytes)


def read_log(log: int, offset: int, most_bytes: int) -> tuple[bytes, int]:
    """Return output from an offset on, past what was given back, and the offset after it.

    Args:
        log: Descriptor of the log, open for reading.
        offset: Where to begin; beyond the end there is nothing yet.
        most_bytes: What to read at most.

    Raises:
        OSError: If it cannot be read.
    """
    try:
        begin = os.lseek(log, offset, os.SEEK_DATA)
    except OSError as error:
        if error.errno == errno.ENXIO:
            return b"", offset
        raise
    content = os.pread(log, most_bytes, begin)
    return content, begin + len(content) if content else offset
