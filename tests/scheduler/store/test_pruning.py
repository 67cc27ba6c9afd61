from collections.abc import Iterator
from functools import partial

import pytest
from sqlalchemy import func, select
from sqlalchemy.engine import Connection

from longshore.scheduler.api.streaming import MAX_EVENTS_AT_ONCE
from longshore.scheduler.model.job import NewEvent
from longshore.scheduler.model.states import AttemptState, JobState
from longshore.scheduler.service.retention import (
    FIRST_OLD_JOB,
    MAX_JOBS_PRUNED,
    MAX_ROWS_PRUNED,
    claim_jobs,
    count_old,
    delete_events_of,
    delete_jobs,
    delete_page,
    old_jobs,
)
from longshore.scheduler.store import schema
from longshore.scheduler.store.attempts import CheckpointRow, NewDecision, add_decisions, store_checkpoint
from longshore.scheduler.store.database import Store
from longshore.scheduler.store.events import append_all, events_after, last_seq, owners_events_after
from longshore.scheduler.store.jobs import get_job, insert_job, list_jobs, retry_job, sum_of_estimates

from .store_rows import change_attempt, change_job, drain, job_now, new_job, start, submit

ENDED_S = 1000.0
WAY, HOLD = (JobState.QUEUED, JobState.CANCELLED), (JobState.QUEUED, JobState.HELD)


def cancelled(store: Store, fence: int, number: int, at_s: float = ENDED_S) -> str:
    row = submit(store, number)
    store.write(lambda tx: change_job(tx, fence, row.id, *WAY, at_s=at_s))
    return row.id


def ended(store: Store, fence: int, number: int, *, closed: bool = True) -> str:
    """Return a job that ran, with a checkpoint and a decision."""
    row = submit(store, number)

    def work(tx: Connection) -> None:
        start(tx, fence, row, number)
        add_decisions(tx, [decision(row.id)])
        store_checkpoint(tx, CheckpointRow(row.id, 1, 7, "/there", "", 1.0), writer="job")
        drain(tx, fence, row)
        change_job(tx, fence, row.id, JobState.STARTING, JobState.STOPPING)
        change_attempt(tx, fence, row, AttemptState.RELEASED)
        change_job(tx, fence, row.id, JobState.STOPPING, JobState.SUCCEEDED, at_s=ENDED_S)
        if closed:
            change_attempt(tx, fence, row, AttemptState.CLOSED)

    store.write(work)
    return row.id


def decision(job_id: str, at_s: float = 1.0) -> NewDecision:
    return NewDecision(job_id, None, at_s, "pack", "1", "active", None, None, {}, None, None, None, None, 0.0)


def rows_of(store: Store) -> dict[str, int]:
    with store.read() as tx:
        tables = (schema.job, schema.attempt, schema.checkpoint, schema.decision, schema.event)
        return {it.name: tx.execute(select(func.count()).select_from(it)).scalar_one() for it in tables}


def pages(store: Store, table: str, before_s: float) -> Iterator[int]:
    """Delete page by page, and yield how much each deleted."""
    seq, is_last = 0, False
    while not is_last:
        delete = partial(delete_page, table=schema.METADATA.tables[table], before_s=before_s, after_seq=seq)
        seq, deleted, is_last = store.write(delete)
        yield deleted


def test_an_old_job_goes_with_all_that_belongs_to_it(store: Store, fence: int) -> None:
    old = ended(store, fence, 0)
    stays = submit(store, 1)
    with store.read() as tx:
        (found,) = old_jobs(tx, ENDED_S + 1.0)
        assert (found.id, count_old(tx, schema.job, ENDED_S + 1.0)) == (old, 1)

    assert store.write(lambda tx: delete_jobs(tx, [old, stays.id], 1e12)) == 1

    assert rows_of(store) == {"job": 1, "attempt": 0, "checkpoint": 0, "decision": 0, "event": 1}
    with store.read() as tx:
        assert get_job(tx, stays.id) == stays


@pytest.mark.parametrize("before_s", [ENDED_S, ENDED_S - 1.0])
def test_a_job_that_ended_later_stays(store: Store, fence: int, before_s: float) -> None:
    job = ended(store, fence, 0)
    with store.read() as tx:
        assert old_jobs(tx, before_s) == []
    assert store.write(lambda tx: claim_jobs(tx, [job], before_s)) == []
    assert store.write(lambda tx: delete_jobs(tx, [job], before_s)) == 0


def test_a_failed_job_is_either_claimed_or_tried_again(store: Store, fence: int) -> None:
    claimed, retried = (failed(store, fence, number) for number in range(2))
    assert store.write(lambda tx: retry_job(tx, retried, at_s=5000.0, writer="api"))

    assert store.write(lambda tx: claim_jobs(tx, [claimed, retried], 1e12)) == [claimed]

    assert not store.write(lambda tx: retry_job(tx, claimed, at_s=5000.0, writer="api"))
    assert store.write(lambda tx: delete_jobs(tx, [claimed, retried], 1e12)) == 1
    assert job_now(store, retried).state is JobState.QUEUED


def failed(store: Store, fence: int, number: int) -> str:
    row = submit(store, number)

    def work(tx: Connection) -> None:
        change_job(tx, fence, row.id, JobState.QUEUED, JobState.FAILED, at_s=ENDED_S)

    store.write(work)
    return row.id


def test_nothing_of_a_job_goes_that_has_not_ended_or_is_not_cleaned_up(store: Store, fence: int) -> None:
    waits, unclosed = submit(store, 0).id, ended(store, fence, 1, closed=False)
    runs = submit(store, 2)
    store.write(lambda tx: start(tx, fence, runs, 5))
    store.write(lambda tx: add_decisions(tx, [decision(waits), decision(runs.id)]))
    before = rows_of(store)

    with store.read() as tx:
        assert old_jobs(tx, 1e12) == []
    assert store.write(lambda tx: delete_jobs(tx, [waits, unclosed, runs.id], 1e12)) == 0
    assert rows_of(store) == before

    for table in ("event", "decision"):
        list(pages(store, table, 1e12))
    with store.read() as tx:
        for job in (waits, runs.id):
            assert next(event.version for event in events_after(tx, 0, 100, job) if event.number is None) == 1
    assert rows_of(store)["decision"] == 2


def test_sums_over_all_jobs_stay_when_jobs_are_deleted(store: Store, fence: int) -> None:
    ids = [cancelled(store, fence, number) for number in range(5)]
    submit(store, 9)
    with store.read() as tx:
        before = sum_of_estimates(tx)
    for part in (ids[:2], ids[2:]):
        store.write(lambda tx, part=part: delete_jobs(tx, part, 1e12))  # type: ignore[misc]
    with store.read() as tx:
        assert sum_of_estimates(tx) == before == (6, 360.0)


def test_events_are_numbered_on_where_they_were_though_all_were_old(store: Store, fence: int) -> None:
    job = cancelled(store, fence, 0)
    with store.read() as tx:
        last = last_seq(tx)
    store.write(lambda tx: delete_jobs(tx, [job], 1e12))
    list(pages(store, "event", 1e12))
    with store.read() as tx:
        assert last_seq(tx) == last
    submit(store, 1)
    with store.read() as tx:
        assert [event.seq for event in events_after(tx, last, 10)] == [last + 1]


def test_many_jobs_and_rows_go_in_small_batches(store: Store, fence: int) -> None:
    for number in range(MAX_JOBS_PRUNED + 5):
        cancelled(store, fence, number, at_s=ENDED_S + number % 3)
    chatty = submit(store, 999)
    store.write(lambda tx: change_job(tx, fence, chatty.id, *WAY, at_s=1e9))
    reported = [NewEvent("checkpoint", "job", 1.0, chatty.id, 1) for _ in range(MAX_ROWS_PRUNED + 7)]
    store.write(lambda tx: append_all(tx, reported))

    deleted, last, batches = 0, FIRST_OLD_JOB, 0
    while True:
        with store.read() as tx:
            batch = old_jobs(tx, ENDED_S + 10.0, last)
        if not batch:
            break
        assert len(batch) <= MAX_JOBS_PRUNED
        last, batches = batch[-1], batches + 1
        deleted += store.write(lambda tx, batch=batch: delete_jobs(tx, [it.id for it in batch], 1e12))  # type: ignore[misc]
    assert (deleted, batches) == (MAX_JOBS_PRUNED + 5, 2)

    assert store.write(lambda tx: delete_events_of(tx, chatty.id)) == MAX_ROWS_PRUNED
    assert 0 < store.write(lambda tx: delete_events_of(tx, chatty.id)) < MAX_ROWS_PRUNED


def test_old_events_and_decisions_go_and_young_ones_stay(store: Store, fence: int) -> None:
    job = cancelled(store, fence, 0, at_s=50.0)
    store.write(lambda tx: add_decisions(tx, [decision(job, float(at_s)) for at_s in range(2 * MAX_ROWS_PRUNED)]))
    deleted = list(pages(store, "decision", MAX_ROWS_PRUNED + 10.0))
    assert deleted == [MAX_ROWS_PRUNED, 10]
    assert next(iter(pages(store, "decision", MAX_ROWS_PRUNED + 10.0))) == 0
    with store.read() as tx:
        assert count_old(tx, schema.decision, 1e12) == MAX_ROWS_PRUNED - 10


def test_jobs_of_states_and_owners_are_listed_the_last_first_whatever_page(store: Store, fence: int) -> None:
    for number in range(12):
        row = store.write(
            lambda tx, number=number: insert_job(  # type: ignore[misc]
                tx, new_job(number)._replace(owner=("ada", "bob")[number % 2]), writer="api"
            )
        )
        if number % 3 == 0:
            store.write(lambda tx, row=row: change_job(tx, fence, row.id, *WAY))  # type: ignore[misc]
        if number % 3 == 1:
            store.write(lambda tx, row=row: change_job(tx, fence, row.id, *HOLD))  # type: ignore[misc]
    with store.read() as tx:
        everyone = list_jobs(tx, limit=100)
        assert [row.submit_seq for row in everyone] == sorted((row.submit_seq for row in everyone), reverse=True)
        for states in (None, [], [JobState.HELD], [JobState.CANCELLED, JobState.QUEUED], list(JobState)):
            for owner in (None, "ada", "bob", "nobody"):
                wanted = [
                    row for row in everyone
                    if (states is None or row.state in states) and owner in (None, row.owner)
                ]  # fmt: skip
                assert list_jobs(tx, limit=3, states=states, owner=owner) == wanted[:3]
                for row in wanted[2:3]:
                    page = list_jobs(tx, limit=100, states=states, owner=owner, before_seq=row.submit_seq)
                    assert page == wanted[3:]


def test_a_follower_passes_over_others_events_and_misses_none_of_its_own(store: Store) -> None:
    ada = submit(store, 0)
    bob = store.write(lambda tx: insert_job(tx, new_job(1)._replace(owner="bob"), writer="api"))
    reported = [NewEvent("checkpoint", "job", 1.0, job.id, 1) for job in [bob] * 40 + [ada, bob, ada] + [bob] * 40]
    store.write(lambda tx: append_all(tx, reported))
    with store.read() as tx:
        mine = [event for event in events_after(tx, 0, 1000) if event.job_id == ada.id]
        for limit, within in ((1, 1), (2, 7), (MAX_EVENTS_AT_ONCE, 10_000)):
            seq, got, turns = 0, [], 0
            while seq < last_seq(tx):
                rows, seq = owners_events_after(tx, seq, limit, "ada", within)
                got += rows
                turns += 1
            assert got == mine
            assert turns <= 2 + last_seq(tx) // within + len(mine) // limit
        assert owners_events_after(tx, last_seq(tx), 5, "ada", 5) == ([], last_seq(tx))
