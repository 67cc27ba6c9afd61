"""Checkpoints in the store, on either database."""

import pytest
from sqlalchemy import Connection

from longshore.scheduler.model.states import AttemptState, JobState
from longshore.scheduler.store.attempts import (
    MAX_CHECKPOINT_EVENTS,
    MAX_CHECKPOINTS,
    SAVED,
    CheckpointRow,
    checkpoints_of,
    starting_checkpoint,
    store_checkpoint,
)
from longshore.scheduler.store.database import OlderAttemptError, Store, open_store
from longshore.scheduler.store.events import SCHEDULER_LEASE, acquire_lease

from .store_rows import all_events, change_attempt, change_job, drain, job_now, start, submit


@pytest.fixture
def job(store: Store, fence: int) -> str:
    """A job that runs."""
    row = submit(store)
    store.write(lambda tx: start(tx, fence, row, 0))
    return row.id


def running_in(store: Store) -> str:
    """A job that runs in a store that was just opened."""
    fence = store.write(lambda tx: acquire_lease(tx, SCHEDULER_LEASE, "test", now_s=0.0, ttl_s=60.0))
    assert fence is not None
    row = submit(store)
    store.write(lambda tx: start(tx, fence, row, 0))
    return row.id


def begin_again(store: Store, fence: int, job: str) -> None:
    """Let a job have its second attempt."""
    row = job_now(store, job)
    store.write(lambda tx: drain(tx, fence, row))
    store.write(lambda tx: change_attempt(tx, fence, row, AttemptState.RELEASED))
    store.write(lambda tx: change_job(tx, fence, job, JobState.STARTING, JobState.STOPPING))
    store.write(lambda tx: change_job(tx, fence, job, JobState.STOPPING, JobState.QUEUED))
    store.write(lambda tx: start(tx, fence, job_now(store, job), 0))


def save(
    store: Store,
    job: str,
    number: int,
    step: int,
    path: str = "/ckpt",
    digest: str = "",
    *,
    max_events: int = MAX_CHECKPOINT_EVENTS,
) -> bool:
    row = CheckpointRow(job, number, step, path, digest, float(step))
    return store.write(lambda tx: store_checkpoint(tx, row, writer="api", max_events=max_events))


def steps(store: Store, job: str) -> list[tuple[int, int]]:
    with store.read() as tx:
        return [(row.number, row.step) for row in checkpoints_of(tx, job)]


def test_an_older_attempt_registers_nothing_once_the_next_has_begun(store: Store, fence: int, job: str) -> None:
    assert save(store, job, 1, 100)
    begin_again(store, fence, job)

    with pytest.raises(OlderAttemptError, match="attempt 2 of job"):
        save(store, job, 1, 300)
    assert save(store, job, 2, 50)
    assert steps(store, job) == [(2, 50), (1, 100)]


def test_a_job_that_saves_for_ever_has_a_limited_number_of_events_and_its_newest_checkpoint(
    store: Store, job: str
) -> None:
    assert all(save(store, job, 1, step, max_events=3) for step in range(6))

    reported = [event.cause for event in all_events(store) if event.kind == SAVED]
    assert [it.partition(" is")[0] for it in reported] == ["step 0", "step 1", "step 2"]
    assert [it.endswith("are kept without an event") for it in reported] == [False, False, True]
    assert steps(store, job)[0] == (1, 5)


def test_a_registration_takes_as_long_however_much_was_reported_before(sqlite_url: str) -> None:
    store = open_store(sqlite_url)
    job = running_in(store)

    def instructions(step: int) -> int:
        """Return how many instructions SQLite carries out to register a checkpoint."""
        done: list[None] = []

        def write(tx: Connection) -> bool:
            sqlite = tx.connection.dbapi_connection
            assert sqlite is not None
            sqlite.set_progress_handler(lambda: done.append(None), 1)
            try:
                return store_checkpoint(tx, CheckpointRow(job, 1, step, "/ckpt", "", 0.0), writer="api")
            finally:
                sqlite.set_progress_handler(None, 1)

        assert store.write(write)
        return len(done)

    for step in range(MAX_CHECKPOINTS + 10):
        save(store, job, 1, step)
    few = instructions(1000)
    for step in range(2000, 2500):
        save(store, job, 1, step)

    assert instructions(3000) < few + 50
    store.close()


def test_an_attempt_begins_with_what_was_saved_before_it_whatever_it_saves_itself(
    store: Store, fence: int, job: str
) -> None:
    save(store, job, 1, 100, "/a")
    save(store, job, 1, 200, "/b")
    begin_again(store, fence, job)
    save(store, job, 2, 300, "/c")
    with store.read() as tx:
        found = [starting_checkpoint(tx, job, number) for number in (1, 2, 3)]
    assert [row and row.path for row in found] == [None, "/b", "/c"]


def test_a_checkpoint_that_is_reported_again_is_nothing_new_and_another_one_of_its_step_takes_its_place(
    store: Store, job: str
) -> None:
    reported = [save(store, job, 1, 5, *it) for it in (("/a",), ("/a",), ("/b",), ("/b", "ab12cd34"))]
    assert reported == [True, False, True, True]
    assert [event.cause for event in all_events(store, job) if event.kind == "checkpoint"] == [
        "step 5 is saved at /a", "step 5 is saved at /b", "step 5 is saved at /b",
    ]  # fmt: skip
    with store.read() as tx:
        assert [(row.path, row.digest) for row in checkpoints_of(tx, job)] == [("/b", "ab12cd34")]


def test_only_the_newest_are_kept(store: Store, job: str) -> None:
    for step in range(MAX_CHECKPOINTS + 3):
        save(store, job, 1, step)
    assert steps(store, job) == [(1, step) for step in range(MAX_CHECKPOINTS + 2, 2, -1)]


@pytest.mark.parametrize("number", [0, 2])
def test_there_is_no_checkpoint_of_an_attempt_that_is_not_there(store: Store, job: str, number: int) -> None:
    with pytest.raises(ValueError, match=f"no attempt {number}"):
        save(store, job, number, 1)
