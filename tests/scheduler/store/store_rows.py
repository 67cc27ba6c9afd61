"""Rows that the tests of the store begin with, and what must hold of all rows at the end."""

from sqlalchemy import Connection

from longshore.scheduler.backends.protocol import Placement, Share
from longshore.scheduler.states import AttemptState, JobState
from longshore.scheduler.store.attempts import Opening, change_attempt, open_attempt
from longshore.scheduler.store.events import EventRow, events_after
from longshore.scheduler.store.jobs import JobRow, NewJob, get_job, insert_job
from longshore.scheduler.store.opening import Store

NODE = "n0"


def new_job(number: int = 0, gpus: int = 1) -> NewJob:
    return NewJob(f"{number:026}", f"job-{number}", "ada", {"gpus": gpus}, 0, gpus, 60.0, float(number))


def submit(store: Store, number: int = 0, gpus: int = 1) -> JobRow:
    return store.write(lambda tx: insert_job(tx, new_job(number, gpus), writer="api"))


def opening(*gpus: int) -> Opening:
    placement: Placement = (Share(NODE, gpus),)
    return Opening("local", placement, slowdown=1.0, overhead_s=5.0)


def start(tx: Connection, fence: int, job: JobRow, *gpus: int) -> int:
    return open_attempt(tx, fence, job, opening(*gpus), at_s=1.0, cause="chosen", writer="scheduler")


def drain(tx: Connection, fence: int, job: JobRow, number: int = 1) -> None:
    was, now = AttemptState.RESERVED, AttemptState.DRAINING
    change_attempt(tx, fence, job.id, number, was, now, at_s=2.0, cause="cancelled", writer="scheduler")


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
    of_job = [event for event in events if event.job_id == job.id and event.number is None]
    assert [event.version for event in of_job] == list(range(1, job.version + 1))
    changes = [(event.was, event.now) for event in of_job if event.kind == "job"]
    states = [now for _, now in changes]
    assert [was for was, _ in changes] == ["", *states[:-1]]
    assert JobState(states[-1]) is job.state
