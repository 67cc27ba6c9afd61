"""What is known of an attempt: from its supervisor's files, from living processes, and from what they left behind.

An attempt whose supervisor is gone has its processes found by their traces, and killed. A process loses the trace of
its control group only by leaving the group on purpose; the others are lost more easily (docs/nodes.md).
"""

from typing import Annotated, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from ....cluster.files.durable import is_there, read_whole
from ....cluster.files.processes import Identity, is_alive, last_error
from ...model.states import EndedBy, RankEnd, Run, Status, read_reason
from .folders import read_progress
from .leftovers import Traces, kill_all
from .ranks import log_name

_MAX_MARKER_BYTES = 1 << 20

_Whole = Annotated[int, Field(ge=0)]
_Time = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]
_End = tuple[_Whole, Annotated[int, Field(ge=0, le=255)], Annotated[int, Field(ge=0, le=127)], _Time]


class Marker(BaseModel):
    """A file with facts about an attempt."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
    file_name: ClassVar[str]

    attempt: str


class Started(Marker):
    """The supervisor of an attempt, and its guard."""

    file_name = "started.json"

    pid: Annotated[int, Field(gt=0)]
    start_ticks: _Whole
    boot: str
    session: _Whole
    guard: tuple[_Whole, _Whole] = (0, 0)  # pid and start; a pid of 0 for none


class Ranks(Marker):
    """The processes of an attempt's ranks: pid, which is their group's number too, and start."""

    file_name = "ranks.json"

    started_s: _Time
    ranks: tuple[tuple[Annotated[int, Field(gt=0)], _Whole], ...]
    cgroup: str = ""  # path of their control group, "" for none


class Ends(Marker):
    """Ranks that ended while others run: rank, exit code, signal, Unix time."""

    file_name = "ends.json"

    ends: tuple[_End, ...]


class Exited(Marker):
    """How an attempt ended, and its ranks."""

    file_name = "exit.json"

    ends: tuple[_End, ...]
    boot: str
    reason: str
    started_s: _Time


MarkerT = TypeVar("MarkerT", bound=Marker)


def read_marker(folder: int, attempt: str, kind: type[MarkerT]) -> MarkerT | None:
    """Return a marker of an attempt, None if it does not exist.

    Args:
        folder: Descriptor of the attempt's folder.
        attempt: Its name, which the marker must have.
        kind: Which marker.

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


def rank_ends(marker: Ends | Exited | None) -> tuple[RankEnd, ...]:
    """Return how ranks ended, in the order of their ends."""
    return () if marker is None else tuple(RankEnd(*end) for end in marker.ends)


_KILL_WITHIN_S = 0.3  # what needs longer is tried again with the next call
_NOTE_BYTES = 1 << 20


def read_status(folder: int, attempt: str, boot: str) -> Status:
    """Return what is known of an attempt; first ends one whose supervisor was killed.

    Args:
        folder: Descriptor of the attempt's folder.
        attempt: Its name.
        boot: This machine's boot id.

    Raises:
        OSError: If a marker cannot be read.
        ValueError: If a marker makes no sense.
    """
    ended = _read_end(folder, attempt)
    if ended is not None:
        return ended
    started = read_marker(folder, attempt, Started)
    if started is None:
        return Status(Run.PENDING if is_there(folder, "spec.json") else Run.ABSENT)
    if not _supervised(started, boot):
        # It may have written the exit marker since that was read.
        return _read_end(folder, attempt) or _read_loss(folder, started, boot)
    ranks = read_marker(folder, attempt, Ranks)
    if ranks is None:
        return Status(Run.PENDING)
    ends = rank_ends(read_marker(folder, attempt, Ends))
    return Status(Run.RUNNING, ends, started_s=ranks.started_s, progress=read_progress(folder))


def proven_gone(folder: int, attempt: str, boot: str) -> bool:
    """Return whether no process of an attempt is left, after killing what outlived its supervisor.

    Args:
        folder: Descriptor of the attempt's folder.
        attempt: Its name.
        boot: This machine's boot id.

    Raises:
        OSError: If a marker cannot be read.
        ValueError: If a marker makes no sense.
    """
    ended = read_marker(folder, attempt, Exited)
    started = read_marker(folder, attempt, Started)
    if started is None:
        # Launched and neither started nor ended: it could start at any moment.
        may_start = ended is None and is_there(folder, "spec.json")
        return not may_start and kill_all(Traces(attempt, folder, -1, {}), _KILL_WITHIN_S)
    return not (_supervised(started, boot) or _guarded(started, boot)) and _kill_left(folder, started, boot)


def _read_end(folder: int, attempt: str) -> Status | None:
    ended = read_marker(folder, attempt, Exited)
    if ended is None:
        return None
    by, words = read_reason(ended.reason)
    ends = rank_ends(ended)
    failed = next((end for end in ends if end.code), None) if by in (EndedBy.NONE, EndedBy.RANK_FAILED) else None
    if failed is not None and not words:
        words = last_error(log_name(failed.rank), folder)
    return Status(Run.EXITED, ends, by, words, ended.started_s, read_progress(folder))


def _read_loss(folder: int, started: Started, boot: str) -> Status:
    if _guarded(started, boot) or not _kill_left(folder, started, boot):
        return Status(Run.UNREACHABLE, words="its supervisor is gone, and processes of it still live")
    ranks = read_marker(folder, started.attempt, Ranks)
    return Status(
        Run.LOST,
        rank_ends(read_marker(folder, started.attempt, Ends)),
        EndedBy.NONE,
        f"supervisor lost: {_why_lost(folder, started, boot)}",
        0.0 if ranks is None else ranks.started_s,
        read_progress(folder),
    )


def _why_lost(folder: int, started: Started, boot: str) -> str:
    if started.boot != boot:
        return "the machine was restarted"
    try:
        note = read_whole(folder, "supervisor.log", _NOTE_BYTES).decode(errors="replace").split("\n")
    except OSError:
        return "it was killed"
    return next((line for line in reversed(note) if line), "it failed")


def _supervised(started: Started, boot: str) -> bool:
    return is_alive(Identity(started.pid, started.start_ticks, started.boot), boot)


def _guarded(started: Started, boot: str) -> bool:
    """Return whether the guard lives: it adopts what is left, and ends when nothing is."""
    return is_alive(Identity(*started.guard, started.boot), boot)


def _kill_left(folder: int, started: Started, boot: str) -> bool:
    # After a restart of the machine the numbers of groups and sessions are other processes'.
    ranks = read_marker(folder, started.attempt, Ranks) if started.boot == boot else None
    groups = {} if ranks is None else dict(ranks.ranks)
    cgroup = "" if ranks is None else ranks.cgroup
    return kill_all(Traces(started.attempt, folder, started.session, groups, cgroup), _KILL_WITHIN_S)
