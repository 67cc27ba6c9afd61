"""States of jobs and attempts, the changes between them that are legal, and how a backend sees an attempt.

Source: SPEC K7; the tables are those of docs/scheduler.md.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Desired(StrEnum):
    """What a user requests of a job; only the API writes it, so a request survives any crash."""

    RUN = "run"
    HOLD = "hold"
    CANCEL = "cancel"


class JobState(StrEnum):
    """State of a job."""

    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    HELD = "held"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


class AttemptState(StrEnum):
    """State of an attempt: one try to run a job."""

    RESERVED = "reserved"  # its GPUs are held
    LAUNCHED = "launched"  # the backend took it
    RUNNING = "running"  # all ranks were seen
    DRAINING = "draining"  # on its way out; its GPUs are still held
    RELEASED = "released"  # all its processes are proven ended, and its GPUs are free
    CLOSED = "closed"  # what it left at the backend is removed too


class Contact(StrEnum):
    """Whether an attempt can be reached; not being able to reach it is no failure of it."""

    OK = "ok"
    UNKNOWN = "unknown"


class AfterStop(StrEnum):
    """What becomes of a job once its attempt has been released."""

    RETRY = "retry"
    HUNG = "hung"  # tried again, as after an end whose cause is not known
    RELOCATE = "relocate"  # tried again on other GPUs, at no charge
    HOLD = "hold"
    SUCCEED = "succeed"
    FAIL = "fail"
    CANCEL = "cancel"


JOB_CHANGES: dict[JobState, dict[JobState, str]] = {
    JobState.QUEUED: {
        JobState.STARTING: "all its GPUs are reserved",
        JobState.CANCELLED: "cancelled before it started",
        JobState.HELD: "held on request",
        JobState.FAILED: "no GPUs of the cluster could ever hold it",
    },
    JobState.HELD: {JobState.QUEUED: "released on request", JobState.CANCELLED: "cancelled while held"},
    JobState.STARTING: {
        JobState.RUNNING: "all ranks are running",
        JobState.STOPPING: "could not be started, has ended, or is to stop",
    },
    JobState.RUNNING: {JobState.STOPPING: "has ended, or is to stop"},
    JobState.STOPPING: {
        JobState.QUEUED: "released, to be tried again",
        JobState.HELD: "released, held",
        JobState.SUCCEEDED: "released, all ranks ended with exit code 0",
        JobState.FAILED: "released, not to be tried again",
        JobState.CANCELLED: "released, cancelled",
    },
    JobState.SUCCEEDED: {},
    JobState.FAILED: {JobState.QUEUED: "its owner wants it tried again"},
    JobState.CANCELLED: {},
}

ATTEMPT_CHANGES: dict[AttemptState, dict[AttemptState, str]] = {
    AttemptState.RESERVED: {
        AttemptState.LAUNCHED: "the backend took it",
        AttemptState.DRAINING: "it is not to start any more, or the backend refused it",
    },
    AttemptState.LAUNCHED: {
        AttemptState.RUNNING: "all ranks are running",
        AttemptState.DRAINING: "it has ended, did not start in time, or is to stop",
    },
    AttemptState.RUNNING: {AttemptState.DRAINING: "it has ended, or is to stop"},
    AttemptState.DRAINING: {AttemptState.RELEASED: "all its processes are proven gone"},
    AttemptState.RELEASED: {AttemptState.CLOSED: "the backend has removed what it left"},
    AttemptState.CLOSED: {},
}

FINAL = frozenset({JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED})  # nothing leaves them by itself
OPEN_ATTEMPTS = frozenset(ATTEMPT_CHANGES) - {AttemptState.RELEASED, AttemptState.CLOSED}


class ProbeVerdict(StrEnum):
    """The result of probes of the agent of a node that does not report."""

    NONE = ""  # not probed, or the probes are inconclusive
    REACHED = "reached"  # a probe reaches the agent: only its reports do not arrive
    STUCK = "stuck"  # its machine accepts connections, its agent does not answer
    GONE = "fast"  # dead: all probes are refused, so the agent's process has exited
    SILENT = "slow"  # dead: it has been silent for long, and no probe gets through

    @property
    def is_dead(self) -> bool:
        """Whether the node counts as dead."""
        return self in (ProbeVerdict.GONE, ProbeVerdict.SILENT)


PASSED_ON = 128  # that is added to the number of a signal
PROCESS_SIGNALS = range(1, 32)  # not those for programs' own use, whose codes are more likely of another meaning


class Run(StrEnum):
    """What a backend knows of an attempt."""

    PENDING = "pending"  # accepted, no process yet
    RUNNING = "running"  # all ranks were started
    EXITED = "exited"  # all ranks have ended
    LOST = "lost"  # proven gone without a record of how it ended
    UNREACHABLE = "unreachable"  # its state is not known at the moment
    ABSENT = "absent"  # the backend does not know it


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
        return self.signal or (self.code - PASSED_ON if self.code - PASSED_ON in PROCESS_SIGNALS else 0)


class EndedBy(StrEnum):
    """What ended an attempt. The values are what supervisors and launchers write into their records."""

    NONE = ""  # its ranks ended by themselves, or it is not known
    CANCEL = "cancelled"  # on request of the scheduler
    TIME_LIMIT = "time limit"
    RANK_FAILED = "rank failed"  # one of its ranks did, and the others were stopped
    OUT_OF_MEMORY = "out of memory"  # a rank was killed for memory, and the others were stopped
    NODE_FAULT = "node fault"  # the cluster lost it
    REFUSED = "refused"  # no program ever ran, as there is none to run


@dataclass(frozen=True, slots=True)
class Status:
    """The status of an attempt at its backend."""

    run: Run
    ends: tuple[RankEnd, ...] = ()  # of the ranks that have ended, in the order of their ends
    by: EndedBy = EndedBy.NONE
    words: str = ""  # what was seen, for people; "" where `by` is enough
    started_s: float = 0.0  # Unix time, 0 if not yet
    progress: Mapping[str, float] = field(default_factory=dict)  # what the job reports of itself

    @property
    def reason(self) -> str:
        """What ended it and what was seen, as `reason_line` writes it."""
        return reason_line(self.by, self.words)


def reason_line(by: EndedBy, words: str) -> str:
    """Return what ended an attempt and what was seen in one line, such as "node fault: Ray lost node d"."""
    return ": ".join(part for part in (by.value, words) if part)


def parse_reason_line(text: str) -> tuple[EndedBy, str]:
    """Return what ended an attempt and what was seen, from a line as `reason_line` writes it."""
    by, _, words = text.partition(": ")
    return (EndedBy(by), words) if by in set(EndedBy) else (EndedBy.NONE, text)
