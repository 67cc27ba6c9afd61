"""What a ring is given and gives back is written by the scheduler that leads, of attempts that run, and else not."""

from collections.abc import Callable
from functools import partial

import pytest
from sqlalchemy import Connection

from longshore.scheduler.model.job import JobRow, NewEvent, ReservationRow
from longshore.scheduler.model.states import AttemptState
from longshore.scheduler.store.attempts import held_gpus
from longshore.scheduler.store.database import FencedError, StaleWriteError, Store, TakenError
from longshore.scheduler.store.events import SCHEDULER_LEASE, acquire_lease
from longshore.scheduler.store.rings import (
    ReplacementRow,
    free_ring_gpus,
    give_ring_gpu,
    hold_ring_gpu,
    note_ring_event,
    replacements_of,
)

from .store_rows import NODE, all_events, change_attempt, drain, start, submit

Write = Callable[[Connection, str, NewEvent], None]
WRITES: dict[str, Write] = {
    "hold": lambda tx, job, event: hold_ring_gpu(tx, ReservationRow(NODE, 7, job, 1, 1.0), event),
    "give": lambda tx, job, event: give_ring_gpu(tx, ReplacementRow(job, 1, 1, NODE, 7, 1.0, {}), event),
    "give what is held": lambda tx, job, event: give_ring_gpu(
        tx, ReplacementRow(job, 1, 1, NODE, 0, 1.0, {}), event, is_held=True
    ),
    "take back": lambda tx, job, event: free_ring_gpus(tx, job, 1, [(NODE, 0)], event),
    "note": lambda tx, _job, event: note_ring_event(tx, event),
}


def event_of(job: JobRow, fence: int | None) -> NewEvent:
    return NewEvent("seat", "scheduler", 1.0, job.id, 1, fence=fence)


def everything(store: Store, job: JobRow) -> tuple[object, ...]:
    with store.read() as tx:
        return held_gpus(tx), replacements_of(tx, job.id), [event.seq for event in all_events(store)]


@pytest.fixture
def job(store: Store, fence: int) -> JobRow:
    submitted = submit(store)
    store.write(lambda tx: start(tx, fence, submitted, 0))
    for state in (AttemptState.LAUNCHED, AttemptState.RUNNING):
        store.write(partial(change_attempt, fence=fence, job=submitted, now=state))
    return submitted


@pytest.mark.parametrize("name", WRITES)
def test_each_is_written_with_its_event(store: Store, fence: int, job: JobRow, name: str) -> None:
    before = len(all_events(store))
    store.write(lambda tx: WRITES[name](tx, job.id, event_of(job, fence)))
    assert [event.kind for event in all_events(store)[before:]] == ["seat"]


@pytest.mark.parametrize("name", WRITES)
def test_a_scheduler_that_was_taken_over_writes_nothing(store: Store, fence: int, job: JobRow, name: str) -> None:
    assert store.write(lambda tx: acquire_lease(tx, SCHEDULER_LEASE, "other", now_s=100.0, ttl_s=60.0)) == 100
    before = everything(store, job)
    with pytest.raises(FencedError):
        store.write(lambda tx: WRITES[name](tx, job.id, event_of(job, fence)))
    assert everything(store, job) == before


@pytest.mark.parametrize("name", WRITES)
def test_nothing_is_written_of_an_attempt_that_does_not_run(store: Store, fence: int, job: JobRow, name: str) -> None:
    store.write(lambda tx: drain(tx, fence, job))
    before = everything(store, job)
    with pytest.raises(StaleWriteError):
        store.write(lambda tx: WRITES[name](tx, job.id, event_of(job, fence)))
    assert everything(store, job) == before


@pytest.mark.parametrize("name", WRITES)
def test_nothing_is_written_without_a_lease(store: Store, job: JobRow, name: str) -> None:
    before = everything(store, job)
    with pytest.raises(ValueError, match="leads"):
        store.write(lambda tx: WRITES[name](tx, job.id, event_of(job, None)))
    assert everything(store, job) == before


@pytest.mark.parametrize("name", ["hold", "give"])
def test_a_gpu_of_another_job_is_not_given(store: Store, fence: int, job: JobRow, name: str) -> None:
    other = submit(store, 1)
    store.write(lambda tx: start(tx, fence, other, 7))
    before = everything(store, job)
    with pytest.raises(TakenError):
        store.write(lambda tx: WRITES[name](tx, job.id, event_of(job, fence)))
    assert everything(store, job) == before


def test_a_gpu_that_is_not_held_is_not_given_as_held(store: Store, fence: int, job: JobRow) -> None:
    row = ReplacementRow(job.id, 1, 1, NODE, 7, 1.0, {})
    before = everything(store, job)
    with pytest.raises(StaleWriteError):
        store.write(lambda tx: give_ring_gpu(tx, row, event_of(job, fence), is_held=True))
    assert everything(store, job) == before
