"""What a rank wrote, found by the name of its attempt."""

import errno
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from ...files.durable import is_there, open_file, open_folder, read_whole
from ..protocol import NoLogError
from .folders import Folders, told_as_backend_error
from .supervisor.logs import log_name, read_log
from .supervisor.spec import decode
from .supervisor.supervision import SPEC_BYTES

_MOST_RANKS = 1 << 16
_NO_FILE = (errno.ELOOP, errno.EINVAL, errno.ENXIO)  # a link, a folder or a pipe, a socket


def read_log_of(
    folders: Folders, name: str, rank: int, offset: int, most: int, places: Callable[[int], Iterable[str]]
) -> tuple[bytes, int]:
    """Return at most so many bytes of a rank's output from an offset on, and the offset after them.

    Args:
        folders: Of all attempts.
        name: The attempt's name.
        rank: The rank.
        offset: Where to begin.
        most: What to read at most.
        places: Which folders inside that of the attempt, whose descriptor it is given, may hold the log.

    Raises:
        NoLogError: If there is no such rank, or the job has put something else in the place of its log.
        BackendError: If it cannot be read.
        ValueError: If the offset or the size is negative.
    """
    folders.path(name)
    if offset < 0 or most < 0:
        raise ValueError(f"offset {offset} and most {most} must not be negative")
    if not isinstance(rank, int) or not 0 <= rank < _MOST_RANKS:
        raise NoLogError(f"{name}: no rank {rank!r}")
    with told_as_backend_error(name), folders.open(name) as folder:
        if folder is None:
            raise NoLogError(f"no attempt {name}")
        for place in places(folder):
            with opened(folder, place) as own:
                if is_there(own, log_name(rank)):
                    return _read(own, rank, offset, most)
        if rank >= _count_ranks(folder):
            raise NoLogError(f"{name} has no rank {rank}")
    return b"", offset


@contextmanager
def opened(folder: int, place: str) -> Iterator[int]:
    """Open a folder inside that of an attempt.

    Raises:
        OSError: If it cannot be opened.
    """
    own = open_folder(place, inside=folder)
    try:
        yield own
    finally:
        os.close(own)


def _read(folder: int, rank: int, offset: int, most: int) -> tuple[bytes, int]:
    try:
        log = open_file(folder, log_name(rank))
    except OSError as error:
        if error.errno not in _NO_FILE:
            raise
        raise NoLogError(f"the log of rank {rank} is no file any more: the job has replaced it") from error
    try:
        return read_log(log, offset, most)
    finally:
        os.close(log)


def _count_ranks(folder: int) -> int:
    if not is_there(folder, "spec.json"):
        return 0
    return len(decode(read_whole(folder, "spec.json", SPEC_BYTES)).ranks)
