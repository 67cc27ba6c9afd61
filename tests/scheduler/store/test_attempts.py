import pytest

from longshore.cluster.model.placement import Share
from longshore.scheduler.model.job import JobRow
from longshore.scheduler.model.states import AttemptState, Contact, Desired, JobState
from longshore.scheduler.store.attempts import (
    AttemptRow,
    NewDecision,
    attempts_of,
    get_attempt,
    held_gpus,
    last_decisions,
    unclosed_attempts,
)
from longshore.scheduler.store.database import FencedError, StaleWriteError, Store, TakenError
from longshore.scheduler.store.events import SCHEDULER_LEASE, acquire_lease
from longshore.scheduler.store.jobs import set_desired
from longshore.scheduler.store.transitions import Changes, JobChange, JobStart

from .store_rows import NODE, all_events, change_attempt, drain, job_now, opening, start, submit, write

RESERVED, RELEASED = AttemptState.RESERVED, AttemptState.RELEASED


def attempt_now(store: Store, job: JobRow, number: int = 1) -> AttemptRow:
    with store.read() as tx:
        row = get_attempt(tx, job.id, number)
    assert row is not None
    return row


def held(store: Store) -> list[tuple[str, int, str]]:
    with store.read() as tx:
        return [(row.node, row.gpu, row.job_id) for row in held_gpus(tx)]


def test_an_attempt_starts_the_job_and_holds_all_its_gpus(store: Store, fence: int) -> None:
    job = submit(store, gpus=2)
    assert store.write(lambda tx: start(tx, fence, job, 3, 5)) == set()
    got = attempt_now(store, job)
    assert (got.state, got.version, got.contact, got.placement) == (RESERVED, 1, Contact.OK, (Share(NODE, (3, 5)),))
    assert job_now(store, job.id) == job._replace(state=JobState.STARTING, version=2, attempt=1, cause="chosen")
    assert held(store) == [(NODE, 3, job.id), (NODE, 5, job.id)]


def test_an_attempt_holds_all_its_gpus_or_none(store: Store, fence: int) -> None:
    first, second = submit(store, 1), submit(store, 2, gpus=3)
    store.write(lambda tx: start(tx, fence, first, 1))
    with pytest.raises(TakenError, match="reserved for another attempt"):
        store.write(lambda tx: start(tx, fence, second, 0, 1, 2))
    assert held(store) == [(NODE, 1, first.id)]
    assert job_now(store, second.id) == second
    assert [event.job_id for event in all_events(store)].count(second.id) == 1


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
    store.write(lambda tx: change_attempt(tx, fence, job, RELEASED, ended_s=2.5, outcome="x"))
    got = attempt_now(store, job)
    assert (got.state, got.version, got.ended_s, got.outcome, got.cause) == ("released", 3, 2.5, "x", "because")
    assert held(store) == []


def test_only_what_drains_is_released(store: Store, fence: int) -> None:
    job = submit(store)
    store.write(lambda tx: start(tx, fence, job, 0))
    with pytest.raises(ValueError, match="never goes from reserved to released"):
        store.write(lambda tx: change_attempt(tx, fence, job, RELEASED))
    assert len(held(store)) == 1


def test_a_writer_whose_lease_was_taken_over_changes_no_attempt(store: Store, fence: int) -> None:
    job, other = submit(store), submit(store, 1)
    store.write(lambda tx: start(tx, fence, job, 0))
    row, events = attempt_now(store, job), all_events(store)
    store.write(lambda tx: acquire_lease(tx, SCHEDULER_LEASE, "other", now_s=100.0, ttl_s=60.0))
    for late in (
        lambda tx: start(tx, fence, other, 1),
        lambda tx: drain(tx, fence, job),
        lambda tx: change_attempt(tx, fence, job, Contact.UNKNOWN),
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
    store.write(lambda tx: change_attempt(tx, fence, job, Contact.UNKNOWN, at_s=9.0))
    assert attempt_now(store, job) == row._replace(contact=Contact.UNKNOWN, contact_since_s=9.0, version=2)
    assert (all_events(store)[-1].kind, all_events(store)[-1].version) == ("contact", 2)
    assert len(held(store)) == 1


def test_an_attempt_is_unclosed_until_what_it_left_is_gone(store: Store, fence: int) -> None:
    job = submit(store)
    store.write(lambda tx: start(tx, fence, job, 0))
    store.write(lambda tx: drain(tx, fence, job))
    store.write(lambda tx: change_attempt(tx, fence, job, RELEASED))
    with store.read() as tx:
        assert unclosed_attempts(tx) == attempts_of(tx, job.id)
    store.write(lambda tx: change_attempt(tx, fence, job, RELEASED, cleanup_error="busy"))
    store.write(lambda tx: change_attempt(tx, fence, job, AttemptState.CLOSED))
    with store.read() as tx:
        assert unclosed_attempts(tx) == []
        assert attempts_of(tx, job.id)[0].cleanup_error == "busy"
    assert [event.version for event in all_events(store) if event.number == 1] == [1, 2, 3, 4, 5]


def test_a_job_that_is_not_wanted_any_more_is_not_started_and_holds_up_no_other(store: Store, fence: int) -> None:
    jobs = [submit(store, number) for number in range(3)]
    store.write(lambda tx: set_desired(tx, jobs[1].id, Desired.CANCEL, at_s=2.0, writer="api"))
    opened = [JobStart(job, opening(number), "chosen") for number, job in enumerate(jobs)]
    decisions = [
        NewDecision(job.id, 1, 1.0, "set", "1f", "act", None, None, {}, None, None, None, None, 0.1) for job in jobs
    ]  # fmt: skip
    assert store.write(lambda tx: write(tx, fence, Changes(opened=opened, decisions=decisions))) == {jobs[1].id}
    assert [job_now(store, job.id).state for job in jobs] == ["starting", "queued", "starting"]
    assert [gpu for _, gpu, _ in held(store)] == [0, 2]
    with store.read() as tx:
        assert [last_decisions(tx, 1, job.id)[0].number for job in jobs] == [1, None, 1]


def test_what_cannot_all_be_written_is_not_written_at_all(store: Store, fence: int) -> None:
    first, second = submit(store, 1), submit(store, 2)
    store.write(lambda tx: start(tx, fence, first, 0))
    events = all_events(store)
    ending = [
        JobChange(first.id, JobState.STARTING, JobState.STOPPING, "over", {}),
        JobChange(second.id, JobState.RUNNING, JobState.STOPPING, "over", {}),
    ]
    with pytest.raises(StaleWriteError, match="1 of 2 jobs"):
        store.write(lambda tx: write(tx, fence, Changes(jobs=ending)))
    assert job_now(store, first.id).state is JobState.STARTING
    assert all_events(store) == events
