"""Rules for jobs: the next step of a job that holds no GPUs, the order of the queue, and the quota of each user.

They read no clock, network or store. The rules for attempts are in attempts.py.

The order here is that of the rows of the store, as the queue is shown to people. The scheduler itself goes by
`cluster/queue/order.py`, where jobs that delay no other job pass a job that does not fit.

Source: SPEC K1, K5, K7.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from itertools import groupby
from typing import NamedTuple

from ...cluster.model.orders import OrderRegime
from ..model.job import JobRow
from ..model.states import FINAL, AfterStop, AttemptState, Desired, JobState
from .attempts import REQUEST_CAUSE, AttemptOutcome

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


def next_job_step(
    job: JobRow, now_s: float, *, is_in_queue: bool, cluster_gpus: int, is_kept_out: bool = False, needs: str = ""
) -> JobStep:
    """Return the next step of a job that is queued or held.

    Args:
        job: The job.
        now_s: Unix time.
        is_in_queue: Whether it is in the queue of the cluster.
        cluster_gpus: GPUs of the nodes that suit it.
        is_kept_out: Whether no GPUs in service could hold it, or it rests after an error.
        needs: What it needs of nodes, for people.
    """
    if is_in_queue:
        is_unwanted = job.state is JobState.QUEUED and job.desired is not Desired.RUN
        return JobStep(JobDo.LEAVE if is_unwanted else JobDo.NOTHING)
    change = _step_outside_queue(job, cluster_gpus, needs)
    if change is not None:
        return change
    return JobStep(JobDo.ENTER if may_enter(job, now_s) and not is_kept_out else JobDo.NOTHING)


def may_enter(job: JobRow, now_s: float) -> bool:
    """Return whether a job may enter the queue of the mirror: after a fault it waits outside for a while."""
    return job.state is JobState.QUEUED and job.desired is Desired.RUN and job.wait_left_s(now_s) == 0.0


def _step_outside_queue(job: JobRow, cluster_gpus: int, needs: str) -> JobStep | None:
    """Return how a job outside the queue gets into its desired state, None if it is in that state."""
    if job.desired is Desired.CANCEL:
        return JobStep(JobDo.CHANGE, JobState.CANCELLED, REQUEST_CAUSE[Desired.CANCEL])
    if job.state is JobState.HELD:
        is_wanted = job.desired is Desired.RUN
        return (
            JobStep(JobDo.CHANGE, JobState.QUEUED, REQUEST_CAUSE[Desired.RUN], is_released=True) if is_wanted else None
        )
    if job.desired is Desired.HOLD:
        return JobStep(JobDo.CHANGE, JobState.HELD, REQUEST_CAUSE[Desired.HOLD])
    if not 1 <= job.gpus <= cluster_gpus:
        asks, such = (f" {needs}", " of these") if needs else ("", "")
        cause = f"it asks for {job.gpus} GPUs{asks}, and the cluster has {cluster_gpus}{such}"
        return JobStep(JobDo.CHANGE, JobState.FAILED, cause)
    return None


def state_after_release(job: JobRow, outcome: AttemptOutcome) -> tuple[JobState, Desired | None, bool]:
    """Return what becomes of a job whose attempt has been released.

    Returns:
        Its state, what is requested of it from here on (None for what was), and whether it stays in the queue of the
        cluster.
    """
    now = AFTER[outcome.after]
    is_wanted = job.desired is Desired.RUN  # its owner may have requested otherwise while it was stopped
    by_rule = outcome.after is AfterStop.HOLD and job.after_stop is not AfterStop.HOLD
    # A rule holds the job, not a request: it stays held until its owner releases it.
    desired = Desired.HOLD if by_rule and is_wanted else None
    return now, desired, now is JobState.QUEUED and outcome.wait_s <= 0.0 and is_wanted


class RetryStep(StrEnum):
    """What it means to try a job again."""

    REQUEUE = "requeue"  # it has failed, and comes back into the queue
    RELEASE = "release"  # it is held, and is wanted to run
    NOTHING = "nothing"  # it is to run as it is
    REFUSED = "refused"  # it stays ended


def retry_step(job: JobRow) -> RetryStep:
    """Return what it means to try a job again, as its owner wants."""
    if job.desired is Desired.CANCEL or job.state in FINAL - {JobState.FAILED}:
        return RetryStep.REFUSED
    if job.state is JobState.FAILED:
        return RetryStep.REQUEUE
    return RetryStep.RELEASE if job.desired is Desired.HOLD else RetryStep.NOTHING


def state_to_hold(job: JobRow, attempt: AttemptState | None) -> JobState | None:
    """Return the state by which a job is held that cannot be handled.

    Args:
        job: The job.
        attempt: State of its attempt, None without one.

    Returns:
        HELD if it waits; STOPPING if it is about to start, so that its attempt drains and it is held then; None if it
        runs, and has lost nothing yet, or is on its way out.
    """
    if job.state is JobState.QUEUED:
        return JobState.HELD
    return JobState.STOPPING if attempt in (AttemptState.RESERVED, AttemptState.LAUNCHED) else None


class WaitingJob(NamedTuple):
    """A job in the queue."""

    id: str
    owner: str
    priority: int
    gpus: int
    submit_seq: int
    entered_s: float
    not_before_s: float
    wait_s: float
    guess_s: float
    saved_s: float

    @property
    def was_stopped(self) -> bool:
        """As `JobRow.was_stopped`."""
        return self.not_before_s > 0.0


class LastTurn(NamedTuple):
    """When a user last had their turn to lead, and the number of that turn; 0 for none."""

    at_s: float
    number: int


Turns = Mapping[tuple[str, int], LastTurn]  # by owner and priority


def in_queue_order(
    waiting: Iterable[WaitingJob], order: OrderRegime, ageing_s: float, now_s: float, in_service: int,
    turns: Turns | None = None,
) -> list[WaitingJob]:  # fmt: skip
    """Return waiting jobs as they are offered GPUs, the first one first.

    Args:
        waiting: The jobs.
        order: Order regime of docs/simulator.md.
        ageing_s: Time after which no job overtakes a job.
        now_s: Unix time.
        in_service: GPUs that are not out of service; a job that requests more does not age.
        turns: That users have had to lead; None where they take no turns. Each is then shown to lead in turn, one job
            of each user in a round.
    """
    line = sorted(waiting, key=_queue_key)
    ages = order.passes  # else the first one is the oldest that counts
    aged = [job for job in line if ages and now_s >= _waiting_since_s(job) + ageing_s and job.gpus <= in_service]
    aged.sort(key=lambda job: (_waiting_since_s(job), _queue_key(job)))
    old = {job.id for job in aged}
    if turns is not None:
        line = [job for job in line if job.id not in old]
        turns = _turns_after(aged, turns, order, now_s)
        groups = [list(jobs) for _, jobs in groupby(line, lambda job: job.priority)]
        line = [job for place, jobs in enumerate(groups) for job in _in_rounds(jobs, order, turns, leads=place == 0)]
    elif order.by_work:
        first = 0 if order.shortest_leads else 1
        line[first:] = _by_remaining_work(line[first:], order)
    return [*aged, *(job for job in line if job.id not in old)]


def _turns_after(started: Iterable[WaitingJob], turns: Turns, order: OrderRegime, now_s: float) -> Turns:
    """Return the turns that users have had once some jobs, which have aged, have started."""
    last = max((turn.number for turn in turns.values()), default=0)
    taking = (job for job in started if order.shortest_leads or not job.was_stopped)
    return {**turns, **{(job.owner, job.priority): LastTurn(now_s, last + at) for at, job in enumerate(taking, 1)}}


def _by_remaining_work(jobs: Iterable[WaitingJob], order: OrderRegime) -> list[WaitingJob]:
    return sorted(jobs, key=lambda job: (-job.priority, _remaining_work_s(job))) if order.by_work else list(jobs)


def _in_rounds(jobs: Sequence[WaitingJob], order: OrderRegime, turns: Turns, *, leads: bool) -> list[WaitingJob]:
    """Return jobs of one priority, in the order of the queue, as their users take turns.

    Args:
        jobs: The jobs.
        order: Order regime. By a key jobs go behind the one that leads, or all, if the job of smallest key does.
        turns: That users have had.
        leads: Whether one of these jobs leads: there are none of a higher priority.
    """
    back = [job for job in jobs if job.was_stopped]
    if order.by_work:
        back = back[:1] if leads and not order.shortest_leads else []
    ahead = {job.id for job in back}
    lines: dict[str, list[WaitingJob]] = {}
    for job in jobs:
        if job.id not in ahead:
            lines.setdefault(job.owner, []).append(job)
    if not lines:
        return back
    users = users_in_turn((job for job in jobs if job.id not in ahead), turns)
    for place, user in enumerate(users):
        first = 1 if leads and place == 0 and not back and not order.shortest_leads else 0
        lines[user][first:] = _by_remaining_work(lines[user][first:], order)
    rounds = range(max(map(len, lines.values())))
    return back + [lines[user][at] for at in rounds for user in users if at < len(lines[user])]


def users_in_turn(jobs: Iterable[WaitingJob], turns: Turns) -> list[str]:
    """Return the users of waiting jobs of one priority, the one first whose turn it is to lead."""
    oldest: dict[str, WaitingJob] = {}
    for job in sorted(jobs, key=lambda job: (job.was_stopped, job.entered_s, job.submit_seq)):
        oldest.setdefault(job.owner, job)

    def since(job: WaitingJob) -> tuple[float, int, int]:
        led = turns.get((job.owner, job.priority), LastTurn(0.0, 0))
        at_s, number = max((job.entered_s, 0), (led.at_s, led.number)) if led.number else (job.entered_s, 0)
        return at_s, number, job.submit_seq

    return [job.owner for job in sorted(oldest.values(), key=since)]


def queue_places(line: Sequence[WaitingJob]) -> dict[str, int]:
    """Return the place of each job in the queue, from 1."""
    return {job.id: place for place, job in enumerate(line, 1)}


def _queue_key(job: WaitingJob) -> tuple[int, int, float, int]:
    """Return what puts jobs into the order of the queue: as `state_cache.queue_key`."""
    if job.was_stopped:
        return -job.priority, 0, -max(job.entered_s, job.not_before_s), -job.submit_seq
    return -job.priority, 1, job.entered_s, job.submit_seq


def _waiting_since_s(job: WaitingJob) -> float:
    return job.entered_s - job.wait_s


def _remaining_work_s(job: WaitingJob) -> float:
    """Return the estimated work that a job has left; the estimate doubles until it exceeds what is saved."""
    guess_s = job.guess_s
    while 0.0 < guess_s <= job.saved_s:
        guess_s *= 2.0
    return guess_s - job.saved_s


class Quota:
    """What users may still have. In their own order: a job that does not fit lets no later one of its owner pass.

    Args:
        gpus: Of one user, held and in the queue together; None for any number.
        inside: Jobs that hold GPUs or are in the queue.
    """

    def __init__(self, gpus: int | None, inside: Iterable[JobRow]) -> None:
        self.gpus = gpus
        self._has: Counter[str] = Counter()
        self._full: set[str] = set()
        for row in inside if gpus is not None else ():
            self._has[row.owner] += row.gpus

    def take_if_within(self, row: JobRow) -> bool:
        """Count a job as one of its owner's if they may have its GPUs, and return whether they may."""
        if self.gpus is None:
            return True
        if row.owner in self._full or self._has[row.owner] + row.gpus > self.gpus:
            self._full.add(row.owner)
            return False
        self._has[row.owner] += row.gpus
        return True
