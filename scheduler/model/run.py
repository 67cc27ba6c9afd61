"""How an attempt runs, or how it ended, as a backend sees it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Run(StrEnum):
    """What a backend knows of an attempt."""

    PENDING = "pending"  # accepted, no process yet
    RUNNING = "running"  # all ranks were started
    EXITED = "exited"  # all ranks have ended
    LOST = "lost"  # proven gone without a record of how it ended
    UNREACHABLE = "unreachable"  # nothing can be said at the moment
    ABSENT = "absent"  # it never heard of it


@dataclass(frozen=True, slots=True)
class RankEnd:
    """How one rank ended."""

    rank: int
    code: int  # exit code, 0 to 255; of a signal: 0
    signal: int  # 0 if none ended it
    ended_s: float  # Unix time


@dataclass(frozen=True, slots=True)
class Status:
    """What a backend says of an attempt."""

    run: Run
    ends: tuple[RankEnd, ...] = ()  # of the ranks that have ended, in the order of their ends
    # Who asked for the end: "", "cancelled", "time limit", "rank failed", or "out of memory" where that made it fail.
    # Of LOST: what was seen, after "node fault: " where the cluster did it. "refused: " and words if no program ran.
    reason: str = ""
    started_s: float = 0.0  # Unix time, 0 if not yet
    progress: Mapping[str, float] = field(default_factory=dict)  # what the job reports of itself


NODE_FAULT = "node fault: "  # begins the reason of a loss that was the cluster's doing; its words follow


REFUSED = "refused: "  # begins the reason of an end before any program ran, as there is none to run; its words follow
