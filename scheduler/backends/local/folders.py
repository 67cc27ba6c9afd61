"""The folders of attempts: their files of output, progress, steps and checkpoints, which jobs may write to."""

import errno
import json
import math
import os
import re
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ....cluster.files.durable import is_there, make_folder, open_file, open_folder, read_whole, write_first
from ....cluster.files.errors import BackendError
from ..protocol import NoLogError, StepLines
from .ranks import decode, log_name, read_log, saved_name, steps_name
from .supervision import SPEC_BYTES

_ATTEMPT_FOLDER = re.compile(r"ls-[a-z0-9-]{1,60}")
_ID_BYTES = 64


class Folders:
    """The folders of all attempts, by their names.

    Args:
        folder: Where they are; created if missing.
    """

    def __init__(self, folder: Path) -> None:
        self._attempts = folder.absolute() / "attempts"
        self._attempts.mkdir(parents=True, exist_ok=True)

    def identity(self) -> str:
        """Return a random id of these folders, which stays when they are moved; created with them.

        Raises:
            BackendError: If it cannot be read or written.
        """
        with as_backend_error("attempts.id"):
            folder = open_folder(str(self._attempts.parent))
            try:
                write_first(folder, "attempts.id", os.urandom(8).hex().encode())
                return read_whole(folder, "attempts.id", _ID_BYTES).decode("ascii").strip()
            finally:
                os.close(folder)

    def path(self, name: str) -> Path:
        """Return where the folder of an attempt is.

        Raises:
            BackendError: If that is no name of an attempt.
        """
        if not _ATTEMPT_FOLDER.fullmatch(name):
            raise BackendError(f"{name!r} is no name of an attempt: ls-, then 1 to 60 of a-z, 0-9 and -")
        return self._attempts / name

    def names_with(self, file: str) -> list[str]:
        """Return the names of all attempts whose folder has a file, or may have it but cannot be read.

        None of the folders is opened.

        Raises:
            BackendError: If the folder of all attempts cannot be read.
        """
        with as_backend_error("attempts"), os.scandir(self._attempts) as entries:
            return sorted(
                entry.name for entry in entries
                if _ATTEMPT_FOLDER.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False)
                and _may_hold(entry.path, file)
            )  # fmt: skip

    @contextmanager
    def open(self, name: str) -> Iterator[int | None]:
        """Open an attempt's folder, None if it does not exist; the folder of all attempts must exist.

        Raises:
            OSError: If the folder of all attempts cannot be opened.
        """
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
    def make(self, name: str) -> Iterator[int]:
        """Open an attempt's folder, created if missing.

        Raises:
            OSError: If it cannot be made.
        """
        attempts = open_folder(str(self._attempts))
        try:
            make_folder(attempts, name)
            folder = open_folder(name, inside=attempts)
        finally:
            os.close(attempts)
        try:
            yield folder
        finally:
            os.close(folder)


def _may_hold(path: str, file: str) -> bool:
    """Return whether a folder holds a file, also where its permissions hide that: a job can set them.

    Raises:
        OSError: If that is not known.
    """
    try:
        return is_there(None, f"{path}/{file}")
    except PermissionError:
        return True


@contextmanager
def as_backend_error(name: str) -> Iterator[None]:
    """Turn errors of an attempt's files into errors of the backend.

    Raises:
        BackendError: In place of an OSError.
    """
    try:
        yield
    except OSError as error:
        raise BackendError(f"{name}: {error}") from error


def delete_but(folder: int, proofs: Collection[str]) -> None:
    """Delete everything in a folder except logs and the markers without which its attempt could start a second time.

    Args:
        folder: Descriptor of the folder.
        proofs: Names of those markers.

    Raises:
        OSError: If something cannot be deleted.
    """
    with os.scandir(folder) as entries:
        found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    for name, is_folder in found:
        if name in proofs:
            continue
        if is_folder:
            shutil.rmtree(name, dir_fd=folder)
        elif not re.fullmatch(r"rank-\d+\.log", name):
            os.unlink(name, dir_fd=folder)


_MAX_RANKS = 1 << 16
_NO_FILE = (errno.ELOOP, errno.EINVAL, errno.ENXIO)  # a link, a folder or a pipe, a socket


def read_log_of(
    folders: Folders, name: str, rank: int, offset: int, max_bytes: int, places: Callable[[int], Iterable[str]]
) -> tuple[bytes, int]:
    """Return at most `max_bytes` of a rank's output from an offset on, and the offset after them.

    Args:
        folders: Of all attempts.
        name: The attempt's name.
        rank: The rank.
        offset: Where to begin.
        max_bytes: What to read at most.
        places: Which folders inside that of the attempt, whose descriptor it is given, may hold the log.

    Raises:
        NoLogError: If there is no such rank, or the job has put something else in the place of its log.
        BackendError: If it cannot be read.
        ValueError: If the offset or the size is negative.
    """
    folders.path(name)
    if offset < 0 or max_bytes < 0:
        raise ValueError(f"offset {offset} and max_bytes {max_bytes} must not be negative")
    if not isinstance(rank, int) or not 0 <= rank < _MAX_RANKS:
        raise NoLogError(f"{name}: no rank {rank!r}")
    with as_backend_error(name), folders.open(name) as folder:
        if folder is None:
            raise NoLogError(f"no attempt {name}")
        for place in places(folder):
            with opened(folder, place) as own:
                if is_there(own, log_name(rank)):
                    return _read(own, rank, offset, max_bytes)
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


def _read(folder: int, rank: int, offset: int, max_bytes: int) -> tuple[bytes, int]:
    try:
        log = open_file(folder, log_name(rank))
    except OSError as error:
        if error.errno not in _NO_FILE:
            raise
        raise NoLogError(f"the log of rank {rank} is not a file: the job has replaced it") from error
    try:
        return read_log(log, offset, max_bytes)
    finally:
        os.close(log)


def _count_ranks(folder: int) -> int:
    if not is_there(folder, "spec.json"):
        return 0
    return len(decode(read_whole(folder, "spec.json", SPEC_BYTES)).ranks)


_MAX_PROGRESS_BYTES = 4096
_MAX_KEYS = 16


def read_progress(folder: int) -> dict[str, float]:
    """Return the finite numbers in an attempt's `progress.json`; none if it is not a small JSON object.

    Args:
        folder: Descriptor of the attempt's folder.
    """
    try:
        content = json.loads(read_whole(folder, "progress.json", _MAX_PROGRESS_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(content, dict) or len(content) > _MAX_KEYS:
        return {}
    return {key: number for key, value in content.items() if (number := _finite(value)) is not None}


def _finite(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


MAX_NEW_BYTES = 8 << 10  # read of a file at once; older lines are skipped
FIRST_BYTES = 2 << 10  # the first time: a scheduler that starts with many jobs has many files to read


def read_news(folder: int, name: str, offset: int) -> tuple[bytes, int]:
    """Return the whole lines of a file after an offset, only the last ones of many, and the offset after them.

    Args:
        folder: Descriptor of the folder that it is in.
        name: Of the file; no lines if it does not exist.
        offset: End of the known lines; all lines of a file that has become shorter are new.

    Raises:
        OSError: If it cannot be read, or is not a file.
    """
    try:
        file = open_file(folder, name)
    except FileNotFoundError:
        return b"", offset
    try:
        size = os.fstat(file).st_size
        if size == offset:
            return b"", offset
        start = offset if offset <= size else 0
        begin = max(start, size - (MAX_NEW_BYTES if offset else FIRST_BYTES))
        content = os.pread(file, size - begin, begin)
    finally:
        os.close(file)
    # After skipped bytes the first line is cut.
    first = content.find(b"\n") + 1 if begin > start else 0
    end = content.rfind(b"\n") + 1
    return content[first:end], begin + end


def read_step_lines(folder: int, first: int, before: Sequence[StepLines]) -> list[StepLines]:
    """Return what ranks of one folder have reported since the last call.

    Args:
        folder: Descriptor of the folder.
        first: The first of the ranks; the others follow it.
        before: The last return value, by rank.

    Raises:
        OSError: If a file cannot be read.
    """
    # One listing of the folder replaces two calls for each rank, most of which have reported nothing.
    existing = frozenset(os.listdir(folder))
    return [_read_rank(folder, existing, rank, last) for rank, last in enumerate(before, first)]


def _read_rank(folder: int, existing: frozenset[str], rank: int, last: StepLines) -> StepLines:
    steps, steps_end, saved, saved_end = b"", last.steps_end, b"", last.saved_end
    if (name := steps_name(rank)) in existing:
        steps, steps_end = read_news(folder, name, steps_end)
    if (name := saved_name(rank)) in existing:
        saved, saved_end = read_news(folder, name, saved_end)
    return StepLines(steps, saved, steps_end, saved_end)
