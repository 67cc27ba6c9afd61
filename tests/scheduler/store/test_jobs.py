from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, update
from sqlalchemy.exc import IntegrityError

from longshore.scheduler.model.job import LONGEST_WAIT_S
from longshore.scheduler.model.states import FINAL, JOB_CHANGES, AfterStop, Desired, JobState
from longshore.scheduler.rules.jobs import may_enter
from longshore.scheduler.store.database import FencedError, StaleWriteError, Store
from longshore.scheduler.store.events import SCHEDULER_LEASE, acquire_lease, last_seq
from longshore.scheduler.store.jobs import get_jobs, insert_job, list_jobs, open_jobs, set_desired, waiting_jobs
from longshore.scheduler.store.schema import job as job_table
from tests.support.budgets import examples

from .store_rows import all_events, assert_each_change_has_one_event, change_job, job_now, new_job, submit

QUEUED, STARTING, HELD = JobState.QUEUED, JobState.STARTING, JobState.HELD


def changing(job_id: str, fence: int, now: JobState, was: JobState = QUEUED) -> Callable[[Connection], None]:
    return lambda tx: change_job(tx, fence, job_id, was, now, at_s=7.0)


def wishing(job_id: str, desired: Desired, version: int | None = None) -> Callable[[Connection], bool]:
    return lambda tx: set_desired(tx, job_id, desired, at_s=3.0, writer="api", version=version)


def test_a_submitted_job_waits_in_the_queue(store: Store) -> None:
    job = submit(store, 5, gpus=4)
    assert (job.state, job.desired, job.version, job.attempt) == (QUEUED, Desired.RUN, 1, 0)
    assert (job.spec, job.gpus, job.guess_s, job.entered_s) == ({"gpus": 4}, 4, 60.0, 5.0)
    assert job_now(store, job.id) == job


def test_the_jobs_that_stand_in_the_queue_are_those_that_may_enter_it(store: Store) -> None:
    now_s = 1e9
    times_s = [0.0, *(now_s + off_s for off_s in (-1e6, 0.0, 1.0, LONGEST_WAIT_S, LONGEST_WAIT_S + 1.0, 1e6))]
    for number, not_before_s in enumerate(times_s):
        of_job = update(job_table).where(job_table.c.id == submit(store, number).id)
        store.write(partial(Connection.execute, statement=of_job.values(not_before_s=not_before_s)))
    with store.read() as tx:
        rows, waiting = list_jobs(tx, limit=99), {job.id for job in waiting_jobs(tx, now_s)}
    assert waiting == {job.id for job in rows if may_enter(job, now_s)}
    assert len(waiting) == len(times_s) - 2


def test_a_job_is_submitted_once(store: Store) -> None:
    submit(store)
    with pytest.raises(IntegrityError):
        submit(store)
    assert len(all_events(store)) == 1


def test_a_change_sets_its_columns_and_leaves_one_event(store: Store, fence: int) -> None:
    job = submit(store)
    store.write(lambda tx: change_job(tx, fence, job.id, QUEUED, HELD, at_s=7.0, wait_s=7.0))
    assert job_now(store, job.id) == job._replace(state=HELD, version=2, wait_s=7.0, cause="because")
    event = all_events(store, job.id)[-1]
    assert (event.was, event.now, event.version, event.fence) == ("queued", "held", 2, fence)
    assert (event.writer, event.cause, event.at_s) == ("scheduler", "because", 7.0)


def test_the_end_of_a_job_is_written_down(store: Store, fence: int) -> None:
    job = submit(store)
    store.write(changing(job.id, fence, JobState.CANCELLED))
    assert job_now(store, job.id).ended_s == 7.0


@pytest.mark.parametrize("was", JobState)
def test_an_illegal_change_is_a_mistake_of_the_code(store: Store, fence: int, was: JobState) -> None:
    for now in set(JobState) - set(JOB_CHANGES[was]):
        with pytest.raises(ValueError, match=f"never goes from {was} to {now}"):
            store.write(changing("any", fence, now, was))


def test_a_change_of_what_was_not_read_changes_nothing(store: Store, fence: int) -> None:
    job = submit(store)
    with pytest.raises(StaleWriteError, match="1 of 1 jobs"):
        store.write(changing(job.id, fence, JobState.CANCELLED, HELD))
    assert job_now(store, job.id) == job
    assert len(all_events(store)) == 1


def test_a_writer_whose_lease_was_taken_over_changes_nothing(store: Store, fence: int) -> None:
    job = submit(store)
    new = store.write(lambda tx: acquire_lease(tx, SCHEDULER_LEASE, "other", now_s=100.0, ttl_s=60.0))
    with pytest.raises(FencedError):
        store.write(changing(job.id, fence, STARTING))
    assert job_now(store, job.id) == job
    assert new is not None
    store.write(changing(job.id, new, STARTING))
    assert job_now(store, job.id).version == 2


def test_jobs_are_listed_page_by_page_with_the_last_submitted_first(store: Store, fence: int) -> None:
    jobs = [submit(store, number) for number in range(5)]
    store.write(changing(jobs[1].id, fence, HELD))
    with store.read() as tx:
        first = list_jobs(tx, limit=2)
        assert [job.id for job in first] == [jobs[4].id, jobs[3].id]
        rest = list_jobs(tx, limit=9, before_seq=first[-1].submit_seq)
        assert [job.id for job in rest] == [jobs[2].id, jobs[1].id, jobs[0].id]
        assert [job.id for job in list_jobs(tx, limit=9, states={HELD})] == [jobs[1].id]
        assert list_jobs(tx, limit=9, owner="bob") == []


def test_open_jobs_are_those_in_no_final_state_in_the_order_of_submission(store: Store, fence: int) -> None:
    jobs = [submit(store, number) for number in (3, 1, 2)]
    store.write(changing(jobs[1].id, fence, JobState.CANCELLED))
    with store.read() as tx:
        assert [job.id for job in open_jobs(tx)] == [jobs[0].id, jobs[2].id]


def test_a_request_is_written_once(store: Store) -> None:
    job = submit(store)
    assert [store.write(wishing(job.id, Desired.HOLD)) for _ in range(2)] == [True, False]
    assert job_now(store, job.id) == job._replace(desired=Desired.HOLD, version=2)
    assert_each_change_has_one_event(job_now(store, job.id), all_events(store))


def test_a_cancel_is_never_taken_back(store: Store) -> None:
    job = submit(store)
    assert store.write(wishing(job.id, Desired.CANCEL))
    assert not store.write(wishing(job.id, Desired.RUN))
    assert job_now(store, job.id).desired is Desired.CANCEL


def test_a_request_for_another_version_than_the_user_saw_is_refused(store: Store) -> None:
    job = submit(store)
    with pytest.raises(StaleWriteError, match="has version 1, not 4"):
        store.write(wishing(job.id, Desired.HOLD, version=4))
    assert store.write(wishing(job.id, Desired.HOLD, version=1))


def test_a_request_for_no_job_is_refused(store: Store) -> None:
    with pytest.raises(ValueError, match="'nobody'"):
        store.write(wishing("nobody", Desired.HOLD))


@settings(max_examples=examples(25), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_way_through_the_states_leaves_an_event_for_each_change(
    store: Store, fence: int, data: st.DataObject
) -> None:
    job = store.write(lambda tx: insert_job(tx, new_job(last_seq(tx)), writer="api"))
    for _ in range(data.draw(st.integers(0, 8))):
        if job.state in FINAL:
            break
        now = data.draw(st.sampled_from(sorted(JOB_CHANGES[job.state])))
        after = data.draw(st.sampled_from([None, *AfterStop]))
        store.write(partial(change_job, fence=fence, job_id=job.id, was=job.state, now=now, after_stop=after))
        job = job_now(store, job.id)
        assert (job.state, job.after_stop) == (now, after)
    assert_each_change_has_one_event(job, all_events(store))


def test_many_jobs_are_read_in_the_order_of_submission(store: Store) -> None:
    jobs = [submit(store, number) for number in (5, 3, 4)]
    with store.read() as tx:
        assert get_jobs(tx, [job.id for job in sorted(jobs)] + ["none"]) == jobs
