"""What the end of an attempt means, and whether the job is tried again.

Source: SPEC K5, K10, K11; docs/scheduler.md, Exit classes.
"""

from dataclasses import dataclass
from enum import StrEnum
from signal import SIGKILL

from ..model.job import NO_PROGRESS, Tries
from ..model.states import AfterStop, EndedBy, RankEnd, Run, Status

COLLATERAL_S = 5.0  # ranks' clocks may differ by so much: who ended first is not known more closely
TEMPFAIL = 75  # EX_TEMPFAIL of sysexits.h: the program asks to be run again
AMBIGUOUS_SIGNALS = frozenset({6, 7, 9, 11, 15})  # of a fault of the node as well as of the program
FIRST_RETRY_S, LONGEST_RETRY_S = 5.0, 300.0  # before a job is tried again, doubled with every try
STOPPED_BY = (EndedBy.CANCEL, EndedBy.NODE_FAULT)  # the job did not come to its end by itself


class ExitClass(StrEnum):
    """Whose doing an end was."""

    SUCCESS = "success"
    ASKED = "asked"
    INFRASTRUCTURE = "infrastructure"
    RESOURCE = "resource"
    LIMIT = "limit"
    AGAIN = "again"  # the program asked for it
    USER = "user"
    AMBIGUOUS = "ambiguous"


_BUDGETS = {
    ExitClass.INFRASTRUCTURE: "infra",
    ExitClass.RESOURCE: "resource",
    ExitClass.USER: "user",
    ExitClass.AGAIN: "asked",
    ExitClass.AMBIGUOUS: "ambiguous",
}
_BY_A_RANK = frozenset({ExitClass.RESOURCE, ExitClass.AGAIN, ExitClass.USER, ExitClass.AMBIGUOUS})
# What the scheduler stops to try it again: the class that this counts as, however the ranks took it.
_RETRIED: dict[AfterStop | None, ExitClass] = {
    AfterStop.RETRY: ExitClass.INFRASTRUCTURE,
    AfterStop.HUNG: ExitClass.AMBIGUOUS,
}


@dataclass(frozen=True, slots=True)
class AttemptOutcome:
    """What becomes of a job after an attempt."""

    after: AfterStop
    exit_class: ExitClass
    cause: str
    used: Tries
    no_progress: int  # attempts in a row that ended without progress
    wait_s: float = 0.0  # before it is tried again


def first_end(ends: tuple[RankEnd, ...]) -> RankEnd | None:
    """Return the end that explains the others: the first that was none of its own making, None if all ended with 0."""
    failed = [end for end in ends if end.code != 0 or end.signal != 0]
    if not failed:
        return None
    earliest_s = min(end.ended_s for end in failed)
    near = [end for end in failed if end.ended_s <= earliest_s + COLLATERAL_S]
    # Ranks that were only taken down by another die of a signal; one that ended by itself explains more.
    return min(near, key=lambda end: (end.last_signal != 0, end.ended_s, end.rank))


def rank_to_look_at(ends: tuple[RankEnd, ...], outcome: str) -> RankEnd | None:
    """Return the end of the rank that explains why an attempt failed, None if no rank made it fail.

    Args:
        ends: Of its ranks.
        outcome: Its exit class.
    """
    if outcome not in _BY_A_RANK:
        return None
    killed = _killed_for_memory(ends) if outcome == ExitClass.RESOURCE else None
    return killed or first_end(ends)


def _killed_for_memory(ends: tuple[RankEnd, ...]) -> RankEnd | None:
    return next((end for end in ends if end.last_signal == SIGKILL), None)


def class_of(status: Status) -> tuple[ExitClass, str]:
    """Return the class of an attempt's end and its cause in words."""
    if status.run is Run.ABSENT:
        return ExitClass.INFRASTRUCTURE, "it was not started"
    if status.run is Run.LOST and status.by is EndedBy.NODE_FAULT:
        return ExitClass.INFRASTRUCTURE, status.words
    if status.run is Run.LOST:
        return ExitClass.AMBIGUOUS, f"no record of how it ended: {status.reason}"
    if status.by is EndedBy.REFUSED:
        return ExitClass.USER, status.words
    if status.by is EndedBy.TIME_LIMIT:
        return ExitClass.LIMIT, "ran longer than its time limit"
    first = first_end(status.ends)
    if not status.ends and status.by is EndedBy.CANCEL:
        return ExitClass.ASKED, "it was not started"
    if first is None:
        return ExitClass.SUCCESS, "all ranks ended with exit code 0"
    if status.by is EndedBy.NODE_FAULT:
        return ExitClass.INFRASTRUCTURE, "a GPU of it is out of service"
    if status.by is EndedBy.OUT_OF_MEMORY:
        killed = _killed_for_memory(status.ends) or first
        return ExitClass.RESOURCE, f"rank {killed.rank} was killed as memory ran out"
    return _class_of_rank(first, status.words)


def _class_of_rank(first: RankEnd, error: str) -> tuple[ExitClass, str]:
    """Return the class of an end that a rank explains, and its cause in words.

    Args:
        first: The end.
        error: By which the rank's log says why, "" if unknown.
    """
    rank = f"rank {first.rank}"
    if number := first.last_signal:
        known = ExitClass.AMBIGUOUS if number in AMBIGUOUS_SIGNALS else ExitClass.USER
        by_itself = "" if first.signal else f"ended with exit code {first.code}: a command of it "
        return known, f"{rank} {by_itself}was ended by signal {number}"
    if first.code == TEMPFAIL:
        return ExitClass.AGAIN, f"{rank} asked to be run again (exit code {TEMPFAIL})"
    if error.startswith("the ring is lost"):  # Its ranks are one to the backend.
        return ExitClass.USER, f"{error} (exit code {first.code})"
    return ExitClass.USER, f"{rank} ended with exit code {first.code}" + (f": {error}" if error else "")


def outcome_of(
    status: Status,
    asked: AfterStop | None,
    allowed: Tries,
    used: Tries,
    no_progress: int,
    *,
    progressed: bool,
    wait_share: float,
    most_stuck: int = NO_PROGRESS,
) -> AttemptOutcome:
    """Return what becomes of a job whose attempt has ended.

    Args:
        status: EXITED or LOST; ABSENT if it was never launched. It began if it has a start
            or of an end of a rank.
        asked: What was requested when it was stopped, None if it was not stopped. The scheduler stops an
            attempt to try the job again, and only for what was no doing of the job.
        allowed: How often it may be tried again.
        used: How often it was.
        no_progress: Attempts before this one, in a row, that ended without progress.
        progressed: Whether this one left a newer checkpoint or step than it began with.
        wait_share: In [0, 1), spreads jobs that failed together over the time until they are tried again.
        most_stuck: Attempts in a row without progress after which the job is held.
    """
    exit_class, cause = class_of(status)
    # A program that takes a signal well ends with 0 whether its work is done or not.
    was_stopped = asked is not None and status.by in STOPPED_BY
    if exit_class is ExitClass.SUCCESS and not was_stopped:
        return AttemptOutcome(AfterStop.SUCCEED, exit_class, cause, used, 0)
    if asked in _RETRIED:
        exit_class = _RETRIED[asked]
    elif asked is AfterStop.RELOCATE and exit_class is not ExitClass.LIMIT:
        return AttemptOutcome(AfterStop.RETRY, ExitClass.ASKED, cause, used, no_progress)
    elif asked is not None and exit_class is not ExitClass.LIMIT:
        # Only what the backend will never start is stopped to let the job fail.
        exit_class = ExitClass.USER if asked is AfterStop.FAIL else ExitClass.ASKED
        return AttemptOutcome(asked, exit_class, status.reason or cause, used, no_progress)
    began = status.started_s > 0.0 or bool(status.ends)
    stuck = 0 if progressed else no_progress + began
    field = _BUDGETS.get(exit_class, "")
    before: int = getattr(used, field, 0)
    if before >= getattr(allowed, field, 0):
        return AttemptOutcome(AfterStop.FAIL, exit_class, cause, used, stuck)
    if stuck >= most_stuck:
        return AttemptOutcome(
            AfterStop.HOLD, exit_class, f"no progress in {stuck} attempts; the last: {cause}", used, stuck
        )
    # Other GPUs may be there at once; a program that failed by itself would only fail again, and so may a start.
    waits = exit_class is not ExitClass.INFRASTRUCTURE or not began
    wait_s = waits * wait_share * min(LONGEST_RETRY_S, FIRST_RETRY_S * 2.0**before)
    return AttemptOutcome(AfterStop.RETRY, exit_class, cause, used._replace(**{field: before + 1}), stuck, wait_s)
