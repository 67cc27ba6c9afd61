"""What is to be done next about an attempt, in which order, and what its progress counts. Reads no clock or store.

Source: SPEC K6, K7, K10, C9, K5; docs/scheduler.md, Exit classes.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import NamedTuple

from ..model.job import NewEvent, Tries
from ..model.states import AfterStop, AttemptState, Contact, Desired, Run, Status
from .retry import class_of

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
    """How the checks of an attempt's nodes stand."""

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
    is_gone: bool  # all its processes are proven gone
    is_cancelled: bool  # the backend was asked to stop it, now or as soon as it starts
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


def next_step(view: AttemptView, now_s: float) -> AttemptStep:
    """Return the next step for an attempt; after it has been taken there may be another one at once."""
    step = _next_step(view, now_s)
    return step._replace(contact=Contact.UNKNOWN) if view.is_cut_off and step.do is not Do.CLOSE else step


def is_over(run: Run, *, is_cancelled: bool) -> bool:
    """Return whether an attempt runs no more and will not; that its processes are gone is proven apart."""
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
        return AttemptStep(Do.STOP, class_of(view.status)[1])
    if view.desired in AFTER_REQUEST:
        return AttemptStep(Do.STOP, REQUEST_CAUSE[view.desired], AFTER_REQUEST[view.desired])
    return _towards_running(view, now_s)


def _towards_running(view: AttemptView, now_s: float) -> AttemptStep:
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
        # It has next to nothing to lose, would wait for ever if the node is gone for good, and is not at fault.
        return AttemptStep(Do.STOP, "a node of it is down, and not all its ranks run yet", AfterStop.RELOCATE)
    if view.state is AttemptState.RESERVED and view.status.run is Run.ABSENT and view.checks is not Checks.NONE:
        # Nothing of it has started, and it did nothing wrong.
        return (
            AttemptStep(Do.CHECK) if view.checks is Checks.RUN else AttemptStep(Do.STOP, view.found, AfterStop.RELOCATE)
        )
    return _towards_start(view, now_s)


def _towards_start(view: AttemptView, now_s: float) -> AttemptStep:
    """Return the next step of an attempt that does not run yet, and may."""
    if now_s - view.opened_s > START_LIMIT_S:
        why = f": {view.launch_error}" if view.launch_error else ""
        return AttemptStep(Do.STOP, f"did not run within {START_LIMIT_S:.0f} s{why}", AfterStop.RETRY)
    is_late = view.status.run is Run.PENDING and now_s - view.opened_s > LAUNCH_AGAIN_S
    if view.state is AttemptState.RESERVED or view.status.run is Run.ABSENT or is_late:
        return AttemptStep(Do.LAUNCH)
    return AttemptStep(Do.NOTHING)


Whose = tuple[int, str]  # priority and user


class PollEntry(NamedTuple):
    """An attempt to be polled."""

    job: str
    user: str
    priority: int  # higher goes first
    place: int  # among those of its user

    @property
    def whose(self) -> Whose:
        """Whose turn is taken with it."""
        return self.priority, self.user


def in_turns(claims: Iterable[PollEntry], had_turn: Mapping[str, Whose]) -> list[str]:
    """Return the jobs in their order: those that had no turn yet, then higher priorities, then users by turns.

    So a user with thousands of attempts keeps none of another user's waiting for more than one of their own.

    Args:
        claims: The attempts.
        had_turn: Whose turn it was, of each job that had one since there last was time for all; some may be over.
    """
    had = Counter(had_turn.values())
    taken: Counter[tuple[bool, Whose]] = Counter()
    keys = []
    for it in sorted(claims, key=lambda it: it.place):
        again = it.job in had_turn
        keys.append((again, -it.priority, taken[again, it.whose] + (0 if again else had[it.whose]), it.place, it.job))
        taken[again, it.whose] += 1
    return [key[-1] for key in sorted(keys)]


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

    def left_of(self, used: Tries) -> Tries:
        """Return which of the tries that a job has used up still count against it."""
        if self.is_farthest:
            return Tries()
        # Memory that runs out and errors of the program come again, however long that takes.
        return used._replace(infra=0, asked=0, ambiguous=0) if self._ran_long else used


def attempt_progress(
    look: LastReport, progress: Mapping[str, float], before: float | None, ran_s: float
) -> AttemptProgress:
    """Return how far an attempt brought its job.

    Args:
        look: The steps and checkpoints that it reported.
        progress: What it wrote into its progress file.
        before: The highest step that an earlier attempt reported, None if none did.
        ran_s: How long all its ranks ran.
    """
    steps = [step for step in (look.step, progress.get(STEP)) if step is not None]
    saved = progress.get(SAVED, 0.0) > 0.0  # of this attempt's own work
    highest = max(steps, default=None)
    is_new = highest is not None and (before is None or highest > before)
    return AttemptProgress(
        is_further=look.came_further or saved or progress.get(STEP, 0.0) > 0.0,
        is_farthest=look.saved_more or saved or is_new,
        has_reported=look.has_reported or STEP in progress or SAVED in progress,
        step=max([*steps, *([] if before is None else [before])], default=None),
        ran_s=ran_s,
    )
