"""What is read of the store to show a cluster as a whole: on a page, or as metrics.

Estimated run times of jobs without one from their owners: from the jobs that have ended, as in traces.

What it comes to is written with the job when it is submitted. So it stays the same whatever ends later.
"""

from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

import numpy as np
from sqlalchemy import Connection, and_, bindparam, func, literal_column, null, select

from ...cluster.workloads.estimates import RECENT_JOBS, Alike, predicted_s
from ..model.job import JobRow
from ..model.job_spec import MIN_JOB_ESTIMATE_S, YEAR_S, JobFile
from ..model.states import FINAL, OPEN_ATTEMPTS, AttemptState, Contact, Desired, JobState
from ..rules.jobs import WaitingJob
from .attempts import SAVED
from .decisions import DecisionRow
from .events import EventRow
from .jobs import GIVEN, MANY, NewJob, is_named
from .schema import attempt, decision, event, job, lease, reservation


class GpuState(StrEnum):
    """What a GPU is doing."""

    FREE = "free"
    STARTING = "starting"  # held for an attempt whose ranks do not all run yet
    RUNNING = "running"
    DRAINING = "draining"  # held until all processes of its attempt are proven gone
    OUT = "out of service"


class Occupied(NamedTuple):
    """A GPU that is not free."""

    node: str
    gpu: int  # index on the node
    job_id: str
    job: str  # name
    number: int  # of the attempt
    state: GpuState


class Drain(NamedTuple):
    """An attempt that is on its way out."""

    job_id: str
    number: int
    since_s: float  # Unix time
    spec: Mapping[str, object]  # of its job
    gpus: int


_STATES = {
    AttemptState.RESERVED: GpuState.STARTING,
    AttemptState.LAUNCHED: GpuState.STARTING,
    AttemptState.RUNNING: GpuState.RUNNING,
}
_OF_RESERVATION = (attempt.c.job_id == reservation.c.job_id) & (attempt.c.number == reservation.c.number)
_OCCUPIED = (
    select(
        reservation.c.node, reservation.c.gpu, job.c.id, job.c.name, attempt.c.number, attempt.c.state,
    )
    .join(attempt, _OF_RESERVATION)
    .join(job, job.c.id == attempt.c.job_id)
)  # fmt: skip
_COUNTS = select(job.c.state, func.count().label("jobs")).group_by(job.c.state)
_UNKNOWN = select(func.count()).where(
    attempt.c.contact == Contact.UNKNOWN,
    attempt.c.state.in_(sorted(OPEN_ATTEMPTS)),  # an index has these few; of those that ended there are many
)
_WAITS_SINCE = select(func.min(job.c.entered_s)).where(job.c.state == JobState.QUEUED)
_LEASES = select(lease.c.name, lease.c.token)
_DRAINS_SINCE = (
    select(func.max(event.c.at_s))
    .where(
        event.c.job_id == attempt.c.job_id, event.c.number == attempt.c.number,
        event.c.now == AttemptState.DRAINING.value,
    )
    .scalar_subquery()
)  # fmt: skip
_DRAINS = (
    select(attempt.c.job_id, attempt.c.number, _DRAINS_SINCE, job.c.spec, attempt.c.placement)
    .join(job, job.c.id == attempt.c.job_id)
    .where(attempt.c.state == AttemptState.DRAINING)
)
_JOB_ROWS = select(*(job.c[name] for name in JobRow._fields))
_EVENTS = select(*(event.c[name] for name in EventRow._fields))
_LAST_EVENTS = _EVENTS.where(event.c.seq < bindparam("before")).order_by(event.c.seq.desc()).limit(bindparam("most"))
_LAST_EVENTS_OF_JOB = _LAST_EVENTS.where(event.c.job_id == bindparam("of_job"), event.c.kind != bindparam("without"))
_SAVED_EVENTS = (
    select(func.max(event.c.seq).label("seq"), func.count().label("events"))
    .where(event.c.job_id == bindparam("of_job"), event.c.kind == SAVED)
    .group_by(event.c.number)
    .subquery()
)
_LAST_SAVED = select(*(event.c[name] for name in EventRow._fields), _SAVED_EVENTS.c.events).join(
    _SAVED_EVENTS, event.c.seq == _SAVED_EVENTS.c.seq
)
_LAST_EVENT_OF_JOB = select(func.coalesce(func.max(event.c.seq), 0)).where(event.c.job_id == bindparam("of_job"))
# Without what the policy saw: those columns are large, and not read here.
_SHORT_DECISIONS = select(
    *(
        null().label(name) if name in ("observation", "mask", "log_probability") else decision.c[name]
        for name in DecisionRow._fields
    )
)
_LAST_DECISIONS = _SHORT_DECISIONS.order_by(decision.c.seq.desc()).limit(bindparam("most"))
_DECISIONS_AFTER = (
    _SHORT_DECISIONS.where(decision.c.seq > bindparam("after")).order_by(decision.c.seq).limit(bindparam("most"))
)
_LAST_DECISIONS_OF_JOB = (
    _SHORT_DECISIONS.where(decision.c.job_id == bindparam("of_job"))
    .order_by(decision.c.seq.desc())
    .limit(bindparam("most"))
)
_LAST_DECISION = select(func.coalesce(func.max(decision.c.seq), 0))
_QUEUED_AT = select(func.max(event.c.at_s)).where(
    event.c.job_id == bindparam("of_job"), event.c.seq < bindparam("before"), event.c.now == JobState.QUEUED.value
)
_OPENED = select(func.max(event.c.number)).where(
    event.c.job_id == bindparam("of_job"), event.c.seq < bindparam("before"), event.c.now == AttemptState.RESERVED.value
)


def occupied_gpus(tx: Connection) -> list[Occupied]:
    """Return all GPUs that are not free, in no order."""
    return [
        Occupied(node, gpu, job_id, name, number, _STATES.get(state, GpuState.DRAINING))
        for node, gpu, job_id, name, number, state in tx.execute(_OCCUPIED)
    ]


def count_jobs(tx: Connection) -> dict[JobState, int]:
    """Return how many jobs are in each state; a state without jobs counts 0."""
    return dict.fromkeys(JobState, 0) | {row.state: row.jobs for row in tx.execute(_COUNTS)}


def count_unknown(tx: Connection) -> int:
    """Return how many open attempts cannot be reached."""
    unknown: int = tx.execute(_UNKNOWN).scalar_one()
    return unknown


def waits_since(tx: Connection) -> float | None:
    """Return when the job came into the queue that waits longest: Unix time, None if none waits."""
    since_s: float | None = tx.execute(_WAITS_SINCE).scalar_one()
    return since_s


def lease_tokens(tx: Connection) -> dict[str, int]:
    """Return the token of each lease: how often it was taken."""
    return {row.name: row.token for row in tx.execute(_LEASES)}


def drains(tx: Connection) -> list[Drain]:
    """Return all attempts that are on their way out."""
    return [
        Drain(job_id, number, since_s, spec, sum(len(share.gpus) for share in placement))
        for job_id, number, since_s, spec, placement in tx.execute(_DRAINS)
    ]


def jobs_in(tx: Connection, states: Sequence[JobState], limit: int) -> list[JobRow]:
    """Return jobs in one of some states that have not ended, the first to be served first."""
    assert FINAL.isdisjoint(states)
    rows = _JOB_ROWS.where(job.c.state.in_(states)).order_by(job.c.priority.desc(), job.c.entered_s, job.c.submit_seq)
    return [JobRow._make(row) for row in tx.execute(rows.limit(limit))]


def last_events(
    tx: Connection, limit: int, *, before_seq: int | None = None, job_id: str | None = None, without: str = ""
) -> list[EventRow]:
    """Return events, the last first.

    Args:
        tx: Transaction.
        limit: Most events to return.
        before_seq: Only those before the one with this number.
        job_id: Only those of one job.
        without: Kind of events of the job that are omitted.
    """
    parameters = {"before": before_seq or 1 << 62, "most": limit, "of_job": job_id, "without": without}
    statement = _LAST_EVENTS if job_id is None else _LAST_EVENTS_OF_JOB
    return [EventRow._make(row) for row in tx.execute(statement, parameters)]


def checkpoint_events(tx: Connection, job_id: str) -> list[tuple[EventRow, int]]:
    """Return the last event of a checkpoint of each attempt of a job, and how many there are."""
    return [(EventRow._make(row[:-1]), row[-1]) for row in tx.execute(_LAST_SAVED, {"of_job": job_id})]


def last_event_of(tx: Connection, job_id: str) -> int:
    """Return the number of the last event of a job, 0 if there is none."""
    last: int = tx.execute(_LAST_EVENT_OF_JOB, {"of_job": job_id}).scalar_one()
    return last


def last_decisions(tx: Connection, limit: int, job_id: str | None = None) -> list[DecisionRow]:
    """Return decisions without what the policy saw, the last first.

    Args:
        tx: Transaction.
        limit: Most decisions to return.
        job_id: Only those on one job.
    """
    statement = _LAST_DECISIONS if job_id is None else _LAST_DECISIONS_OF_JOB
    return [DecisionRow._make(row) for row in tx.execute(statement, {"most": limit, "of_job": job_id})]


def slim_decisions_after(tx: Connection, seq: int, limit: int) -> list[DecisionRow]:
    """Return the first decisions behind one, without what the policy saw."""
    return [DecisionRow._make(row) for row in tx.execute(_DECISIONS_AFTER, {"after": seq, "most": limit})]


def last_decision_seq(tx: Connection) -> int:
    """Return the number of the last decision, 0 if there is none."""
    last: int = tx.execute(_LAST_DECISION).scalar_one()
    return last


def queued_at(tx: Connection, job_id: str, before_seq: int) -> float | None:
    """Return when a job last came into the queue before an event: Unix time, None if it never did."""
    at_s: float | None = tx.execute(_QUEUED_AT, {"of_job": job_id, "before": before_seq}).scalar_one()
    return at_s


def opened_before(tx: Connection, job_id: str, before_seq: int) -> int | None:
    """Return the number of the last attempt of a job that was opened before an event, None if none was."""
    number: int | None = tx.execute(_OPENED, {"of_job": job_id, "before": before_seq}).scalar_one()
    return number


_WAITS = and_(job.c.state == JobState.QUEUED, job.c.desired == Desired.RUN, job.c.not_before_s <= bindparam("now_s"))
_WAITING_JOBS = select(*(job.c[name] for name in WaitingJob._fields)).where(_WAITS)
# Held ones too: they come back to the queue when their owner wants.
_QUEUED = select(func.count()).where(
    job.c.owner == bindparam("of_owner"), job.c.state.in_((JobState.QUEUED, JobState.HELD))
)


def queued_of(tx: Connection, owner: str) -> int:
    """Return how many jobs of an owner are queued or held."""
    count: int = tx.execute(_QUEUED, {"of_owner": owner}).scalar_one()
    return count


def waiting_jobs(tx: Connection, now_s: float) -> list[WaitingJob]:
    """Return all jobs that stand in the queue, in no order."""
    return [WaitingJob._make(row) for row in tx.execute(_WAITING_JOBS, {"now_s": now_s})]


def listed_jobs(
    tx: Connection, states: Collection[JobState], owner: str | None = None, name: str | None = None
) -> list[str]:
    """Return the ids of the jobs in some states, in the order of submission.

    Args:
        tx: Transaction.
        states: The states.
        owner: Only those of one owner.
        name: Only those of this name; `*` stands for any text.
    """
    statement = select(job.c.id).where(job.c.state.in_(sorted(states))).order_by(job.c.submit_seq)
    if owner is not None:
        statement = statement.where(job.c.owner == owner)
    if name is not None:
        statement = statement.where(is_named(name))
    return list(tx.execute(statement).scalars())


def owners_of(tx: Connection, jobs: list[str]) -> dict[str, str]:
    """Return the owner of each of some jobs."""
    parts = [jobs[at : at + MANY] for at in range(0, len(jobs), MANY)]
    return {
        row.id: row.owner
        for part in parts
        for row in tx.execute(select(job.c.id, job.c.owner).where(job.c.id.in_(part)))
    }


MIN_COUNTED_RUN_S = 1.0  # a mean of logarithms would go by what fails at once, and by little else
UNNAMED = JobFile.model_fields["name"].default  # a default, so not a name that jobs have in common
# The partial indexes are used only for these very words, so that 0 is no parameter.
_ENDED = (job.c.ended_s.is_not(None), job.c.attempt > literal_column("0"), attempt.c.started_s.is_not(None))
_ENDED_RUNS = (
    select(
        job.c.saved_s, job.c.entered_s, attempt.c.opened_s, attempt.c.started_s, attempt.c.ended_s,
        attempt.c.overhead_s, attempt.c.slowdown,
    )
    .join(attempt, (attempt.c.job_id == job.c.id) & (attempt.c.number == job.c.attempt))
    .where(*_ENDED)
    .order_by(job.c.ended_s.desc(), job.c.submit_seq.desc())
    .limit(RECENT_JOBS)
)  # fmt: skip


_AS_OWNER, _AS_NAME, _AS_GPUS = (job.c[name] == bindparam(f"as_{name}") for name in ("owner", "name", "gpus"))
_LEVELS = {
    Alike.USER_AND_NAME: _ENDED_RUNS.where(_AS_OWNER, _AS_NAME),
    Alike.USER_AND_GPUS: _ENDED_RUNS.where(_AS_OWNER, _AS_GPUS),
    Alike.GPUS: _ENDED_RUNS.where(_AS_GPUS),
    Alike.ANY: _ENDED_RUNS,
}  # what ended jobs may have in common with a new one, the closest first


def estimated(tx: Connection, new: NewJob) -> NewJob:
    """Return a job as it is if its owner has given an estimate, else with what ended jobs let expect.

    Of each ended job what counts is the work that its attempts have done, in seconds on the reference placement,
    however it ended. Where no job has ended, the job stays as it is as well.
    """
    if new.estimate_from == GIVEN:
        return new
    asked = {"as_owner": new.owner, "as_name": new.name, "as_gpus": new.gpus}
    for alike, rows in _LEVELS.items():
        if alike is Alike.USER_AND_NAME and new.name == UNNAMED:
            continue
        works_s = [work_s for row in tx.execute(rows, asked) if (work_s := _work_s(*row)) >= MIN_COUNTED_RUN_S]
        if works_s:
            estimate_s = min(max(predicted_s(np.array(works_s[::-1])), MIN_JOB_ESTIMATE_S), YEAR_S)
            spec = {**new.spec, "estimate_s": estimate_s}
            return new._replace(
                spec=spec, estimate_s=estimate_s, estimate_from=alike.value, estimate_jobs=len(works_s)
            )  # fmt: skip
    return new


def _work_s(
    saved_s: float, entered_s: float, opened_s: float, started_s: float, ended_s: float | None, overhead_s: float,
    slowdown: float,
) -> float:  # fmt: skip
    """Return the work that the attempts of an ended job have done: what was saved, and what the last one did."""
    if ended_s is None or entered_s > opened_s or not slowdown > 0:  # it came back into the queue, and ended there
        return saved_s
    return saved_s + max(ended_s - started_s - overhead_s, 0.0) / slowdown
