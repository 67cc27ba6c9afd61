"""Jobs: one row each, changed only by whoever has read its last version, and with one event a change."""

from collections.abc import Collection, Mapping
from functools import cache
from typing import NamedTuple, TypedDict, Unpack

from sqlalchemy import Connection, Update, bindparam, insert, select, update

from ..states import FINAL, JOB_CHANGES, AfterStop, Desired, JobState
from .errors import StaleWriteError
from .events import NewEvent, append
from .leases import FENCED, check_fence
from .schema import job

CHANGE, WISH, NOTE = "job", "desired", "note"  # kinds of events


class NewJob(NamedTuple):
    """A job as it is submitted."""

    id: str  # ULID in lower case
    name: str
    owner: str
    spec: Mapping[str, object]
    priority: int  # higher goes first
    gpus: int
    estimate_s: float  # run time, as its owner estimates it
    submitted_s: float


class JobRow(NamedTuple):
    """A job as the store holds it; the columns of the table say what each field is."""

    submit_seq: int
    id: str
    name: str
    owner: str
    spec: Mapping[str, object]
    desired: Desired
    state: JobState
    priority: int
    gpus: int
    estimate_s: float
    submitted_s: float
    not_before_s: float
    attempt: int
    version: int
    stops_infra: int
    stops_resource: int
    stops_user: int
    stops_asked: int
    stops_ambiguous: int
    no_progress: int
    saved_s: float
    guess_s: float
    wait_s: float
    entered_s: float
    after_stop: AfterStop | None
    cause_class: str
    cause: str
    ended_s: float | None


class JobColumns(TypedDict, total=False):
    """What can change with a job's state, or without."""

    priority: int
    not_before_s: float
    attempt: int
    stops_infra: int
    stops_resource: int
    stops_user: int
    stops_asked: int
    stops_ambiguous: int
    no_progress: int
    saved_s: float
    guess_s: float
    wait_s: float
    entered_s: float
    after_stop: AfterStop | None
    cause_class: str


_AT_FIRST = {
    **dict.fromkeys(("attempt", "stops_infra", "stops_resource", "stops_user", "stops_asked", "stops_ambiguous"), 0),
    **dict.fromkeys(("no_progress", "saved_s", "wait_s", "not_before_s"), 0),
    "cause_class": "",
    "cause": "",
    "version": 1,
    "desired": Desired.RUN,
    "state": JobState.QUEUED,
}
_COLUMNS = tuple(job.c[name] for name in JobRow._fields)
_INSERT = insert(job).returning(*_COLUMNS)
_ROWS = select(*_COLUMNS)
_ONE = _ROWS.where(job.c.id == bindparam("wanted"))
_ONE_LOCKED = _ONE.with_for_update(key_share=True)
_OPEN = _ROWS.where(job.c.state.in_(sorted(set(JobState) - FINAL))).order_by(job.c.submit_seq)


def insert_job(tx: Connection, new: NewJob, *, writer: str) -> JobRow:
    """Put a job into the queue.

    Raises:
        sqlalchemy.exc.IntegrityError: If there is a job with its id.
    """
    values = {**_AT_FIRST, **new._asdict(), "guess_s": new.estimate_s, "entered_s": new.submitted_s}
    row = JobRow._make(tx.execute(_INSERT, values).one())
    append(tx, NewEvent(CHANGE, writer, new.submitted_s, new.id, version=row.version, now=row.state.value))
    return row


def get_job(tx: Connection, job_id: str) -> JobRow | None:
    """Return a job, None if there is none with this id."""
    row = tx.execute(_ONE, {"wanted": job_id}).first()
    return None if row is None else JobRow._make(row)


def list_jobs(
    tx: Connection,
    *,
    limit: int,
    states: Collection[JobState] | None = None,
    owner: str | None = None,
    before_seq: int | None = None,
) -> list[JobRow]:
    """Return jobs, the last submitted first.

    Args:
        tx: Transaction.
        limit: Most jobs to return.
        states: Only those in one of these.
        owner: Only those of one owner.
        before_seq: Only those submitted before the job with this submit_seq: the last one of the page before.
    """
    statement = _ROWS.order_by(job.c.submit_seq.desc()).limit(limit)
    if states is not None:
        statement = statement.where(job.c.state.in_(sorted(states)))
    if owner is not None:
        statement = statement.where(job.c.owner == owner)
    if before_seq is not None:
        statement = statement.where(job.c.submit_seq < before_seq)
    return [JobRow._make(row) for row in tx.execute(statement)]


def open_jobs(tx: Connection) -> list[JobRow]:
    """Return all jobs that are in no final state, in the order of submission."""
    return [JobRow._make(row) for row in tx.execute(_OPEN)]


def set_desired(
    tx: Connection, job_id: str, desired: Desired, *, at_s: float, writer: str, version: int | None = None
) -> bool:
    """Write down what a user wants of a job. A cancel is never taken back.

    Args:
        tx: Transaction.
        job_id: The job.
        desired: What is wanted.
        at_s: Unix time.
        writer: Role that writes it.
        version: Of the job as the user saw it; any if left out.

    Returns:
        Whether anything was written: not if it was wanted already, or if the job is cancelled or has ended.

    Raises:
        ValueError: If there is no such job.
        StaleWriteError: If the job has changed since the user saw it.
    """
    row = tx.execute(_ONE_LOCKED, {"wanted": job_id}).first()
    if row is None:
        raise ValueError(f"no job has the id {job_id!r}")
    standing = JobRow._make(row)
    if version not in (None, standing.version):
        raise StaleWriteError(f"job {job_id} has version {standing.version}, not {version}")
    if standing.state in FINAL or standing.desired in (desired, Desired.CANCEL):
        return False
    _update(tx, None, job_id, standing.state, standing.version, {"desired": desired})
    change = (standing.version + 1, standing.desired.value, desired.value)
    append(tx, NewEvent(WISH, writer, at_s, job_id, None, *change))
    return True


def change_job(
    tx: Connection,
    fence: int,
    job_id: str,
    was: JobState,
    now: JobState,
    *,
    version: int,
    at_s: float,
    cause: str,
    writer: str,
    **columns: Unpack[JobColumns],
) -> int:
    """Change a job's state, with what else changes by it, and add the event.

    Args:
        tx: Transaction.
        fence: Token of the scheduler's lease.
        job_id: The job.
        was: Its state as it was read.
        now: Its next state.
        version: Its version as it was read.
        at_s: Unix time.
        cause: Why, for people.
        writer: Role that writes it.
        **columns: Other columns to set.

    Returns:
        Its next version.

    Raises:
        ValueError: If the change is not legal.
        FencedError: If another scheduler has taken over.
        StaleWriteError: If the job is not as it was read.
    """
    if now not in JOB_CHANGES[was]:
        raise ValueError(f"a job never goes from {was} to {now}")
    values: dict[str, object] = {"state": now, "cause": cause, **columns}
    if now in FINAL:
        values["ended_s"] = at_s
    _update(tx, fence, job_id, was, version, values)
    append(tx, NewEvent(CHANGE, writer, at_s, job_id, None, version + 1, was.value, now.value, fence, cause))
    return version + 1


def note_job(
    tx: Connection,
    fence: int,
    job_id: str,
    state: JobState,
    *,
    version: int,
    at_s: float,
    cause: str,
    writer: str,
    **columns: Unpack[JobColumns],
) -> int:
    """Set columns of a job that stays in its state, and add the event; arguments and errors are those of change_job."""
    _update(tx, fence, job_id, state, version, columns)
    append(tx, NewEvent(NOTE, writer, at_s, job_id, None, version + 1, "", "", fence, cause, dict(columns)))
    return version + 1


def _update(
    tx: Connection, fence: int | None, job_id: str, state: JobState, version: int, values: Mapping[str, object]
) -> None:
    at = {"at_id": job_id, "at_state": state, "at_version": version, "fence": fence}
    statement = _update_of(tuple(values), fenced=fence is not None)
    if tx.execute(statement, {**at, "version": version + 1, **values}).rowcount != 1:
        if fence is not None:
            check_fence(tx, fence)
        raise StaleWriteError(f"job {job_id} is not {state} with version {version} any more")


@cache
def _update_of(names: tuple[str, ...], *, fenced: bool) -> Update:
    """Return the statement that sets these columns; SQLAlchemy takes longer to build one than to run it."""
    at = (
        job.c.id == bindparam("at_id"),
        job.c.version == bindparam("at_version"),
        job.c.state == bindparam("at_state"),
        *((FENCED,) if fenced else ()),
    )
    return update(job).where(*at).values({name: bindparam(name) for name in (*names, "version")})
