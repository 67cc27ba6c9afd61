"""What an attempt's folder has of it, read strictly, and what follows from that."""

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Annotated, NamedTuple

from pydantic import Field

from ....cluster.files.durable import is_there
from ...model.states import EndedBy, RankEnd, Run, Status, read_reason
from ..local.folders import Ends, Exited, Marker, Ranks, opened, rank_ends, read_marker, read_progress
from ..local.ranks import SPEC_FILE
from .node import MISPLACED, STOPPED_BY_PREFIX, SWITCHED_OFF, read_stop

ALIVE_S = 30.0  # a supervisor updates its marker every 2 s; a file system may delay that


class ClaimMarker(Marker):
    """What runs an attempt, or why nothing may."""

    file_name = "claim.json"

    job: Annotated[int, Field(ge=0)]  # number of the job of Slurm or Ray, 0 if none may run it
    parts: Annotated[int, Field(ge=0)]  # nodes
    ranks: Annotated[int, Field(ge=0)]
    token: str
    address: str
    revoked: str  # why nothing may run it; "" of what does


class Gone(Marker):
    """The proof that nothing is left on a node where no exit marker was written."""

    file_name = "gone.json"

    proof: str


class PartRecord(NamedTuple):
    """What is known of an attempt on one of its nodes."""

    is_alive: bool = False  # its supervisor has updated its marker lately
    started_s: float = 0.0  # Unix time at which its ranks started, 0 if they have not
    ends: tuple[RankEnd, ...] = ()
    exited: bool = False  # its supervisor has written how they ended
    gone: bool = False  # it has not, and nothing is left
    switched_off: bool = False  # with its node
    reason: str = ""
    progress: Mapping[str, float] = {}

    @property
    def is_over(self) -> bool:
        """Whether nothing is left of it for certain."""
        return self.exited or self.gone


class AttemptRecords(NamedTuple):
    """What is known of an attempt from its folder alone."""

    is_launched: bool
    claim: ClaimMarker | None
    parts: tuple[PartRecord, ...]  # by node, once it is claimed
    stop: str = ""  # why all its ranks are stopped


def read_records(folder: int, attempt: str) -> AttemptRecords:
    """Return what is known of an attempt from its folder alone.

    Raises:
        OSError: If a marker cannot be read.
        ValueError: If a marker makes no sense.
    """
    claim = read_marker(folder, attempt, ClaimMarker)
    parts = () if claim is None else tuple(_read_part(folder, attempt, number) for number in range(claim.parts))
    stop = read_stop(folder) if is_there(folder, "stop.json") else ""
    return AttemptRecords(is_there(folder, SPEC_FILE), claim, parts, stop)


def status_of(records: AttemptRecords) -> Status | None:
    """Return the status that records prove; None if they prove none."""
    claim, parts = records.claim, records.parts
    if claim is None:
        return None if records.is_launched else Status(Run.ABSENT)
    if claim.revoked:
        by, words = read_reason(claim.revoked)
        return Status(Run.EXITED if by is EndedBy.CANCEL else Run.LOST, (), by, words)
    return _end_of(records, claim.ranks) if all(part.is_over for part in parts) else None


def status_of_running(parts: tuple[PartRecord, ...]) -> Status:
    """Return the status of an attempt whose supervisors run or are about to."""
    run = Run.RUNNING if all(part.started_s > 0.0 for part in parts) else Run.PENDING
    return Status(run, _ends(parts), started_s=_started_s(parts), progress=_progress(parts))


def is_released(records: AttemptRecords) -> bool:
    """Return whether all processes of an attempt are proven gone, and none can start."""
    if records.claim is None:
        return not records.is_launched
    return all(part.is_over for part in records.parts)


def _end_of(records: AttemptRecords, ranks: int) -> Status:
    parts = records.parts
    ends, started_s, progress = _ends(parts), _started_s(parts), _progress(parts)
    reasons = [part.reason for part in parts if part.reason]
    reason = next(iter(reasons), "")
    by, words = read_reason(reason)
    found = [read_reason(text) for text in (records.stop, *reasons)]
    fault = next((end for end in found if end[0] is EndedBy.NODE_FAULT), None)
    if fault is not None and (reasons or any(part.gone for part in parts)):
        by, words = fault  # also where the node is back, and has the exit marker of the ranks that were stopped for it
    elif any(part.gone and part.switched_off for part in parts):
        by, words = EndedBy.NODE_FAULT, "a node of it is switched off"
    elif any(part.gone for part in parts):
        by, words = EndedBy.NONE, "a supervisor was lost" + (f"; {reason}" if reason else "")
    elif 0 < len(ends) < ranks and not any(end.code or end.signal for end in ends):
        # These ended well, but they are not the whole job.
        by, words = EndedBy.NONE, f"only {len(ends)} of {ranks} ranks ran; {reason}"
    elif words.startswith(MISPLACED):
        by = EndedBy.NODE_FAULT  # The job did nothing wrong.
    elif not words.startswith(STOPPED_BY_PREFIX):
        return Status(Run.EXITED, ends, by, words, started_s, progress)
    # Ranks that got SIGTERM may have ended with 0: that is no proof that they were done.
    return Status(Run.LOST, ends, by, words, started_s, progress)


def _read_part(folder: int, attempt: str, number: int) -> PartRecord:
    if not is_there(folder, f"part-{number}"):
        return PartRecord()
    with opened(folder, f"part-{number}") as own:
        is_alive = _is_fresh(own)
        gone = read_marker(own, attempt, Gone)
        exited = read_marker(own, attempt, Exited)
        ranks = read_marker(own, attempt, Ranks)
        return PartRecord(
            is_alive,
            0.0 if ranks is None else ranks.started_s,
            rank_ends(exited or read_marker(own, attempt, Ends)),
            exited is not None,
            gone is not None and exited is None,
            gone is not None and gone.proof == SWITCHED_OFF,
            "" if exited is None else exited.reason,
            read_progress(own),
        )


def _is_fresh(own: int) -> bool:
    with suppress(FileNotFoundError):
        return time.time() - os.stat("started.json", dir_fd=own, follow_symlinks=False).st_mtime < ALIVE_S
    return False


def _ends(parts: tuple[PartRecord, ...]) -> tuple[RankEnd, ...]:
    return tuple(sorted((end for part in parts for end in part.ends), key=lambda end: end.ended_s))


def _started_s(parts: tuple[PartRecord, ...]) -> float:
    started = [part.started_s for part in parts]
    return max(started) if all(started) else 0.0


def _progress(parts: tuple[PartRecord, ...]) -> dict[str, float]:
    progress: dict[str, float] = {}
    for part in reversed(parts):  # The first node has precedence.
        progress |= part.progress
    return progress
