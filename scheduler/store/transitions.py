"""What the leading scheduler changes at one moment: any number of jobs and attempts, in one transaction.

Only the scheduler that holds the lease changes states, so a row that is in the state that was read is the row that was
read; what users want of a job (`desired`) they write beside it. Statements are run once for many rows: one by one,
SQLAlchemy would take ten times as long over them as the database does.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple, TypeVar

from sqlalchemy import ColumnElement, Connection, Insert, Update, bindparam, case, insert, select, update

from ...cluster.model.placement import Share
from ..model.job import JobRow, NewEvent
from ..model.states import ATTEMPT_CHANGES, FINAL, JOB_CHANGES, AttemptState, Contact, Desired, JobState
from . import schema
from .attempts import CHANGE as ATTEMPT_CHANGE
from .attempts import (
    CLEANUP,
    CONTACT,
    AttemptColumns,
    AttemptRow,
    NewAttempt,
    NewDecision,
    add_decisions,
    free,
    get_attempt,
    record_outcomes,
    reserve,
    unclosed_attempts,
)
from .database import StaleWriteError, Store
from .events import append, append_all, append_for_jobs, check_fence
from .jobs import CHANGE as JOB_CHANGE
from .jobs import JobColumns, NewJob, get_job, get_jobs, id_batches, insert_job, open_jobs
from .nodes import UserTurn, list_nodes, put_user_turns, set_out_of_service


class JobChange(NamedTuple):
    """A job that comes into another state."""

    job_id: str
    was: JobState  # as it was read
    now: JobState
    cause: str  # for people
    columns: JobColumns  # others to set


class AttemptChange(NamedTuple):
    """An attempt that comes into another state, or of which is known whether it can be reached.

    When it comes to RELEASED its GPUs are freed: all its processes are proven gone.
    """

    row: AttemptRow  # as it was read
    now: AttemptState
    contact: Contact
    cause: str  # for people
    columns: AttemptColumns  # others to set


class JobStart(NamedTuple):
    """A job that starts: its GPUs are reserved, and it has another attempt."""

    job: JobRow  # as it was read, queued
    opening: NewAttempt
    cause: str
    turn: UserTurn | None = None  # of its owner, with this start; None where users take no turns


@dataclass(slots=True)
class Changes:
    """What is to be written at one moment: one change of a job, and one of an attempt, at most."""

    jobs: list[JobChange] = field(default_factory=list)
    attempts: list[AttemptChange] = field(default_factory=list)
    opened: list[JobStart] = field(default_factory=list)
    decisions: list[NewDecision] = field(default_factory=list)
    events: list[NewEvent] = field(default_factory=list)  # beside those of the changes
    out_of_service: dict[str, str] = field(default_factory=dict)  # nodes that go out of service, with the reason

    def __len__(self) -> int:
        """Return how much there is."""
        rows = len(self.jobs) + len(self.attempts) + len(self.opened) + len(self.decisions)
        return rows + len(self.events) + len(self.out_of_service)

    def advanced_jobs(self) -> set[str]:
        """Return the jobs that come into another state, or an attempt of which does."""
        moved = {attempt.row.job_id for attempt in self.attempts if attempt.now is not attempt.row.state}
        return moved | {change.job_id for change in self.jobs} | {start.job.id for start in self.opened}

    def by_job(self) -> dict[str | None, "Changes"]:
        """Return the changes of each job; under None what concerns none. Those that free GPUs stand first."""
        parts: dict[str | None, Changes] = {}

        def of(job: str | None) -> Changes:
            return parts.setdefault(job, Changes())

        for attempt in self.attempts:
            of(attempt.row.job_id).attempts.append(attempt)
        for job in self.jobs:
            of(job.job_id).jobs.append(job)
        for opened in self.opened:
            of(opened.job.id).opened.append(opened)
        for decision in self.decisions:
            of(decision.job_id).decisions.append(decision)
        for event in self.events:
            of(event.job_id).events.append(event)
        if self.out_of_service:
            of(None).out_of_service |= self.out_of_service
        return parts


def changed_job(row: JobRow, change: JobChange, at_s: float) -> JobRow:
    """Return a job as it stands after a change."""
    ended_s = at_s if change.now in FINAL else row.ended_s
    values = {"state": change.now, "cause": change.cause, "version": row.version + 1, "ended_s": ended_s}
    return row._replace(**values, **change.columns)  # type: ignore[arg-type]


def changed_attempt(change: AttemptChange, at_s: float) -> AttemptRow:
    """Return an attempt as it stands after a change."""
    row = change.row
    values = {"state": change.now, "version": row.version + 1, **change.columns}
    if change.contact is not row.contact:
        values |= {"contact": change.contact, "contact_since_s": at_s}
    if change.now is not row.state:
        values["cause"] = change.cause
    return row._replace(**values)  # type: ignore[arg-type]


def opened_attempt(opened: JobStart, at_s: float) -> AttemptRow:
    """Return the attempt that a job is started with.

    Raises:
        ValueError: If the placement has not as many GPUs as the job asks for.
    """
    job, opening = opened.job, opened.opening
    gpus = sum(len(share.gpus) for share in opening.placement)
    if gpus != job.gpus:
        raise ValueError(f"the placement of job {job.id} has {gpus} GPUs, it asks for {job.gpus}")
    return AttemptRow(
        job.id, job.attempt + 1, AttemptState.RESERVED, 1, opening.backend, opening.placement, opening.slowdown,
        opening.overhead_s, at_s, None, None, Contact.OK, at_s, "", "", (), "",
    )  # fmt: skip


def opened_job(opened: JobStart) -> JobRow:
    """Return the job that is started."""
    job = opened.job
    return job._replace(
        state=JobState.STARTING, attempt=job.attempt + 1, version=job.version + 1, cause=opened.cause
    )  # fmt: skip


def write_changes(tx: Connection, fence: int, changes: Changes, *, at_s: float, writer: str) -> set[str]:
    """Write changes with their events.

    Returns:
        Jobs that were not started, since they are not wanted to run any more; their decisions are stored as if
        nothing had come of them.

    Raises:
        ValueError: If a change is not legal, or a placement has another size than the job asks for.
        FencedError: If another scheduler has taken over.
        StaleWriteError: If a job or an attempt is not in the state that was read.
        TakenError: If a GPU of a job that starts is reserved.
    """
    check_fence(tx, fence)
    entry = NewEvent("", writer, at_s, fence=fence)
    _change_attempts(tx, changes.attempts, entry)
    _change_jobs(tx, changes.jobs, entry)
    for node in list_nodes(tx) if changes.out_of_service else ():
        if node.name in changes.out_of_service and not node.out_of_service:
            set_out_of_service(tx, node, changes.out_of_service[node.name], at_s=at_s, writer=writer)
    append_all(tx, [event._replace(fence=fence) for event in changes.events])
    refused = _open_attempts(tx, changes.opened, entry)
    add_decisions(
        tx,
        [decision._replace(number=None) if decision.job_id in refused else decision for decision in changes.decisions],
    )
    return refused


def _change_jobs(tx: Connection, changes: Sequence[JobChange], entry: NewEvent) -> None:
    groups: dict[tuple[str, ...], list[dict[str, object]]] = {}
    for change in changes:
        if change.now not in JOB_CHANGES[change.was]:
            raise ValueError(f"a job never goes from {change.was} to {change.now}")
        values: dict[str, object] = {"state": change.now, "cause": change.cause, **change.columns}
        if change.now in FINAL:
            values["ended_s"] = entry.at_s
        groups.setdefault(tuple(values), []).append({"at_id": change.job_id, "at_state": change.was, **values})
    for names, rows in groups.items():
        _update_all_rows(tx, _job_update(names), rows, "job")
    of_job = entry._replace(kind=JOB_CHANGE)
    events = [
        of_job._replace(job_id=change.job_id, was=change.was.value, now=change.now.value, cause=change.cause)
        for change in changes
    ]
    append_for_jobs(tx, events)


def _change_attempts(tx: Connection, changes: Sequence[AttemptChange], entry: NewEvent) -> None:
    groups: dict[tuple[str, ...], list[dict[str, object]]] = {}
    events: list[NewEvent] = []
    for change in changes:
        row, after = change.row, changed_attempt(change, entry.at_s)
        if change.now is not row.state and change.now not in ATTEMPT_CHANGES[row.state]:
            raise ValueError(f"an attempt never goes from {row.state} to {change.now}")
        names = ("state", "version", "cause", "contact", "contact_since_s", *change.columns)
        at = {"of_job": row.job_id, "at_number": row.number, "at_state": row.state, "at_version": row.version}
        groups.setdefault(names, []).append({**at, **{name: getattr(after, name) for name in names}})
        events.extend(_events_of(change, after, entry))
    for names, rows in groups.items():
        _update_all_rows(tx, _attempt_update(names), rows, "attempt")
    released = [change for change in changes if change.now is AttemptState.RELEASED]
    free(tx, [change.row for change in released])
    record_outcomes(
        tx, [(change.row.job_id, change.row.number, change.columns.get("outcome", "")) for change in released]
    )
    append_all(tx, events)


def _events_of(change: AttemptChange, after: AttemptRow, entry: NewEvent) -> Iterable[NewEvent]:
    row = change.row
    named = entry._replace(job_id=row.job_id, number=row.number, version=after.version, cause=change.cause)
    if change.contact is not row.contact:
        yield named._replace(kind=CONTACT, was=row.contact.value, now=change.contact.value)
    if change.now is not row.state:
        yield named._replace(kind=ATTEMPT_CHANGE, was=row.state.value, now=change.now.value)
    if after.cleanup_error != row.cleanup_error:
        yield named._replace(kind=CLEANUP, cause=after.cleanup_error)


def _open_attempts(tx: Connection, opened: Sequence[JobStart], entry: NewEvent) -> set[str]:
    """Start jobs but those that are not wanted to run any more, and return these."""
    if not opened:
        return set()
    # Also of a start that its owner no longer wants: the cluster's arrays know of it.
    put_user_turns(tx, [start.turn for start in opened if start.turn is not None])
    refused = _jobs_not_to_start(tx, opened)
    starting = [start for start in opened if start.job.id not in refused]
    if not starting:
        return refused
    values = {"at_state": JobState.QUEUED, "state": JobState.STARTING}
    parameters = [
        {**values, "at_id": start.job.id, "cause": start.cause, "attempt": start.job.attempt + 1} for start in starting
    ]  # fmt: skip
    _update_all_rows(tx, _job_update(("state", "cause", "attempt")), parameters, "job")
    rows = [opened_attempt(start, entry.at_s) for start in starting]
    tx.execute(_INSERT_ATTEMPT, [row._asdict() for row in rows])
    reserve(tx, rows)
    of_job = entry._replace(kind=JOB_CHANGE, was=JobState.QUEUED.value, now=JobState.STARTING.value)
    append_for_jobs(tx, [of_job._replace(job_id=start.job.id, cause=start.cause) for start in starting])
    reserved = entry._replace(kind=ATTEMPT_CHANGE, version=1, now=AttemptState.RESERVED.value)
    append_all(
        tx,
        [reserved._replace(job_id=start.job.id, number=start.job.attempt + 1, cause=start.cause) for start in starting],
    )
    return refused


def _jobs_not_to_start(tx: Connection, opened: Sequence[JobStart]) -> set[str]:
    """Return the jobs that are not to run any more; that is locked until the transaction ends."""
    return {
        row.id
        for part in id_batches([start.job.id for start in opened])
        for row in tx.execute(_DESIRED_OF_JOBS, {"wanted": part})
        if row.desired is not Desired.RUN
    }


def _update_all_rows(tx: Connection, statement: Update, rows: Sequence[Mapping[str, object]], what: str) -> None:
    done = tx.execute(statement, rows).rowcount
    if done != len(rows):
        raise StaleWriteError(f"{len(rows) - done} of {len(rows)} {what}s are not in the state in which they were read")


@cache
def _job_update(names: tuple[str, ...]) -> Update:
    """Return the statement that sets these columns; SQLAlchemy takes longer to build one than to run it."""
    job = schema.job
    values: dict[str, ColumnElement[object]] = {name: bindparam(name) for name in names}
    if "desired" in values:
        # What its owner wanted in the meantime stands.
        wanted = bindparam("desired", type_=job.c.desired.type)
        values["desired"] = case((job.c.desired == Desired.RUN, wanted), else_=job.c.desired)
    at = (job.c.id == bindparam("at_id"), job.c.state == bindparam("at_state"))
    return update(job).where(*at).values(version=job.c.version + 1, **values)


@cache
def _attempt_update(names: tuple[str, ...]) -> Update:
    attempt = schema.attempt
    at = (
        attempt.c.job_id == bindparam("of_job"),
        attempt.c.number == bindparam("at_number"),
        attempt.c.state == bindparam("at_state"),
        attempt.c.version == bindparam("at_version"),
    )
    return update(attempt).where(*at).values({name: bindparam(name) for name in names})


_DESIRED_OF_JOBS = (
    select(schema.job.c.id, schema.job.c.desired)
    .where(schema.job.c.id.in_(bindparam("wanted", expanding=True)))
    .with_for_update(key_share=True)
)
_INSERT_ATTEMPT: Insert = insert(schema.attempt)


RowT = TypeVar("RowT")
KeyT = TypeVar("KeyT")
# What column types raise for a value that is not one of theirs.
UNREADABLE_ERRORS = (ValueError, LookupError, TypeError)

_OPEN_JOB_IDS = (
    select(schema.job.c.id)
    .where(schema.job.c.state.in_(sorted(set(JobState) - FINAL)))
    .order_by(schema.job.c.submit_seq)
)
_UNCLOSED_KEYS = (
    select(schema.attempt.c.job_id, schema.attempt.c.number)
    .where(schema.attempt.c.state.in_(sorted(set(AttemptState) - {AttemptState.CLOSED})))
    .order_by(schema.attempt.c.job_id, schema.attempt.c.number)
)


def readable_open_jobs(tx: Connection) -> tuple[list[JobRow], dict[str, str]]:
    """Return all jobs that are in no final state, in the order of submission; by id, why others cannot be read."""
    return _read_all_or_each(
        lambda: open_jobs(tx), lambda: tx.execute(_OPEN_JOB_IDS).scalars(), lambda job: get_job(tx, job)
    )


def readable_jobs(tx: Connection, job_ids: list[str]) -> tuple[list[JobRow], dict[str, str]]:
    """Return those of some jobs that there are, in the order of submission; by id, why others cannot be read."""
    rows, unreadable = _read_all_or_each(lambda: get_jobs(tx, job_ids), lambda: job_ids, lambda job: get_job(tx, job))
    return sorted(rows, key=lambda row: row.submit_seq), unreadable


def readable_unclosed_attempts(tx: Connection) -> tuple[list[AttemptRow], dict[tuple[str, int], str]]:
    """Return all attempts that still hold something, and why others cannot be read, by job and number."""
    return _read_all_or_each(
        lambda: unclosed_attempts(tx),
        lambda: [(row.job_id, row.number) for row in tx.execute(_UNCLOSED_KEYS)],
        lambda key: get_attempt(tx, *key),
    )


def hold_unreadable(tx: Connection, event: NewEvent) -> bool:
    """Hold a job that waits and cannot be read, with an event beside that of the change; return whether it waited.

    Raises:
        FencedError: If another scheduler has taken over.
    """
    check_fence(tx, event.fence or 0)
    job = schema.job
    at = (job.c.id == event.job_id, job.c.state == JobState.QUEUED)
    values = {"state": JobState.HELD, "desired": Desired.HOLD, "cause": event.cause, "version": job.c.version + 1}
    if tx.execute(update(job).where(*at).values(values)).rowcount != 1:
        return False
    was, now = JobState.QUEUED.value, JobState.HELD.value
    append_for_jobs(tx, [event._replace(kind=JOB_CHANGE, was=was, now=now)])
    append(tx, event)
    return True


def _read_all_or_each(
    read_all: Callable[[], list[RowT]], keys: Callable[[], Iterable[KeyT]], read: Callable[[KeyT], RowT | None]
) -> tuple[list[RowT], dict[KeyT, str]]:  # fmt: skip
    try:
        return read_all(), {}
    except UNREADABLE_ERRORS:
        rows, unreadable = list[RowT](), dict[KeyT, str]()
    for key in list(keys()):
        try:
            row = read(key)
        except UNREADABLE_ERRORS as error:
            unreadable[key] = f"{type(error).__name__}: {error}"
        else:
            rows.extend([] if row is None else [row])
    return rows, unreadable


TRIAL_ID = ""  # no job has this id, and no node this name


class _UndoError(Exception):
    """What was tried is to leave no trace."""


def try_writing(store: Store, fence: int, at_s: float, writer: str) -> None:
    """Submit a job, start it, and take all of it back: it writes to each table to which changes of jobs write.

    Raises:
        FencedError: If another scheduler has taken over.
        Exception: What the store has against it; it would have the same against any job.
    """

    def work(tx: Connection) -> None:
        job = insert_job(tx, NewJob(TRIAL_ID, TRIAL_ID, TRIAL_ID, {}, 0, 1, 1.0, at_s), writer=writer)
        opened = JobStart(job, NewAttempt(TRIAL_ID, (Share(TRIAL_ID, (0,)),), 1.0, 0.0), "")
        decision = NewDecision(job.id, 1, at_s, "", "", "", None, None, {}, None, None, None, None, 0.0)
        attempt = opened_attempt(opened, at_s)
        launched = AttemptChange(attempt, AttemptState.LAUNCHED, attempt.contact, "", AttemptColumns())
        for changes in (Changes(opened=[opened], decisions=[decision]), Changes(attempts=[launched])):
            write_changes(tx, fence, changes, at_s=at_s, writer=writer)
        raise _UndoError

    with suppress(_UndoError):
        store.write(work)
