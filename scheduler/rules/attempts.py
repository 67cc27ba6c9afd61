"""What is to be done next about an attempt, what its end means, and whether its job is tried again.

`next_attempt_step` is the next step of an attempt, `attempt_outcome` what becomes of a job whose attempt has ended.
They read no clock and no store.

Source: SPEC K5 to K7, K10, K11, C9; docs/scheduler.md, Exit classes.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from signal import SIGKILL
from typing import NamedTuple

from ..model.job import NO_PROGRESS, JobRow, NewEvent, Tries
from ..model.states import AfterStop, AttemptState, Contact, Desired, EndedBy, RankEnd, Run, Status

START_LIMIT_S = 300.0  # between the launch of an attempt and the moment at which all its ranks run
UNFIT = "the checks before its start did not pass"  # begins the cause of an attempt that was stopped for that
LAUNCH_AGAIN_S = 5.0  # after which a launch that shows no process is taken for one that was cut short


class Do(StrEnum):
    """Kinds of steps."""

    NOTHING = "nothing"
    LAUNCH = "launch"  # ask the backend to start it
    RUN = "run"  # note that all its ranks run
    STOP = "stop"  # let it drain
    CANCEL = "cancel"  # ask the backend to stop it, once more
    RELEASE = "release"  # free its GPUs, and decide the next state of the job
    CLOSE = "close"  # let the backend forget it
    CHECK = "check"  # see to it that its nodes are checked, before it starts or after its end


class Checks(StrEnum):
    """Status of the checks of an attempt's nodes."""

    NONE = "none"  # there is nothing to wait for
    RUN = "run"  # they have to come to an end first
    FAILED = "failed"  # its nodes are not fit


class AttemptStep(NamedTuple):
    """What is to be done next."""

    do: Do
    cause: str = ""
    after: AfterStop | None = None  # of a stop: what becomes of the job, None if that depends on its end
    contact: Contact = Contact.OK


class StopReason(NamedTuple):
    """Why an attempt that runs has to stop, by the steps that it reports."""

    cause: str
    after: AfterStop
    event: NewEvent  # to be stored with the stop, as all that follows: not if the attempt stops for another reason
    out_of_service: Mapping[str, str] = {}  # nodes that go out of service with it, with the reason


class AttemptView(NamedTuple):
    """All that a step depends on."""

    desired: Desired
    state: AttemptState
    opened_s: float  # or later, when checks let it start
    status: Status
    is_gone: bool  # all its processes are proven ended
    is_cancelled: bool  # the backend is to stop it, now or as soon as it starts
    has_fault: bool  # a GPU of it is out of service
    is_cut_off: bool = False  # a node of it is down; what runs there may run on
    verdict: StopReason | None = None
    checks: Checks = Checks.NONE
    found: str = ""  # what they found, if they failed
    launch_error: str = ""  # why the backend did not take it the last time, "" if it did


AFTER_REQUEST = {Desired.CANCEL: AfterStop.CANCEL, Desired.HOLD: AfterStop.HOLD}
REQUEST_CAUSE = {
    Desired.CANCEL: "cancelled on request",
    Desired.HOLD: "held on request",
    Desired.RUN: "released on request",
}
ENDED_RUNS = (Run.EXITED, Run.LOST)


def next_attempt_step(view: AttemptView, now_s: float) -> AttemptStep:
    """Return the next step for an attempt; after it has been taken there may be another one at once."""
    step = _next_step(view, now_s)
    return step._replace(contact=Contact.UNKNOWN) if view.is_cut_off and step.do is not Do.CLOSE else step


def is_over(run: Run, *, is_cancelled: bool) -> bool:
    """Return whether an attempt runs no more and will not; that its processes have ended is proven apart."""
    # A launch that comes late must find that it was cancelled: only then does its absence prove anything.
    return run in ENDED_RUNS or (run is Run.ABSENT and is_cancelled)


def _next_step(view: AttemptView, now_s: float) -> AttemptStep:
    if view.state is AttemptState.RELEASED:
        return AttemptStep(Do.CLOSE)
    if view.status.run is Run.UNREACHABLE:
        return AttemptStep(Do.NOTHING, contact=Contact.UNKNOWN)
    if view.state is AttemptState.DRAINING:
        over = is_over(view.status.run, is_cancelled=view.is_cancelled)
        if not (over and view.is_gone):
            return AttemptStep(Do.CANCEL)
        return AttemptStep(Do.CHECK if view.checks is Checks.RUN else Do.RELEASE)
    if view.has_fault:
        return AttemptStep(Do.STOP, "a GPU of it is out of service", AfterStop.RETRY)
    if view.status.run in ENDED_RUNS:
        return AttemptStep(Do.STOP, classify_end(view.status)[1])
    if view.desired in AFTER_REQUEST:
        return AttemptStep(Do.STOP, REQUEST_CAUSE[view.desired], AFTER_REQUEST[view.desired])
    return _step_towards_running(view, now_s)


def _step_towards_running(view: AttemptView, now_s: float) -> AttemptStep:
    """Return the next step of an attempt that is to run and has not ended."""
    if view.state is AttemptState.RUNNING:
        if view.status.run is Run.ABSENT:
            return AttemptStep(Do.STOP, "the backend knows nothing of it any more", AfterStop.RETRY)
        return (
            AttemptStep(Do.NOTHING)
            if view.verdict is None
            else AttemptStep(Do.STOP, view.verdict.cause, view.verdict.after)
        )
    if view.status.run is Run.RUNNING:
        if view.state is AttemptState.RESERVED:
            return AttemptStep(Do.LAUNCH)  # it was launched, and that was not recorded
        return AttemptStep(Do.RUN, "all ranks are running")
    if view.is_cut_off:
        # It has next to nothing to lose, would wait for ever if the node is lost for good, and is not at fault.
        return AttemptStep(Do.STOP, "a node of it is down, and not all its ranks run yet", AfterStop.RELOCATE)
    if view.state is AttemptState.RESERVED and view.status.run is Run.ABSENT and view.checks is not Checks.NONE:
        # Nothing of it has started, and it did nothing wrong.
        return (
            AttemptStep(Do.CHECK) if view.checks is Checks.RUN else AttemptStep(Do.STOP, view.found, AfterStop.RELOCATE)
        )
    return _step_towards_start(view, now_s)


def _step_towards_start(view: AttemptView, now_s: float) -> AttemptStep:
    """Return the next step of an attempt that does not run yet, and may."""
    if view.opened_s - now_s > START_LIMIT_S:
        # By a clock that was set back, its start would take long until it counts as late.
        return AttemptStep(Do.STOP, "the clock was set back while it started", AfterStop.RELOCATE)
    if now_s - view.opened_s > START_LIMIT_S:
        why = f": {view.launch_error}" if view.launch_error else ""
        return AttemptStep(Do.STOP, f"did not run within {START_LIMIT_S:.0f} s{why}", AfterStop.RETRY)
    is_late = view.status.run is Run.PENDING and now_s - view.opened_s > LAUNCH_AGAIN_S
    if view.state is AttemptState.RESERVED or view.status.run is Run.ABSENT or is_late:
        return AttemptStep(Do.LAUNCH)
    return AttemptStep(Do.NOTHING)


COLLATERAL_S = 5.0  # ranks' clocks may differ by so much: who ended first is not known more closely
TEMPFAIL = 75  # EX_TEMPFAIL of sysexits.h: the program requests another run
AMBIGUOUS_SIGNALS = frozenset({6, 7, 9, 11, 15})  # of a fault of the node as well as of the program
FIRST_RETRY_S, LONGEST_RETRY_S = 5.0, 300.0  # before a job is tried again, doubled with every try
STOPPED_BY = (EndedBy.CANCEL, EndedBy.NODE_FAULT)  # the job did not come to its end by itself


class ExitClass(StrEnum):
    """What an end is due to."""

    SUCCESS = "success"
    REQUESTED = "requested"
    INFRASTRUCTURE = "infrastructure"
    RESOURCE = "resource"
    LIMIT = "limit"
    AGAIN = "again"  # the program requested it
    USER = "user"
    AMBIGUOUS = "ambiguous"


_BUDGETS = {
    ExitClass.INFRASTRUCTURE: "infra",
    ExitClass.RESOURCE: "resource",
    ExitClass.USER: "user",
    ExitClass.AGAIN: "again",
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


def explaining_end(ends: tuple[RankEnd, ...]) -> RankEnd | None:
    """Return the end that explains the others: the first that was none of its own making, None if all ended with 0."""
    failed = [end for end in ends if end.code != 0 or end.signal != 0]
    if not failed:
        return None
    earliest_s = min(end.ended_s for end in failed)
    near = [end for end in failed if end.ended_s <= earliest_s + COLLATERAL_S]
    # Ranks that were only taken down by another die of a signal; one that ended by itself explains more.
    return min(near, key=lambda end: (end.last_signal != 0, end.ended_s, end.rank))


def failed_rank_end(ends: tuple[RankEnd, ...], outcome: str) -> RankEnd | None:
    """Return the end of the rank that explains why an attempt failed, None if no rank made it fail.

    Args:
        ends: Of its ranks.
        outcome: Its exit class.
    """
    if outcome not in _BY_A_RANK:
        return None
    killed = _rank_killed_for_memory(ends) if outcome == ExitClass.RESOURCE else None
    return killed or explaining_end(ends)


def _rank_killed_for_memory(ends: tuple[RankEnd, ...]) -> RankEnd | None:
    return next((end for end in ends if end.last_signal == SIGKILL), None)


def classify_end(status: Status) -> tuple[ExitClass, str]:
    """Return the class of an attempt's end and its cause, for people."""
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
    first = explaining_end(status.ends)
    if not status.ends and status.by is EndedBy.CANCEL:
        return ExitClass.REQUESTED, "it was not started"
    if first is None:
        return ExitClass.SUCCESS, "all ranks ended with exit code 0"
    if status.by is EndedBy.NODE_FAULT:
        return ExitClass.INFRASTRUCTURE, "a GPU of it is out of service"
    if status.by is EndedBy.OUT_OF_MEMORY:
        killed = _rank_killed_for_memory(status.ends) or first
        return ExitClass.RESOURCE, f"rank {killed.rank} was killed as memory ran out"
    return _classify_rank_end(first, status.words)


def _classify_rank_end(first: RankEnd, error: str) -> tuple[ExitClass, str]:
    """Return the class of an end that a rank explains, and its cause, for people.

    Args:
        first: The end.
        error: The reason in the rank's log, "" if unknown.
    """
    rank = f"rank {first.rank}"
    if number := first.last_signal:
        known = ExitClass.AMBIGUOUS if number in AMBIGUOUS_SIGNALS else ExitClass.USER
        by_itself = "" if first.signal else f"ended with exit code {first.code}: a command of it "
        return known, f"{rank} {by_itself}was ended by signal {number}"
    if first.code == TEMPFAIL:
        return ExitClass.AGAIN, f"{rank} requested another run (exit code {TEMPFAIL})"
    if error.startswith("the ring is lost"):  # Its ranks are one to the backend.
        return ExitClass.USER, f"{error} (exit code {first.code})"
    return ExitClass.USER, f"{rank} ended with exit code {first.code}" + (f": {error}" if error else "")


def attempt_outcome(
    status: Status,
    stopped_for: AfterStop | None,
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
        status: EXITED or LOST; ABSENT if it was never launched. It began if it has a start, or an end of a rank.
        stopped_for: What was to become of the job when the attempt was stopped, None if it was not stopped. The
            scheduler stops an attempt to try the job again, and only for what was no doing of the job.
        allowed: How often it may be tried again.
        used: How often it was.
        no_progress: Attempts before this one, in a row, that ended without progress.
        progressed: Whether this one left a newer checkpoint or step than it began with.
        wait_share: In [0, 1), spreads jobs that failed together over the time until they are tried again.
        most_stuck: Attempts in a row without progress after which the job is held.
    """
    exit_class, cause = classify_end(status)
    # A program that takes a signal well ends with 0 whether its work is done or not.
    was_stopped = stopped_for is not None and status.by in STOPPED_BY
    if exit_class is ExitClass.SUCCESS and not was_stopped:
        return AttemptOutcome(AfterStop.SUCCEED, exit_class, cause, used, 0)
    if stopped_for in _RETRIED:
        exit_class = _RETRIED[stopped_for]
    elif stopped_for is AfterStop.RELOCATE and exit_class is not ExitClass.LIMIT:
        return AttemptOutcome(AfterStop.RETRY, ExitClass.REQUESTED, cause, used, no_progress)
    elif stopped_for is not None and exit_class is not ExitClass.LIMIT:
        # Only what the backend will never start is stopped to let the job fail.
        exit_class = ExitClass.USER if stopped_for is AfterStop.FAIL else ExitClass.REQUESTED
        return AttemptOutcome(stopped_for, exit_class, status.reason or cause, used, no_progress)
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


SILENT_PROGRESS_S = 3600.0  # of running that count as progress of a job that reports nothing
HURRIED, HURRIED_S = 20, 3600.0  # attempts that began within that time: then no try comes back
STEP, SAVED = "step", "saved_s"  # keys of the progress file


class LastReport(NamedTuple):
    """What an ended attempt reported of its steps and checkpoints."""

    came_further: bool = False  # than where it began
    saved_more: bool = False  # a checkpoint of a later step than those of all attempts before
    has_reported: bool = False  # anything
    step: float | None = None  # the highest


class AttemptProgress(NamedTuple):
    """How far an attempt brought its job."""

    is_further: bool  # than where it began
    is_farthest: bool  # farther than any attempt before it
    has_reported: bool  # False if only its run time is known
    step: float | None  # the highest that any attempt has reported
    ran_s: float

    @property
    def made_progress(self) -> bool:
        """Whether it was not in vain."""
        return self.is_further or self._ran_long

    @property
    def _ran_long(self) -> bool:
        return not self.has_reported and self.ran_s >= SILENT_PROGRESS_S

    def tries_still_counted(self, used: Tries) -> Tries:
        """Return which of the tries that a job has used up still count against it."""
        if self.is_farthest:
            return Tries()
        # Memory that runs out and errors of the program come again, however long that takes.
        return used._replace(infra=0, again=0, ambiguous=0) if self._ran_long else used


def attempt_progress(
    report: LastReport, progress: Mapping[str, float], before: float | None, ran_s: float
) -> AttemptProgress:
    """Return how far an attempt brought its job.

    Args:
        report: The steps and checkpoints that it reported.
        progress: What it wrote into its progress file.
        before: The highest step that an earlier attempt reported, None if none did.
        ran_s: How long all its ranks ran.
    """
    steps = [step for step in (report.step, progress.get(STEP)) if step is not None]
    saved = progress.get(SAVED, 0.0) > 0.0  # of this attempt's own work
    highest = max(steps, default=None)
    is_new = highest is not None and (before is None or highest > before)
    return AttemptProgress(
        is_further=report.came_further or saved or progress.get(STEP, 0.0) > 0.0,
        is_farthest=report.saved_more or saved or is_new,
        has_reported=report.has_reported or STEP in progress or SAVED in progress,
        step=max([*steps, *([] if before is None else [before])], default=None),
        ran_s=ran_s,
    )


PollTurn = tuple[int, str]  # priority and user


def poll_turn_of(job: JobRow) -> PollTurn:
    """Return the turn that is taken when the attempt of a job is polled."""
    return job.priority, job.owner


def in_polling_order(jobs: Iterable[JobRow], had_turn: Mapping[str, PollTurn]) -> list[str]:
    """Return ids of jobs in the order in which their attempts are polled.

    Those that had no turn yet go first, then higher priorities, then users by turns. So a user with thousands of
    attempts keeps none of another user's waiting for more than one of their own.

    Args:
        jobs: The jobs.
        had_turn: Turn of each job that had one since there last was time for all; some may be over.
    """
    had = Counter(had_turn.values())
    taken: Counter[tuple[bool, PollTurn]] = Counter()
    keys = []
    for job in sorted(jobs, key=lambda job: job.submit_seq):
        again, turn = job.id in had_turn, poll_turn_of(job)
        keys.append((again, -job.priority, taken[again, turn] + (0 if again else had[turn]), job.submit_seq, job.id))
        taken[again, turn] += 1
    return [key[-1] for key in sorted(keys)]
