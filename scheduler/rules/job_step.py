"""What is to be done next about a job, by what is wanted of it and what is known. Reads no clock, network or store.

What is done about its attempts stands in attempt_step.py. Source: SPEC K1, K5, K7.
"""

from enum import StrEnum
from typing import NamedTuple

from ..model.job import JobRow
from ..model.states import FINAL, AfterStop, AttemptState, Desired, JobState
from .attempt_step import WISHED
from .retry_policy import Outcome

AFTER: dict[AfterStop, JobState] = {
    AfterStop.RETRY: JobState.QUEUED,
    AfterStop.HOLD: JobState.HELD,
    AfterStop.SUCCEED: JobState.SUCCEEDED,
    AfterStop.FAIL: JobState.FAILED,
    AfterStop.CANCEL: JobState.CANCELLED,
}


class JobDo(StrEnum):
    """Kinds of steps of a job that holds no GPUs."""

    NOTHING = "nothing"
    CHANGE = "change"  # it comes into another state
    ENTER = "enter"  # it comes into the queue of the cluster, if its owner may have the GPUs
    LEAVE = "leave"  # it leaves the queue of the cluster


class JobStep(NamedTuple):
    """What is to be done next."""

    do: JobDo
    now: JobState | None = None  # of a change: the state that it comes into
    cause: str = ""
    is_released: bool = False  # it was held: what it waited before does not count


class Around(NamedTuple):
    """What a step depends on beside the job itself."""

    is_in_queue: bool  # of the cluster
    cluster_gpus: int  # of the nodes that suit the job
    is_kept_out: bool = False  # no GPUs in service could hold it, or it rests after an error
    needs: str = ""  # what it needs of them, in words


def next_job_step(job: JobRow, around: Around, now_s: float) -> JobStep:
    """Return the next step of a job that is queued or held."""
    if around.is_in_queue:
        is_unwanted = job.state is JobState.QUEUED and job.desired is not Desired.RUN
        return JobStep(JobDo.LEAVE if is_unwanted else JobDo.NOTHING)
    change = _change_outside(job, around)
    if change is not None:
        return change
    return JobStep(JobDo.ENTER if may_enter(job, now_s) and not around.is_kept_out else JobDo.NOTHING)


def may_enter(job: JobRow, now_s: float) -> bool:
    """Say whether a job may stand in the queue of the cluster: after a fault it waits outside for its time to come."""
    return job.state is JobState.QUEUED and job.desired is Desired.RUN and job.not_before_s <= now_s


def _change_outside(job: JobRow, around: Around) -> JobStep | None:
    """Return how a job outside of the queue comes into the state that is wanted of it, None if it is in that state."""
    if job.desired is Desired.CANCEL:
        return JobStep(JobDo.CHANGE, JobState.CANCELLED, WISHED[Desired.CANCEL])
    if job.state is JobState.HELD:
        is_wanted = job.desired is Desired.RUN
        return JobStep(JobDo.CHANGE, JobState.QUEUED, WISHED[Desired.RUN], is_released=True) if is_wanted else None
    if job.desired is Desired.HOLD:
        return JobStep(JobDo.CHANGE, JobState.HELD, WISHED[Desired.HOLD])
    if not 1 <= job.gpus <= around.cluster_gpus:
        asks, such = (f" {around.needs}", " of these") if around.needs else ("", "")
        cause = f"it asks for {job.gpus} GPUs{asks}, and the cluster has {around.cluster_gpus}{such}"
        return JobStep(JobDo.CHANGE, JobState.FAILED, cause)
    return None


class Release(NamedTuple):
    """What becomes of a job whose attempt has been released."""

    now: JobState
    desired: Desired | None  # what is wanted of it from now on, None for what was
    stays: bool  # in the queue of the cluster


def release_step(job: JobRow, outcome: Outcome) -> Release:
    """Return what becomes of a job after an attempt."""
    now = AFTER[outcome.after]
    is_wanted = job.desired is Desired.RUN  # it may be wanted otherwise since it was being stopped
    by_rule = outcome.after is AfterStop.HOLD and job.after_stop is not AfterStop.HOLD
    # Nobody asked for a hold by rule: the job stays held until its owner wants it to run, once more.
    desired = Desired.HOLD if by_rule and is_wanted else None
    return Release(now, desired, stays=now is JobState.QUEUED and outcome.wait_s <= 0.0 and is_wanted)


class Retry(StrEnum):
    """What it means to try a job again."""

    REQUEUE = "requeue"  # it has failed, and comes back into the queue
    RELEASE = "release"  # it is held, and is wanted to run
    NOTHING = "nothing"  # it is to run as it is
    REFUSED = "refused"  # it stays ended


def retry_step(job: JobRow) -> Retry:
    """Return what it means to try a job again, as its owner wants."""
    if job.desired is Desired.CANCEL or job.state in FINAL - {JobState.FAILED}:
        return Retry.REFUSED
    if job.state is JobState.FAILED:
        return Retry.REQUEUE
    return Retry.RELEASE if job.desired is Desired.HOLD else Retry.NOTHING


class Hold(StrEnum):
    """How a job that cannot be handled is held."""

    NOW = "now"  # it waits, and is held at once
    DRAIN = "drain"  # it is about to start: its attempt drains, and it is held then
    NOTHING = "nothing"  # it runs, and has lost nothing yet; or it is on its way out


def hold_step(job: JobRow, attempt: AttemptState | None) -> Hold:
    """Return how a job is held that cannot be handled.

    Args:
        job: The job.
        attempt: State of its attempt, None without one.
    """
    if job.state is JobState.QUEUED:
        return Hold.NOW
    return Hold.DRAIN if attempt in (AttemptState.RESERVED, AttemptState.LAUNCHED) else Hold.NOTHING
