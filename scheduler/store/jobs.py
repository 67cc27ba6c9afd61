"""Jobs: one row each, changed only by a writer that has read its last version; retries, and repeated requests.

A job whose owner gives no estimate of its run time gets one from the jobs that have ended, when it is submitted: so it
stays the same whatever ends later.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple, TypedDict

import numpy as np
from sqlalchemy import (
    ColumnElement,
    CompoundSelect,
    Connection,
    Select,
    and_,
    bindparam,
    case,
    delete,
    false,
    func,
    insert,
    literal_column,
    or_,
    select,
    union_all,
    update,
)

from ...cluster.workloads.estimates import RECENT_JOBS, Alike, predicted_work_s
from ..model.job import LONGEST_WAIT_S, JobRow, NewEvent
from ..model.job_spec import MIN_JOB_ESTIMATE_S, YEAR_S, JobFile
from ..model.states import FINAL, AfterStop, Desired, JobState
from ..rules.jobs import RetryStep, WaitingJob, retry_step
from .database import StaleWriteError
from .events import append
from .schema import attempt, idempotency, insert_if_absent, job, pruned

CHANGE, DESIRED, PRIORITY = "job", "desired", "priority"  # kinds of events


GIVEN, UNKNOWN = "given", "unknown"  # by its owner; by no one
MANY = 500  # ids in one statement
MAX_ESTIMATE_S = 1e12


class NewJob(NamedTuple):
    """A job as it is submitted."""

    id: str  # ULID in lower case
    name: str
    owner: str
    spec: Mapping[str, object]
    priority: int  # higher goes first
    gpus: int
    estimate_s: float  # run time, as its owner estimates it, or ended jobs let expect
    submitted_s: float
    estimate_from: str = GIVEN  # UNKNOWN, or what the ended jobs have in common with it that the estimate is from
    estimate_jobs: int = 0  # how many these are


class JobColumns(TypedDict, total=False):
    """What can change with a job's state."""

    desired: Desired  # HOLD in place of RUN, never in place of CANCEL
    not_before_s: float
    stops_infra: int
    stops_resource: int
    stops_user: int
    stops_again: int
    stops_ambiguous: int
    no_progress: int
    saved_s: float
    guess_s: float
    wait_s: float
    entered_s: float
    after_stop: AfterStop | None
    cause_class: str
    reached_step: float | None


_AT_FIRST = {
    **dict.fromkeys(("attempt", "stops_infra", "stops_resource", "stops_user", "stops_again", "stops_ambiguous"), 0),
    **dict.fromkeys(("no_progress", "saved_s", "wait_s", "not_before_s"), 0),
    "cause_class": "",
    "cause": "",
    "version": 1,
    "desired": Desired.RUN,
    "state": JobState.QUEUED,
}
_JOB_COLUMNS = tuple(job.c[name] for name in JobRow._fields)
_INSERT_JOB = insert(job).returning(*_JOB_COLUMNS)
_ALL_JOBS = select(*_JOB_COLUMNS)
_ONE_JOB = _ALL_JOBS.where(job.c.id == bindparam("wanted"))
_ONE_JOB_LOCKED = _ONE_JOB.with_for_update(key_share=True)
_SOME_JOBS = _ALL_JOBS.where(job.c.id.in_(bindparam("wanted", expanding=True)))
_SET_DESIRED = (
    update(job).where(job.c.id == bindparam("at_id")).values(desired=bindparam("wanted"), version=job.c.version + 1)
)
# An estimate out of range must not dominate the mean of all.
ESTIMATE_S = case((job.c.estimate_s.between(0.0, MAX_ESTIMATE_S), job.c.estimate_s), else_=0.0)
_ESTIMATES = select(func.count(), func.coalesce(func.sum(ESTIMATE_S), 0.0))
_PRUNED = select(pruned.c.jobs, pruned.c.estimates_s)
_PRIORITY = (
    update(job).where(job.c.id == bindparam("at_id")).values(priority=bindparam("wanted"), version=job.c.version + 1)
)
_OPEN_JOBS = _ALL_JOBS.where(job.c.state.in_(sorted(set(JobState) - FINAL))).order_by(job.c.submit_seq)


def insert_job(tx: Connection, new: NewJob, *, writer: str) -> JobRow:
    """Put a job into the queue.

    Raises:
        sqlalchemy.exc.IntegrityError: If there is a job with its id.
    """
    values = {**_AT_FIRST, **new._asdict(), "guess_s": new.estimate_s, "entered_s": new.submitted_s}
    row = JobRow._make(tx.execute(_INSERT_JOB, values).one())
    append(tx, NewEvent(CHANGE, writer, new.submitted_s, new.id, version=row.version, now=row.state.value))
    return row


def id_batches(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    """Yield ids in their order, as many as one statement takes."""
    return (ids[at : at + MANY] for at in range(0, len(ids), MANY))


def get_job(tx: Connection, job_id: str) -> JobRow | None:
    """Return a job, None if there is none with this id."""
    row = tx.execute(_ONE_JOB, {"wanted": job_id}).first()
    return None if row is None else JobRow._make(row)


def get_jobs(tx: Connection, job_ids: Sequence[str]) -> list[JobRow]:
    """Return those of some jobs that there are, in the order of submission."""
    rows = [JobRow._make(row) for part in id_batches(job_ids) for row in tx.execute(_SOME_JOBS, {"wanted": part})]
    return sorted(rows, key=lambda row: row.submit_seq)


def list_jobs(
    tx: Connection,
    *,
    limit: int,
    states: Collection[JobState] | None = None,
    owner: str | None = None,
    name: str | None = None,
    before_seq: int | None = None,
) -> list[JobRow]:
    """Return jobs submitted before the one of a submit_seq, the last first; in a name, `*` stands for any text."""
    wanted = [] if owner is None else [job.c.owner == owner]
    if name is not None:
        wanted.append(name_condition(name))
    if before_seq is not None:
        wanted.append(job.c.submit_seq < before_seq)
    if states is not None:
        wanted.append(job.c.submit_seq.in_(_newest_of_each(sorted(states), wanted, limit)))
    statement = _ALL_JOBS.where(*wanted).order_by(job.c.submit_seq.desc()).limit(limit)
    return [JobRow._make(row) for row in tx.execute(statement)]


def _newest_of_each(
    states: Sequence[JobState], wanted: Sequence[ColumnElement[bool]], limit: int
) -> CompoundSelect[tuple[int]] | Select[tuple[int]]:
    """Select the last jobs in each state: of one state an index has them in order, of several it has not."""
    newest = select(job.c.submit_seq).where(*wanted).order_by(job.c.submit_seq.desc()).limit(limit)
    parts = [select(newest.where(job.c.state == state).subquery().c.submit_seq) for state in states]
    return union_all(*parts) if parts else newest.where(false())


def name_condition(name: str) -> ColumnElement[bool]:
    """Return what holds for jobs of a name, in which `*` stands for any text."""
    return job.c.name.like(name.replace("*", "%")) if "*" in name else job.c.name == name


def open_jobs(tx: Connection) -> list[JobRow]:
    """Return all jobs that are in no final state, in the order of submission."""
    return [JobRow._make(row) for row in tx.execute(_OPEN_JOBS)]


def sum_of_estimates(tx: Connection) -> tuple[int, float]:
    """Return how many jobs there have been, and the sum of their estimates; deleted ones count as well."""
    count, sum_s = tx.execute(_ESTIMATES).one()
    deleted, deleted_s = tx.execute(_PRUNED).first() or (0, 0.0)
    return int(count + deleted), float(sum_s + deleted_s)


def set_desired(
    tx: Connection, job_id: str, desired: Desired, *, at_s: float, writer: str, version: int | None = None
) -> bool:
    """Write down what a user wants of a job, which the user saw in a version. A cancel is never taken back.

    Returns:
        Whether anything was written: not if it was wanted already, or if the job is cancelled or has ended.

    Raises:
        ValueError: If there is no such job.
        StaleWriteError: If the job has changed since the user saw it.
    """
    row = lock_job(tx, job_id, version)
    if row.state in FINAL or row.desired in (desired, Desired.CANCEL):
        return False
    tx.execute(_SET_DESIRED, {"at_id": job_id, "wanted": desired})
    change = (row.version + 1, row.desired.value, desired.value)
    append(tx, NewEvent(DESIRED, writer, at_s, job_id, None, *change))
    return True


def set_priority(
    tx: Connection, job_id: str, priority: int, *, at_s: float, writer: str, version: int | None = None
) -> bool:
    """Give a job another priority; the user saw it in a version.

    Returns:
        Whether anything was written: not if it has it already, or if the job has ended.

    Raises:
        ValueError: If there is no such job.
        StaleWriteError: If the job has changed since the user saw it.
    """
    row = lock_job(tx, job_id, version)
    if row.state in FINAL or row.priority == priority:
        return False
    tx.execute(_PRIORITY, {"at_id": job_id, "wanted": priority})
    change = (row.version + 1, str(row.priority), str(priority))
    append(tx, NewEvent(PRIORITY, writer, at_s, job_id, None, *change))
    return True


def lock_job(tx: Connection, job_id: str, version: int | None = None) -> JobRow:
    """Return a job that a user wants to change, locked.

    Raises:
        ValueError: If there is no such job.
        StaleWriteError: If it has another version than the user saw.
    """
    row = tx.execute(_ONE_JOB_LOCKED, {"wanted": job_id}).first()
    if row is None:
        raise ValueError(f"no job has the id {job_id!r}")
    job_row = JobRow._make(row)
    if version not in (None, job_row.version):
        raise StaleWriteError(f"job {job_id} has version {job_row.version}, not {version}")
    return job_row


CAUSE = "to be tried again, as its owner wants"

_FRESH = {
    **dict.fromkeys(("stops_infra", "stops_resource", "stops_user", "stops_again", "stops_ambiguous"), 0),
    "no_progress": 0,
    "desired": Desired.RUN,
    "version": job.c.version + 1,
}
_AGAIN = (
    update(job)
    .where(job.c.id == bindparam("at_id"))
    .values(
        **_FRESH, state=JobState.QUEUED, cause=CAUSE, after_stop=None, ended_s=None, not_before_s=0.0,
        entered_s=bindparam("at_s"), wait_s=0.0,  # what it waited before its last run, that run was for
    )
)  # fmt: skip
_FORWARD = (
    update(job)
    .where(job.c.id.in_(bindparam("ids", expanding=True)), job.c.state == JobState.QUEUED)
    .values(not_before_s=bindparam("at_s"))
)
_RELEASE = update(job).where(job.c.id == bindparam("at_id")).values(**_FRESH)


def retry_job(tx: Connection, job_id: str, *, at_s: float, writer: str) -> bool:
    """Put a failed job back into the queue, or let one run that is held; with all its tries, as if it had used none.

    No scheduler knows a job that has ended: so this is the one change of a state that is not the scheduler's, and it
    handles the job like one that is new. One that is held it lets into the queue itself.

    Returns:
        Whether anything was written: not of a job that is to run, or is about to, or ended in another way.

    Raises:
        ValueError: If there is no such job.
    """
    row = lock_job(tx, job_id)
    step, version = retry_step(row), row.version + 1
    if step is RetryStep.REQUEUE:
        tx.execute(_AGAIN, {"at_id": job_id, "at_s": at_s})
        change = (version, row.state.value, JobState.QUEUED.value)
        append(tx, NewEvent(CHANGE, writer, at_s, job_id, None, *change, cause=CAUSE))
    elif step is RetryStep.RELEASE:
        tx.execute(_RELEASE, {"at_id": job_id})
        change = (version, row.desired.value, Desired.RUN.value)
        append(tx, NewEvent(DESIRED, writer, at_s, job_id, None, *change, cause=CAUSE))
    else:
        return False
    return True


def bring_start_forward(tx: Connection, job_ids: Sequence[str], at_s: float) -> None:
    """Let those of some jobs that wait for a later time be started from now on."""
    for part in id_batches(job_ids):
        tx.execute(_FORWARD, {"ids": part, "at_s": at_s})


class StoredAnswer(NamedTuple):
    """What was answered to a request."""

    request: str  # SHA-256 of the job file with its defaults, in hexadecimal
    body: str  # the same of what was sent
    status: int
    response: Mapping[str, object]
    at_s: float  # Unix time


_ONE_ANSWER = select(*(idempotency.c[name] for name in StoredAnswer._fields)).where(
    idempotency.c.owner == bindparam("of_owner"), idempotency.c.key == bindparam("of_key")
)
_DELETE_ANSWERS = delete(idempotency).where(idempotency.c.at_s < bindparam("before_s"))


def find_answer(tx: Connection, owner: str, key: str) -> StoredAnswer | None:
    """Return what was answered to an owner's request with a key, None if there was none."""
    row = tx.execute(_ONE_ANSWER, {"of_owner": owner, "of_key": key}).first()
    return None if row is None else StoredAnswer._make(row)


def keep_answer(tx: Connection, owner: str, key: str, answer: StoredAnswer) -> bool:
    """Keep an answer in the transaction of its change; return False if there already is one: then undo the change."""
    return insert_if_absent(tx, idempotency, {"owner": owner, "key": key, **answer._asdict()})


def delete_answers(tx: Connection, before_s: float) -> int:
    """Delete the answers given before a Unix time, and return how many they were."""
    return tx.execute(_DELETE_ANSWERS, {"before_s": before_s}).rowcount


_COUNTS = select(job.c.state, func.count().label("jobs")).group_by(job.c.state)
_WAITS_SINCE = select(func.min(job.c.entered_s)).where(job.c.state == JobState.QUEUED)


def count_jobs(tx: Connection) -> dict[JobState, int]:
    """Return how many jobs are in each state; a state without jobs counts 0."""
    return dict.fromkeys(JobState, 0) | {row.state: row.jobs for row in tx.execute(_COUNTS)}


def longest_wait_since(tx: Connection) -> float | None:
    """Return when the job came into the queue that waits longest: Unix time, None if none waits."""
    since_s: float | None = tx.execute(_WAITS_SINCE).scalar_one()
    return since_s


def jobs_in_states(tx: Connection, states: Sequence[JobState], limit: int) -> list[JobRow]:
    """Return jobs in one of some states that have not ended, the first to be served first."""
    assert FINAL.isdisjoint(states)
    rows = _ALL_JOBS.where(job.c.state.in_(states)).order_by(job.c.priority.desc(), job.c.entered_s, job.c.submit_seq)
    return [JobRow._make(row) for row in tx.execute(rows.limit(limit))]


# As `JobRow.wait_left_s`.
_HAS_WAITED = or_(job.c.not_before_s <= bindparam("now_s"), job.c.not_before_s - LONGEST_WAIT_S > bindparam("now_s"))
_WAITS = and_(job.c.state == JobState.QUEUED, job.c.desired == Desired.RUN, _HAS_WAITED)
_WAITING_JOBS = select(*(job.c[name] for name in WaitingJob._fields)).where(_WAITS)
# Held ones too: they come back to the queue when their owner wants.
_QUEUED = select(func.count()).where(
    job.c.owner == bindparam("of_owner"), job.c.state.in_((JobState.QUEUED, JobState.HELD))
)


def count_queued(tx: Connection, owner: str) -> int:
    """Return how many jobs of an owner are queued or held."""
    count: int = tx.execute(_QUEUED, {"of_owner": owner}).scalar_one()
    return count


def waiting_jobs(tx: Connection, now_s: float) -> list[WaitingJob]:
    """Return all jobs that stand in the queue, in no order."""
    return [WaitingJob._make(row) for row in tx.execute(_WAITING_JOBS, {"now_s": now_s})]


def filtered_job_ids(
    tx: Connection, states: Collection[JobState], owner: str | None = None, name: str | None = None
) -> list[str]:
    """Return the ids of jobs in the order of submission; in a name, `*` stands for any text."""
    statement = select(job.c.id).where(job.c.state.in_(sorted(states))).order_by(job.c.submit_seq)
    if owner is not None:
        statement = statement.where(job.c.owner == owner)
    if name is not None:
        statement = statement.where(name_condition(name))
    return list(tx.execute(statement).scalars())


def owners_of(tx: Connection, jobs: list[str]) -> dict[str, str]:
    """Return the owner of each of some jobs."""
    return {
        row.id: row.owner
        for part in id_batches(jobs)
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


def with_estimate(tx: Connection, new: NewJob) -> NewJob:
    """Return a job as it is if its owner has given an estimate, else with what ended jobs let expect.

    Of each ended job what counts is the work that its attempts have done, in seconds on the reference placement,
    however it ended. Where no job has ended, the job stays as it is as well.
    """
    if new.estimate_from == GIVEN:
        return new
    common = {"as_owner": new.owner, "as_name": new.name, "as_gpus": new.gpus}
    for alike, rows in _LEVELS.items():
        if alike is Alike.USER_AND_NAME and new.name == UNNAMED:
            continue
        works_s = [work_s for row in tx.execute(rows, common) if (work_s := _work_s(*row)) >= MIN_COUNTED_RUN_S]
        if works_s:
            estimate_s = min(max(predicted_work_s(np.array(works_s[::-1])), MIN_JOB_ESTIMATE_S), YEAR_S)
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
