from functools import partial

import pytest
from sqlalchemy import Connection

from longshore.scheduler.backends.protocol import Share
from longshore.scheduler.states import AttemptState, Contact, JobState
from longshore.scheduler.store.attempts import (
    AttemptRow,
    attempts_of,
    change_attempt,
    get_attempt,
    open_attempt,
    release,
    set_contact,
    unclosed_attempts,
)
from longshore.scheduler.store.errors import FencedError, StaleWriteError, TakenError
from longshore.scheduler.store.jobs import JobRow
from longshore.scheduler.store.leases import SCHEDULER, acquire
from longshore.scheduler.store.opening import Store
from longshore.scheduler.store.reservations import free_quarantine, held_gpus
from longshore.scheduler.store.schema import Kind

from .store_rows import NODE, all_events, drain, job_now, opening, start, submit

RESERVED, DRAINING = AttemptState.RESERVED, AttemptState.DRAINING


def attempt_now(store: Store, job: JobRow, number: int = 1) -> AttemptRow:
    with store.read() as tx:
        row = get_attempt(tx, job.id, number)
    assert row is not None
    return row


def held(store: Store) -> list[tuple[str, int, str, Kind]]:
    with store.read() as tx:
        return [(row.node, row.gpu, row.job_id, row.kind) for row in held_gpus(tx)]


def test_an_attempt_starts_the_job_and_holds_all_its_gpus(store: Store, fence: int) -> None:
    job = submit(store, gpus=2)
    assert store.write(lambda tx: start(tx, fence, job, 3, 5)) == 1
    got = attempt_now(store, job)
    assert (got.state, got.version, got.contact, got.placement) == (RESERVED, 1, Contact.OK, (Share(NODE, (3, 5)),))
    assert job_now(store, job.id) == job._replace(state=JobState.STARTING, version=2, attempt=1, cause="chosen")
    assert held(store) == [(NODE, 3, job.id, Kind.HELD), (NODE, 5, job.id, Kind.HELD)]


def test_an_attempt_holds_all_its_gpus_or_none(store: Store, fence: int) -> None:
    first, second = submit(store, 1), submit(store, 2, gpus=3)
    store.write(lambda tx: start(tx, fence, first, 1))
    with pytest.raises(TakenError, match=second.id):
        store.write(lambda tx: start(tx, fence, second, 0, 1, 2))
    assert held(store) == [(NODE, 1, first.id, Kind.HELD)]
    assert job_now(store, second.id) == second
    assert [event.job_id for event in all_events(store)].count(second.id) == 1


def test_who_goes_on_after_a_taken_gpu_can_choose_others_in_the_same_transaction(store: Store, fence: int) -> None:
    first, second = submit(store, 1), submit(store, 2)
    store.write(lambda tx: start(tx, fence, first, 1))

    def choose_again(tx: Connection) -> None:
        with pytest.raises(TakenError):
            start(tx, fence, second, 1)
        start(tx, fence, second, 2)

    store.write(choose_again)
    assert [gpu for _, gpu, _, _ in held(store)] == [1, 2]


def test_a_placement_of_another_size_than_asked_for_is_a_mistake_of_the_code(store: Store, fence: int) -> None:
    job = submit(store, gpus=2)
    with pytest.raises(ValueError, match="has 1 GPUs, it asks for 2"):
        store.write(lambda tx: start(tx, fence, job, 1))


def test_a_job_that_has_changed_is_not_started(store: Store, fence: int) -> None:
    job = submit(store)
    store.write(lambda tx: start(tx, fence, job, 0))
    with pytest.raises(StaleWriteError):
        store.write(lambda tx: start(tx, fence, job, 1))
    assert len(held(store)) == 1


def test_a_draining_attempt_holds_its_gpus_until_it_is_released(store: Store, fence: int) -> None:
    job = submit(store)
    store.write(lambda tx: start(tx, fence, job, 0))
    store.write(lambda tx: drain(tx, fence, job))
    assert len(held(store)) == 1
    store.write(lambda tx: release(tx, fence, job.id, 1, at_s=3.0, cause="gone", writer="s", ended_s=2.5, outcome="x"))
    got = attempt_now(store, job)
    assert (got.state, got.version, got.ended_s, got.outcome, got.cause) == ("released", 3, 2.5, "x", "gone")
    assert held(store) == []


def test_only_what_drains_is_released(store: Store, fence: int) -> None:
    job = submit(store)
    store.write(lambda tx: start(tx, fence, job, 0))
    with pytest.raises(StaleWriteError):
        store.write(lambda tx: release(tx, fence, job.id, 1, at_s=3.0, cause="gone", writer="s"))
    with pytest.raises(ValueError, match="use release"):
        store.write(
            lambda tx: change_attempt(
                tx, fence, job.id, 1, DRAINING, AttemptState.RELEASED, at_s=3.0, cause="gone", writer="s"
            )
        )
    assert len(held(store)) == 1


def test_gpus_of_a_silent_node_stay_in_quarantine_until_it_is_freed(store: Store, fence: int) -> None:
    job = submit(store, gpus=3)
    shares = (Share("n0", (0, 1)), Share("n1", (0,)))
    begin = opening()._replace(placement=shares)
    store.write(lambda tx: open_attempt(tx, fence, job, begin, at_s=1.0, cause="chosen", writer="s"))
    store.write(lambda tx: drain(tx, fence, job))
    store.write(lambda tx: release(tx, fence, job.id, 1, at_s=3.0, cause="silent", writer="s", quarantine=["n0"]))
    assert held(store) == [("n0", gpu, job.id, Kind.QUARANTINE) for gpu in (0, 1)]
    other = submit(store, 1)
    with pytest.raises(TakenError):
        store.write(lambda tx: start(tx, fence, other, 0))
    freeing = partial(free_quarantine, fence=fence, node="n0", at_s=9.0, cause="rebooted", writer="s")
    assert [store.write(freeing) for _ in range(2)] == [2, 0]
    assert held(store) == []
    assert all_events(store)[-1].data == {"node": "n0", "gpus": 2}


def test_a_writer_whose_lease_was_taken_over_changes_no_attempt(store: Store, fence: int) -> None:
    job, other = submit(store), submit(store, 1)
    store.write(lambda tx: start(tx, fence, job, 0))
    row, events = attempt_now(store, job), all_events(store)
    store.write(lambda tx: acquire(tx, SCHEDULER, "other", now_s=100.0, ttl_s=60.0))
    lose = partial(set_contact, row=row, contact=Contact.UNKNOWN, at_s=1.0, cause="late", writer="old")
    for late in (
        lambda tx: start(tx, fence, other, 1),
        lambda tx: drain(tx, fence, job),
        lambda tx: release(tx, fence, job.id, 1, at_s=1.0, cause="late", writer="old"),
        lambda tx: lose(tx, fence),
        lambda tx: free_quarantine(tx, fence, NODE, at_s=1.0, cause="late", writer="old"),
    ):
        with pytest.raises(FencedError):
            store.write(late)
    assert attempt_now(store, job) == row
    assert all_events(store) == events
    assert len(held(store)) == 1


def test_losing_contact_changes_neither_state_nor_gpus(store: Store, fence: int) -> None:
    job = submit(store)
    store.write(lambda tx: start(tx, fence, job, 0))
    row = attempt_now(store, job)
    store.write(lambda tx: set_contact(tx, fence, row, Contact.UNKNOWN, at_s=9.0, cause="silent", writer="s"))
    assert attempt_now(store, job) == row._replace(contact=Contact.UNKNOWN, contact_since_s=9.0, version=2)
    assert (all_events(store)[-1].kind, all_events(store)[-1].version) == ("contact", 2)
    assert len(held(store)) == 1


def test_an_attempt_is_unclosed_until_what_it_left_is_gone(store: Store, fence: int) -> None:
    job = submit(store)
    store.write(lambda tx: start(tx, fence, job, 0))
    store.write(lambda tx: drain(tx, fence, job))
    store.write(lambda tx: release(tx, fence, job.id, 1, at_s=1.0, cause="gone", writer="s"))
    with store.read() as tx:
        assert unclosed_attempts(tx) == attempts_of(tx, job.id)
    was, now = AttemptState.RELEASED, AttemptState.CLOSED
    closing = partial(change_attempt, at_s=1.0, cause="gone", writer="s", cleanup_error="busy")
    store.write(lambda tx: closing(tx, fence, job.id, 1, was, now))
    with store.read() as tx:
        assert unclosed_attempts(tx) == []
        assert attempts_of(tx, job.id)[0].cleanup_error == "busy"
    assert [event.version for event in all_events(store) if event.number == 1] == [1, 2, 3, 4]
