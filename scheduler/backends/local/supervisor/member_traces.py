"""What is left of a member of a ring while others live: its processes are found by their traces, and killed.

Only once none is found may its GPU be another job's. Standard library only.
"""

import os
from collections.abc import Collection
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


def kill_members(traces: MemberTraces, others: Others) -> bool:
    """Kill what is left of members, and say whether nothing was found, nor an orphan that may be theirs.

    An orphan is a child of the supervisor that nobody can tell whose it is: it has left its session and closed its log.
    """
    everyone = [process for process in living() if process.uid == os.getuid()]
    pids = {process.pid for process in everyone}
    left = _left_of(traces, others, everyone, pids)
    for process in left:
        kill(process)
    return not left and not any(_is_unknown(process, others) for process in everyone)


def _left_of(traces: MemberTraces, others: Others, everyone: list[Process], pids: Collection[int]) -> list[Process]:
    spared = {others.host, others.supervisor, *others.tools}
    log = _identity(traces.log)
    # The number of a session goes to nobody else while a process is in it; a leader that lives is a stranger.
    sessions = {it for it in traces.sessions if it not in pids}
    found = {
        it.pid for it in everyone
        if it.session in sessions or _is_member(it, traces) or (log is not None and log in _outputs(it))
    }  # fmt: skip
    found -= spared
    before = 0
    while before != len(found):
        before = len(found)
        found |= {it.pid for it in everyone if it.parent in found}
    return [it for it in everyone if it.pid in found]


def _is_member(process: Process, traces: MemberTraces) -> bool:
    told = environment(process, _ATTEMPT, _MEMBER)
    member = told.get(_MEMBER, b"")
    return told.get(_ATTEMPT) == traces.attempt.encode() and member.isdigit() and int(member) in traces.members


def _is_unknown(process: Process, others: Others) -> bool:
    if process.parent != others.supervisor or process.pid == others.host:
        return False
    return process.session not in others.sessions and not environment(process, _MEMBER)


def _outputs(process: Process) -> set[tuple[int, int] | None]:
    return {_identity(Path(f"/proc/{process.pid}/fd/{descriptor}")) for descriptor in (1, 2)}


def _identity(path: Path) -> tuple[int, int] | None:
    """Return what names a file: device and number; None if it is not there or may not be seen."""
    with suppress(OSError):
        seen = path.stat()
        return seen.st_dev, seen.st_ino
    return None
