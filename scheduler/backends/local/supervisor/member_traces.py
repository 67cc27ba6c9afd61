"""What is left of a member of a ring while others live: its processes are found by their traces, and killed.

Only once none is found may its GPU be another job's. Standard library only.
"""

from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ....files.processes import Process, environment, kill, living

_ATTEMPT, _MEMBER = b"LONGSHORE_ATTEMPT", b"LONGSHORE_RING_MEMBER"


class MemberTraces(NamedTuple):
    """What the processes of a rank's members are known by."""

    attempt: str
    members: Collection[int]  # their numbers, in the environment of what they started
    sessions: Collection[int]  # that they led
    log: Path  # that they write to


class Others(NamedTuple):
    """Processes of the attempt that are not meant."""

    host: int  # pid of the process that starts the members
    supervisor: int  # pid of its parent, to whom orphans of all members come
    tools: Collection[int]  # pids of the coordinator and of the warm process, which may write to a member's log
    sessions: Collection[int]  # of members that live


class _Seen(NamedTuple):
    """A process at one look, read once for all ranks."""

    process: Process
    told: dict[bytes, bytes]  # what its environment says of attempt and member; nothing if it cannot be read
    outputs: frozenset[tuple[int, int] | None]


def kill_members(every: Sequence[MemberTraces], others: Others) -> list[bool]:
    """Kill what is left of members of some ranks, and say of each rank whether nothing was found that may be its own.

    Whose user a process is does not matter: a program may run as another user than the one that started it, and one
    that lets nobody look into it seems to be root's. An orphan is a child of the supervisor. One that nobody can tell
    whose it is has left its session, and has closed its log or cannot be read. While it lives no rank is free of it.
    """
    everyone = [_look_at(process) for process in living()]
    is_clear = not any(_is_unknown(it, others) for it in everyone)
    pids = {it.process.pid for it in everyone}
    found = [_left_of(traces, others, everyone, pids) for traces in every]
    for process in {process for left in found for process in left}:
        kill(process)
    return [is_clear and not left for left in found]


def _look_at(process: Process) -> _Seen:
    outputs = frozenset(_identity(Path(f"/proc/{process.pid}/fd/{descriptor}")) for descriptor in (1, 2))
    return _Seen(process, environment(process, _ATTEMPT, _MEMBER), outputs)


def _left_of(traces: MemberTraces, others: Others, everyone: list[_Seen], pids: Collection[int]) -> list[Process]:
    spared = {others.host, others.supervisor, *others.tools}
    log = _identity(traces.log)
    # The number of a session goes to nobody else while a process is in it; a leader that lives is a stranger.
    sessions = {it for it in traces.sessions if it not in pids}
    found = {
        it.process.pid for it in everyone
        if it.process.session in sessions or _is_member(it, traces) or (log is not None and log in it.outputs)
    }  # fmt: skip
    found -= spared
    before = 0
    while before != len(found):
        before = len(found)
        found |= {it.process.pid for it in everyone if it.process.parent in found}
    return [it.process for it in everyone if it.process.pid in found]


def _is_member(seen: _Seen, traces: MemberTraces) -> bool:
    member = seen.told.get(_MEMBER, b"")
    return seen.told.get(_ATTEMPT) == traces.attempt.encode() and member.isdigit() and int(member) in traces.members


def _is_unknown(seen: _Seen, others: Others) -> bool:
    process = seen.process
    if process.parent != others.supervisor or process.pid == others.host:
        return False
    return process.session not in others.sessions and _MEMBER not in seen.told


def _identity(path: Path) -> tuple[int, int] | None:
    """Return what names a file: device and number; None if it is not there or may not be seen."""
    with suppress(OSError):
        seen = path.stat()
        return seen.st_dev, seen.st_ino
    return None
