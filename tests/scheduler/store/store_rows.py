"""Rows that the tests of the store begin with, and what must hold of all rows at the end."""

from typing import Unpack

from sqlalchemy import Connection

from longshore.cluster.model.placement import Placement, Share
from longshore.scheduler.model.job import JobRow
from longshore.scheduler.model.states import AttemptState, Contact, JobState
from longshore.scheduler.store.attempts import AttemptColumns, NewAttempt, get_attempt
from longshore.scheduler.store.database import Store
from longshore.scheduler.store.events import EventRow, events_after
from longshore.scheduler.store.jobs import JobColumns, NewJob, get_job, insert_job
from longshore.scheduler.store.transitions import AttemptChange, Changes, JobChange, JobStart, write_changes

NODE = "n0"


def new_job(number: int = 0, gpus: int = 1) -> NewJob:
    return NewJob(f"{number:026}", f"job-{number}", "ada", {"gpus": gpus}, 0, gpus, 60.0, float(number))


def submit(store: Store, number: int = 0, gpus: int = 1) -> JobRow:
    return store.write(lambda tx: insert_job(tx, new_job(number, gpus), writer="api"))


def opening(*gpus: int) -> NewAttempt:
    placement: Placement = (Share(NODE, gpus),)
    return NewAttempt("local", placement, slowdown=1.0, overhead_s=5.0)


def write(tx: Connection, fence: int, changes: Changes, at_s: float = 1.0) -> set[str]:
    return write_changes(tx, fence, changes, at_s=at_s, writer="scheduler")


def change_job(
    tx: Connection,
    fence: int,
    job_id: str,
    was: JobState,
    now: JobState,
    at_s: float = 1.0,
    cause: str = "because",
    **columns: Unpack[JobColumns],
) -> None:
    write(tx, fence, Changes(jobs=[JobChange(job_id, was, now, cause, columns)]), at_s)


def change_attempt(
    tx: Connection,
    fence: int,
    job: JobRow,
    now: AttemptState | Contact,
    at_s: float = 1.0,
    **columns: Unpack[AttemptColumns],
) -> None:
    """Change the first attempt of a job."""
    row = get_attempt(tx, job.id, 1)
    assert row is not None
    state, contact = (row.state, now) if isinstance(now, Contact) else (now, row.contact)
    change = AttemptChange(row, state, contact, "because", columns)
    write(tx, fence, Changes(attempts=[change]), at_s)


def start(tx: Connection, fence: int, job: JobRow, *gpus: int) -> set[str]:
    return write(tx, fence, Changes(opened=[JobStart(job, opening(*gpus), "chosen")]))


def drain(tx: Connection, fence: int, job: JobRow) -> None:
    change_attempt(tx, fence, job, AttemptState.DRAINING)


def job_now(store: Store, job_id: str) -> JobRow:
    with store.read() as tx:
        row = get_job(tx, job_id)
    assert row is not None
    return row


def all_events(store: Store, job_id: str | None = None) -> list[EventRow]:
    with store.read() as tx:
        return events_after(tx, 0, 1_000_000, job_id)


def assert_each_change_has_one_event(job: JobRow, events: list[EventRow]) -> None:
    """Versions go up by one, and each change of state begins where the one before ended."""
    of_job = [it for it in events if it.job_id == job.id and it.number is None and it.version is not None]
    assert [event.version for event in of_job] == list(range(1, job.version + 1))
    changes = [(event.was, event.now) for event in of_job if event.kind == "job"]
    states = [now for _, now in changes]
    assert [was for was, _ in changes] == ["", *states[:-1]]
    assert JobState(states[-1]) is job.state
