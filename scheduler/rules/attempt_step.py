"""What is to be done next about an attempt, by what is wanted and what is seen. Reads no clock, network or store.

Source: SPEC K6, K7, K10.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

from ..model.event import NewEvent
from ..model.run import Run, Status
from ..model.states import AfterStop, AttemptState, Contact, Desired
from .retry_policy import class_of

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
    RELEASE = "release"  # free its GPUs, and settle what becomes of the job
    CLOSE = "close"  # let the backend forget it
    CHECK = "check"  # see to it that its nodes are checked, before it starts or after its end


class Checks(StrEnum):
    """How the checks of an attempt's nodes stand."""

    NONE = "none"  # there is nothing to wait for
    RUN = "run"  # they have to come to an end first
    FAILED = "failed"  # its nodes are not fit


class Step(NamedTuple):
    """What is to be done next."""

    do: Do
    cause: str = ""
    after: AfterStop | None = None  # of a stop: what becomes of the job then, None if its end tells
    contact: Contact = Contact.OK


class Verdict(NamedTuple):
    """Why an attempt that runs is not to run on, by the steps that it tells of."""

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
    is_cancelled: bool  # the backend has been told to stop it, now or as soon as it starts
    has_fault: bool  # a GPU of it is out of service
    is_cut_off: bool = False  # a node of it is down, which says nothing of what runs there
    verdict: Verdict | None = None
    checks: Checks = Checks.NONE
    found: str = ""  # what they found, if they failed
    launch_error: str = ""  # why the backend did not take it the last time, "" if it did


WISHES = {Desired.CANCEL: AfterStop.CANCEL, Desired.HOLD: AfterStop.HOLD}
WISHED = {Desired.CANCEL: "cancelled on request", Desired.HOLD: "held on request", Desired.RUN: "released on request"}
ENDED = (Run.EXITED, Run.LOST)


def next_step(view: AttemptView, now_s: float) -> Step:
    """Return the next step for an attempt; after it has been taken there may be another one at once."""
    step = _next_step(view, now_s)
    return step._replace(contact=Contact.UNKNOWN) if view.is_cut_off and step.do is not Do.CLOSE else step


def is_over(run: Run, *, is_cancelled: bool) -> bool:
    """Say whether an attempt runs no more and will not; that its processes are gone is proven apart."""
    # A launch that comes late must find that it was cancelled: only then does its absence prove anything.
    return run in ENDED or (run is Run.ABSENT and is_cancelled)


def _next_step(view: AttemptView, now_s: float) -> Step:
    if view.state is AttemptState.RELEASED:
        return Step(Do.CLOSE)
    if view.status.run is Run.UNREACHABLE:
        return Step(Do.NOTHING, contact=Contact.UNKNOWN)
    if view.state is AttemptState.DRAINING:
        over = is_over(view.status.run, is_cancelled=view.is_cancelled)
        if not (over and view.is_gone):
            return Step(Do.CANCEL)
        return Step(Do.CHECK if view.checks is Checks.RUN else Do.RELEASE)
    if view.has_fault:
        return Step(Do.STOP, "a GPU of it is out of service", AfterStop.RETRY)
    if view.status.run in ENDED:
        return Step(Do.STOP, class_of(view.status)[1])
    if view.desired in WISHES:
        return Step(Do.STOP, WISHED[view.desired], WISHES[view.desired])
    return _towards_running(view, now_s)


def _towards_running(view: AttemptView, now_s: float) -> Step:
    """Return the next step of an attempt that is to run and has not ended."""
    if view.state is AttemptState.RUNNING:
        if view.status.run is Run.ABSENT:
            return Step(Do.STOP, "the backend knows nothing of it any more", AfterStop.RETRY)
        return Step(Do.NOTHING) if view.verdict is None else Step(Do.STOP, view.verdict.cause, view.verdict.after)
    if view.status.run is Run.RUNNING:
        if view.state is AttemptState.RESERVED:
            return Step(Do.LAUNCH)  # it was launched, and nobody has noted it
        return Step(Do.RUN, "all ranks are running")
    if view.is_cut_off:
        # It has next to nothing to lose, waits there for ever if the node is gone for good, and is not to blame.
        return Step(Do.STOP, "a node of it is down, and not all its ranks run yet", AfterStop.RELOCATE)
    if view.state is AttemptState.RESERVED and view.status.run is Run.ABSENT and view.checks is not Checks.NONE:
        # Nothing of it has started, and it did nothing wrong.
        return Step(Do.CHECK) if view.checks is Checks.RUN else Step(Do.STOP, view.found, AfterStop.RELOCATE)
    return _towards_start(view, now_s)


def _towards_start(view: AttemptView, now_s: float) -> Step:
    """Return the next step of an attempt that does not run yet, and may."""
    if now_s - view.opened_s > START_LIMIT_S:
        why = f": {view.launch_error}" if view.launch_error else ""
        return Step(Do.STOP, f"did not run within {START_LIMIT_S:.0f} s{why}", AfterStop.RETRY)
    is_late = view.status.run is Run.PENDING and now_s - view.opened_s > LAUNCH_AGAIN_S
    if view.state is AttemptState.RESERVED or view.status.run is Run.ABSENT or is_late:
        return Step(Do.LAUNCH)
    return Step(Do.NOTHING)
