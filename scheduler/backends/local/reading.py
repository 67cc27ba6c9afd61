"""What is known of an attempt, from what its supervisor wrote and from the processes that live."""

from ...files.durable import is_there, read_whole
from ...files.last_error import last_error
from ...files.processes import Identity, is_alive
from ...model.run import EndedBy, Run, Status, read_reason
from .leftovers import Traces, kill_all
from .markers import Ends, Exited, Ranks, Started, rank_ends, read_marker
from .progress import read_progress
from .supervisor.logs import log_name

_KILL_WITHIN_S = 0.3  # what needs longer is looked at again with the next question
_NOTE_BYTES = 1 << 20


def read_status(folder: int, attempt: str, boot: str) -> Status:
    """Return what is known of an attempt; one whose supervisor was killed is ended for good first.

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
        # It may have written down the end since it was looked for.
        return _read_end(folder, attempt) or _read_loss(folder, started, boot)
    ranks = read_marker(folder, attempt, Ranks)
    if ranks is None:
        return Status(Run.PENDING)
    ends = rank_ends(read_marker(folder, attempt, Ends))
    return Status(Run.RUNNING, ends, started_s=ranks.started_s, progress=read_progress(folder))


def proven_gone(folder: int, attempt: str, boot: str) -> bool:
    """Say whether no process of an attempt is left, after killing what outlived its supervisor.

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
        # Accepted and neither started nor ended: it could start at any moment.
        may_start = ended is None and is_there(folder, "spec.json")
        return not may_start and kill_all(Traces(attempt, folder, -1, {}), _KILL_WITHIN_S)
    return not (_supervised(started, boot) or _guarded(started, boot)) and _kill_left(folder, started, boot)


def _read_end(folder: int, attempt: str) -> Status | None:
    ended = read_marker(folder, attempt, Exited)
    if ended is None:
        return None
    by, words = read_reason(ended.reason)
    ends = rank_ends(ended)
    failed = next((it for it in ends if it.code), None) if by in (EndedBy.NOBODY, EndedBy.RANK_FAILED) else None
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
        EndedBy.NOBODY,
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
    """Say whether the guard lives: to it comes what is left, and it ends when nothing is."""
    return is_alive(Identity(*started.guard, started.boot), boot)


def _kill_left(folder: int, started: Started, boot: str) -> bool:
    # After a restart of the machine the numbers of groups and sessions are other processes'.
    ranks = read_marker(folder, started.attempt, Ranks) if started.boot == boot else None
    groups = {} if ranks is None else dict(ranks.ranks)
    cgroup = "" if ranks is None else ranks.cgroup
    return kill_all(Traces(started.attempt, folder, started.session, groups, cgroup), _KILL_WITHIN_S)
