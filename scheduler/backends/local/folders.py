"""The folders of attempts, as the scheduler uses them: it writes what is to be run, and reads what they report.

- `write_spec`, `launched_attempts`: what is to be run.
- `read_marker`: the markers of supervisors, read strictly.
- `read_rank_log`, `read_progress`, `read_step_lines`: what ranks write, in files that a job can replace by anything.
"""

import errno
import json
import logging
import math
import os
import re
import reprlib
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Annotated, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from ....cluster.files.durable import is_there, make_folder, open_file, open_folder, read_whole, write_first
from ....cluster.files.errors import BackendError, error_line
from ....cluster.model.placement import Placement, Share
from ...model.job import is_job_id
from ...model.states import RankEnd
from ..protocol import Attempt, NoLogError, RefusedError, StepLines, refuse_bad_placement, refuse_bad_texts
from .ranks import (
    MAX_SPEC_BYTES,
    SPEC_FILE,
    RankPlace,
    Spec,
    encode_spec,
    log_name,
    read_log,
    read_spec,
    saved_name,
    steps_name,
)

log = logging.getLogger(__name__)

_ATTEMPT_FOLDER = re.compile(r"ls-[a-z0-9-]{1,60}")
_ID_BYTES = 64
NO_FILE_OF_OURS = (  # errors
    errno.EFBIG, errno.ELOOP, errno.EINVAL, errno.ENXIO,  # too large, a link, a pipe, a socket
    errno.EACCES, errno.EPERM,  # unreadable, as a job can make it
)  # fmt: skip
_ATTEMPT_NAME = re.compile(r"ls-(.+)-([1-9][0-9]{0,8})")
_MAX_NODE_LETTERS = 200  # of a node's name, as in a cluster file
_MAX_GPU = 10**9
_MAX_MARKER_BYTES = 1 << 20
_Whole = Annotated[int, Field(ge=0)]
UnixTime = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]
# Of a rank: its number, exit code, signal and time.
EndRecord = tuple[_Whole, Annotated[int, Field(ge=0, le=255)], Annotated[int, Field(ge=0, le=127)], UnixTime]
_MAX_RANKS = 1 << 16
_NO_FILE = (errno.ELOOP, errno.EINVAL, errno.ENXIO)  # a link, a folder or a pipe, a socket
_MAX_PROGRESS_BYTES = 4096
_MAX_KEYS = 16
MAX_NEW_BYTES = 8 << 10  # read of a file at once; older lines are skipped
FIRST_BYTES = 2 << 10  # the first time: a scheduler that starts with many jobs has many files to read


@contextmanager
def opened_folder(path: str, inside: int | None = None) -> Iterator[int]:
    """Open a folder, of which `open_folder` returns the descriptor, and close it at the end.

    Raises:
        OSError: If it cannot be opened.
    """
    folder = open_folder(path, inside=inside)
    try:
        yield folder
    finally:
        os.close(folder)


class AttemptFolders:
    """The folders of all attempts, by their names, in one that is created if missing."""

    def __init__(self, folder: Path) -> None:
        self._attempts = folder.absolute() / "attempts"
        self._attempts.mkdir(parents=True, exist_ok=True)

    def identity(self) -> str:
        """Return a random id of these folders, which stays when they are moved; created with them.

        Raises:
            BackendError: If it cannot be read or written.
        """
        with as_backend_error("attempts.id"), opened_folder(str(self._attempts.parent)) as folder:
            write_first(folder, "attempts.id", os.urandom(8).hex().encode())
            return read_whole(folder, "attempts.id", _ID_BYTES).decode("ascii").strip()

    def path(self, name: str) -> Path:
        """Return where the folder of an attempt is.

        Raises:
            BackendError: If that is no name of an attempt.
        """
        if not _ATTEMPT_FOLDER.fullmatch(name):
            raise BackendError(f"{name!r} is no name of an attempt: ls-, then 1 to 60 of a-z, 0-9 and -")
        return self._attempts / name

    def attempts_with(self, file: str) -> list[str]:
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
        with (
            opened_folder(str(self._attempts)) as attempts,
            opened_folder(name, attempts) if is_there(attempts, name) else nullcontext() as folder,
        ):
            yield folder

    @contextmanager
    def open_or_create(self, name: str) -> Iterator[int]:
        """Open an attempt's folder, created if missing.

        Raises:
            OSError: If it cannot be made.
        """
        with opened_folder(str(self._attempts)) as attempts:
            make_folder(attempts, name)
            with opened_folder(name, attempts) as folder:
                yield folder


def _may_hold(path: str, file: str) -> bool:
    """Return whether a folder holds a file, also where its permissions hide that: a job can set them."""
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


def delete_all_but(folder: int, kept: Collection[str]) -> None:
    """Delete everything in a folder except logs and the markers without which its attempt could start a second time.

    Raises:
        OSError: If something cannot be deleted.
    """
    with os.scandir(folder) as entries:
        found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    for name, is_folder in found:
        if name in kept:
            continue
        if is_folder:
            shutil.rmtree(name, dir_fd=folder)
        elif not re.fullmatch(r"rank-\d+\.log", name):
            os.unlink(name, dir_fd=folder)


def write_spec(
    folders: AttemptFolders, attempt: Attempt, placement: Placement, nodes: Mapping[str, int], begun: Collection[str]
) -> tuple[Spec, bool] | None:
    """Write what is to be run.

    Args:
        folders: Of all attempts.
        attempt: The attempt.
        placement: GPUs for it.
        nodes: GPUs of each node.
        begun: Names of the markers either of which an attempt has that has begun.

    Returns:
        The spec, and whether it was written for the first time; None if the attempt has begun.

    Raises:
        CannotHonourError: If there are no such GPUs.
        RefusedError: If its program or folder does not exist.
        BackendError: If it cannot be written, or another attempt has this name.
    """
    name, work = attempt.name, folders.path(attempt.name) / "work"
    spec = spec_of(attempt, placement, nodes, work)
    with as_backend_error(name):
        with folders.open(name) as folder:
            if folder is not None and _has_begun(folder, name, encode_spec(spec), begun):
                return None
        _refuse_what_cannot_start(spec, makes_folder=not attempt.folder)
        with folders.open_or_create(name) as folder:
            if not attempt.folder:
                work.mkdir(exist_ok=True)
            is_first = write_first(folder, SPEC_FILE, encode_spec(spec))
            if not is_first and _has_begun(folder, name, encode_spec(spec), begun):
                return None
    return spec, is_first


def _has_begun(folder: int, name: str, content: bytes, begun: Collection[str]) -> bool:
    """Return whether an attempt has begun; refuse one whose name was launched with something else to run."""
    if is_there(folder, SPEC_FILE) and read_whole(folder, SPEC_FILE, MAX_SPEC_BYTES) != content:
        raise BackendError(f"{name} was launched before with another command or placement")
    return any(is_there(folder, marker) for marker in begun)


def spec_of(attempt: Attempt, placement: Placement, nodes: Mapping[str, int], own_folder: Path) -> Spec:
    """Return what a supervisor is to run.

    Raises:
        CannotHonourError: If there are no such GPUs, or one is named twice.
        RefusedError: If a text of it cannot be passed to a program.
    """
    refuse_bad_placement(attempt, placement, nodes)
    refuse_bad_texts(attempt)
    return Spec(
        attempt.name,
        attempt.job,
        attempt.number,
        attempt.command,
        attempt.folder or str(own_folder),
        # Unbuffered: else what a program in Python prints is seen late, and is lost when it is killed.
        {"PATH": os.defpath, "PYTHONUNBUFFERED": "1", **attempt.environment},
        attempt.grace_s,
        None if attempt.limit_s == float("inf") else attempt.limit_s,
        tuple(RankPlace(share.node, gpu) for share in placement for gpu in share.gpus),
        attempt.seats,
        attempt.backups,
        attempt.visible_gpus,
    )


def _refuse_what_cannot_start(spec: Spec, *, makes_folder: bool) -> None:
    """Refuse an attempt that would certainly fail at its start."""
    folder = Path(spec.folder)
    if not makes_folder and not folder.is_absolute():
        raise RefusedError(f"{spec.attempt}: {spec.folder!r} is not an absolute path")
    if not makes_folder and not folder.is_dir():
        raise RefusedError(f"{spec.attempt}: folder {spec.folder!r} does not exist on this machine")
    program = spec.command[0]
    path = str(folder / program) if "/" in program else program
    if shutil.which(path, path=spec.environment["PATH"]) is None:
        raise RefusedError(f"{spec.attempt}: no program {program!r} in {folder} or on its PATH")


def launched_attempts(folders: AttemptFolders) -> dict[str, tuple[Attempt, Placement]]:
    """Return the attempts that were launched and not forgotten, with their GPUs, by name.

    Of one whose file is damaged, which is logged, only the job and number in its name are known, and no GPUs.

    Raises:
        BackendError: If one of them cannot be read.
    """
    found: dict[str, tuple[Attempt, Placement]] = {}
    for name in folders.attempts_with(SPEC_FILE):
        with as_backend_error(name):
            try:
                spec = _read_own_spec(folders, name)
                if spec is not None:
                    found[name] = (_attempt_of(spec), _placement_of(spec))
            except (ValueError, OSError) as error:
                if isinstance(error, OSError) and error.errno not in NO_FILE_OF_OURS:
                    raise
                log.error("%s: its %s cannot be read: %s", name, SPEC_FILE, error_line(error))
                found[name] = (_attempt_by_name(name), ())
    return found


def _read_own_spec(folders: AttemptFolders, name: str) -> Spec | None:
    """Return what an attempt is to run, None if it has just been forgotten."""
    with folders.open(name) as folder:
        if folder is None or not is_there(folder, SPEC_FILE):
            return None
        return _checked_spec(read_spec(folder), name)


def _checked_spec(spec: Spec, name: str) -> Spec:
    """Return what was read; refuse what does not belong to this attempt, or does not name its GPUs."""
    job, number = _parse_attempt_name(name)
    is_its_own = (spec.attempt, spec.job, spec.number) == (name, job, number) and type(spec.number) is int
    if not is_its_own or not is_job_id(job):
        found = map(reprlib.repr, (spec.attempt, spec.job, spec.number))
        raise ValueError("it is of attempt {}, job {}, number {}".format(*found))
    places = {(rank.node, rank.gpu) for rank in spec.ranks if _is_valid_place(rank)}
    if not places or len(places) < len(spec.ranks):
        raise ValueError("it does not name the GPUs of its ranks")
    return spec


def _is_valid_place(rank: RankPlace) -> bool:
    """Return whether a rank has a node and a GPU; the node's name must be printable."""
    is_node = isinstance(rank.node, str) and 0 < len(rank.node) <= _MAX_NODE_LETTERS and rank.node.isprintable()
    return is_node and type(rank.gpu) is int and 0 <= rank.gpu < _MAX_GPU


def _parse_attempt_name(name: str) -> tuple[str, int]:
    """Return the job and the number in the name of an attempt, of no job if it has none."""
    found = _ATTEMPT_NAME.fullmatch(name)
    return (found[1], int(found[2])) if found else ("", 0)


def _attempt_by_name(name: str) -> Attempt:
    """Return what is known of an attempt by its name alone."""
    return Attempt(name, *_parse_attempt_name(name), command=(), folder="", environment={})


def _attempt_of(spec: Spec) -> Attempt:
    limit_s = float("inf") if spec.limit_s is None else spec.limit_s
    return Attempt(
        spec.attempt, spec.job, spec.number, spec.command, spec.folder, spec.environment, spec.grace_s, limit_s,
        seats=spec.seats, backups=spec.backups, visible_gpus=spec.visible_gpus,
    )  # fmt: skip


def _placement_of(spec: Spec) -> Placement:
    nodes: dict[str, list[int]] = {}
    for rank in spec.ranks:
        nodes.setdefault(rank.node, []).append(rank.gpu)
    return tuple(Share(node, tuple(sorted(gpus))) for node, gpus in nodes.items())


class Marker(BaseModel):
    """A file with facts about an attempt."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
    file_name: ClassVar[str]

    attempt: str


class StartedMarker(Marker):
    """The supervisor of an attempt, and its guard."""

    file_name = "started.json"

    pid: Annotated[int, Field(gt=0)]
    start_ticks: _Whole
    boot: str
    session: _Whole
    guard: tuple[_Whole, _Whole] = (0, 0)  # pid and start; a pid of 0 for none


class RanksMarker(Marker):
    """The processes of an attempt's ranks: pid, which is their group's number too, and start."""

    file_name = "ranks.json"

    started_s: UnixTime
    ranks: tuple[tuple[Annotated[int, Field(gt=0)], _Whole], ...]
    cgroup: str = ""  # path of their control group, "" for none


class EndsMarker(Marker):
    """Ranks that ended while others run: rank, exit code, signal, Unix time."""

    file_name = "ends.json"

    ends: tuple[EndRecord, ...]


class ExitMarker(Marker):
    """How an attempt ended, and its ranks."""

    file_name = "exit.json"

    ends: tuple[EndRecord, ...]
    boot: str
    reason: str
    started_s: UnixTime


MarkerT = TypeVar("MarkerT", bound=Marker)


def read_marker(folder: int, attempt: str, kind: type[MarkerT]) -> MarkerT | None:
    """Return a marker of an attempt, None if it does not exist.

    Raises:
        OSError: If it cannot be read.
        ValueError: If it is no such marker, or another attempt's.
    """
    name = kind.file_name
    try:
        content = read_whole(folder, name, _MAX_MARKER_BYTES)
    except FileNotFoundError:
        return None
    marker = kind.model_validate_json(content)
    if marker.attempt != attempt:
        raise ValueError(f"{name} is of attempt {marker.attempt!r}, not of {attempt!r}")
    return marker


def rank_ends(marker: EndsMarker | ExitMarker | None) -> tuple[RankEnd, ...]:
    """Return how ranks ended, in the order of their ends."""
    return () if marker is None else tuple(RankEnd(*end) for end in marker.ends)


def read_rank_log(
    folders: AttemptFolders,
    name: str,
    rank: int,
    offset: int,
    max_bytes: int,
    log_folders: Callable[[int], Iterable[str]],
) -> tuple[bytes, int]:
    """Return at most `max_bytes` of a rank's output from an offset on, and the offset after them.

    `log_folders` returns which folders inside that of the attempt, whose descriptor it gets, may hold the log.

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
        for path in log_folders(folder):
            with opened_folder(path, folder) as own:
                if is_there(own, log_name(rank)):
                    return _read_log_file(own, rank, offset, max_bytes)
        if rank >= _count_ranks(folder, name):
            raise NoLogError(f"{name} has no rank {rank}")
    return b"", offset


def _read_log_file(folder: int, rank: int, offset: int, max_bytes: int) -> tuple[bytes, int]:
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


def _count_ranks(folder: int, name: str) -> int:
    if not is_there(folder, SPEC_FILE):
        return 0
    try:
        return len(read_spec(folder).ranks)
    except ValueError as error:
        raise BackendError(f"{name}: its {SPEC_FILE} cannot be read: {error_line(error)}") from error


def read_progress(folder: int) -> dict[str, float]:
    """Return the finite numbers in an attempt's `progress.json`; none if it is not a small JSON object."""
    try:
        content = json.loads(read_whole(folder, "progress.json", _MAX_PROGRESS_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(content, dict) or len(content) > _MAX_KEYS:
        return {}
    return {key: number for key, value in content.items() if (number := _as_finite_float(value)) is not None}


def _as_finite_float(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def read_new_lines(folder: int, name: str, offset: int) -> tuple[bytes, int]:
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
    return [_read_rank_lines(folder, existing, rank, last) for rank, last in enumerate(before, first)]


def _read_rank_lines(folder: int, existing: frozenset[str], rank: int, last: StepLines) -> StepLines:
    steps, steps_end, saved, saved_end = b"", last.steps_end, b"", last.saved_end
    if (name := steps_name(rank)) in existing:
        steps, steps_end = read_new_lines(folder, name, steps_end)
    if (name := saved_name(rank)) in existing:
        saved, saved_end = read_new_lines(folder, name, saved_end)
    return StepLines(steps, saved, steps_end, saved_end)
