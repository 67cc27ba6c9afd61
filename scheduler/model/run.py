"""How an attempt runs, or how it ended, as a backend sees it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

PASSED_ON = 128  # that is added to the number of a signal
SIGNALS = range(1, 32)  # not those for programs' own use, whose codes are more likely of another meaning


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

    @property
    def last_signal(self) -> int:
        """The signal that ended it, or the program that it waited for and whose end it passed on; 0 if none did.

        A shell, and what begins with one, ends with 128 + the number of the signal that ended its last command.
        """
        return self.signal or (self.code - PASSED_ON if self.code - PASSED_ON in SIGNALS else 0)


class EndedBy(StrEnum):
    """Who ended an attempt. The values are what supervisors and launchers write into their records."""

    NOBODY = ""  # its ranks ended by themselves, or nobody knows
    CANCEL = "cancelled"  # the scheduler asked for it
    TIME_LIMIT = "time limit"
    RANK_FAILED = "rank failed"  # one of its ranks did, and the others were stopped
    OUT_OF_MEMORY = "out of memory"  # a rank was killed for memory, and the others were stopped
    NODE_FAULT = "node fault"  # the cluster lost it
    REFUSED = "refused"  # no program ever ran, as there is none to run


@dataclass(frozen=True, slots=True)
class Status:
    """What a backend says of an attempt."""

    run: Run
    ends: tuple[RankEnd, ...] = ()  # of the ranks that have ended, in the order of their ends
    by: EndedBy = EndedBy.NOBODY
    words: str = ""  # what was seen, for people; "" where `by` says all
    started_s: float = 0.0  # Unix time, 0 if not yet
    progress: Mapping[str, float] = field(default_factory=dict)  # what the job reports of itself

    @property
    def reason(self) -> str:
        """Who ended it and what was seen, as `reason_of` writes it."""
        return reason_of(self.by, self.words)


def reason_of(by: EndedBy, words: str) -> str:
    """Return who ended an attempt and what was seen in one line, such as "node fault: Ray lost node d"."""
    return ": ".join(part for part in (by.value, words) if part)


def read_reason(text: str) -> tuple[EndedBy, str]:
    """Return who ended an attempt and what was seen, from a line as `reason_of` writes it."""
    by, _, words = text.partition(": ")
    return (EndedBy(by), words) if by in set(EndedBy) else (EndedBy.NOBODY, text)
