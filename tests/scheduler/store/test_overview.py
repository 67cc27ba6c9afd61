from functools import partial

from sqlalchemy import Connection

from longshore.cluster.model.placement import Share
from longshore.scheduler.model.job import JobRow
from longshore.scheduler.model.states import AttemptState, Contact, JobState
from longshore.scheduler.store.attempts import (
    GpuState,
    NewDecision,
    count_unknown,
    decision_rows_after,
    draining_attempts,
    last_decisions,
    occupied_gpus,
)
from longshore.scheduler.store.database import Store
from longshore.scheduler.store.events import (
    attempt_opened_before,
    last_events,
    last_seq_of_job,
    lease_takeovers,
    queued_at,
)
from longshore.scheduler.store.jobs import count_jobs, jobs_in_states, longest_wait_since
from longshore.scheduler.store.transitions import Changes

from .store_rows import NODE, all_events, change_attempt, drain, start, submit, write


def run_on(fence: int, job: JobRow, gpu: int, tx: Connection) -> None:
    start(tx, fence, job, gpu)


def test_a_gpu_shows_where_its_attempt_stands(store: Store, fence: int) -> None:
    jobs = [submit(store, number) for number in range(3)]
    for gpu, job in enumerate(jobs):
        store.write(partial(run_on, fence, job, gpu))
    store.write(lambda tx: change_attempt(tx, fence, jobs[1], AttemptState.LAUNCHED))
    store.write(lambda tx: change_attempt(tx, fence, jobs[1], AttemptState.RUNNING))
    store.write(lambda tx: drain(tx, fence, jobs[2]))

    with store.read() as tx:
        seen = {it.gpu: (it.node, it.job, it.state) for it in occupied_gpus(tx)}

    assert seen == {
        0: (NODE, "job-0", GpuState.STARTING),
        1: (NODE, "job-1", GpuState.RUNNING),
        2: (NODE, "job-2", GpuState.DRAINING),
    }


def test_every_state_has_a_count_of_jobs(store: Store, fence: int) -> None:
    first = submit(store, 0)
    submit(store, 1)
    store.write(lambda tx: start(tx, fence, first, 0))

    with store.read() as tx:
        counts = count_jobs(tx)

    assert counts == dict.fromkeys(JobState, 0) | {JobState.STARTING: 1, JobState.QUEUED: 1}


def test_an_attempt_without_contact_is_counted_until_it_is_gone(store: Store, fence: int) -> None:
    job = submit(store)
    store.write(lambda tx: start(tx, fence, job, 0))
    with store.read() as tx:
        before = count_unknown(tx)
    store.write(lambda tx: change_attempt(tx, fence, job, Contact.UNKNOWN))

    with store.read() as tx:
        assert (before, count_unknown(tx)) == (0, 1)


def test_an_attempt_that_drains_reports_since_when_and_how_many_gpus_it_holds(store: Store, fence: int) -> None:
    job = submit(store, gpus=2)
    store.write(lambda tx: start(tx, fence, job, 0, 1))
    store.write(lambda tx: drain(tx, fence, job))

    with store.read() as tx:
        (found,) = draining_attempts(tx)

    assert (found.job_id, found.number, found.since_s, found.gpus) == (job.id, 1, 1.0, 2)
    assert found.spec == {"gpus": 2}


def test_the_queue_is_reported_in_its_order_and_since_when_it_stands(store: Store, fence: int) -> None:
    for number in (3, 1, 2):
        submit(store, number)

    with store.read() as tx:
        assert [row.id for row in jobs_in_states(tx, (JobState.QUEUED,), 2)] == [f"{number:026}" for number in (1, 2)]
        assert longest_wait_since(tx) == 1.0
        assert lease_takeovers(tx) == {"scheduler": 1}


def test_the_last_events_come_first(store: Store, fence: int) -> None:
    for number in range(3):
        submit(store, number)
    events = all_events(store)

    with store.read() as tx:
        assert last_events(tx, 2) == events[:0:-1]
        assert last_events(tx, 2, before_seq=events[1].seq) == events[:1]
        assert last_events(tx, 2, job_id=f"{1:026}") == events[1:2]
        assert last_seq_of_job(tx, f"{1:026}") == events[1].seq


def test_it_is_known_when_a_job_came_into_the_queue_and_which_attempt_was_its_last(store: Store, fence: int) -> None:
    job = submit(store, 7)
    store.write(lambda tx: start(tx, fence, job, 0))
    store.write(lambda tx: drain(tx, fence, job))
    store.write(lambda tx: change_attempt(tx, fence, job, AttemptState.RELEASED, outcome="user"))
    last = all_events(store)[-1].seq

    with store.read() as tx:
        assert queued_at(tx, job.id, last) == 7.0
        assert queued_at(tx, job.id, 1) is None
        assert attempt_opened_before(tx, job.id, last) == 1
        assert attempt_opened_before(tx, job.id, 1) is None


def test_decisions_are_read_without_what_the_policy_saw(store: Store, fence: int) -> None:
    job = submit(store)
    new = NewDecision(
        job.id, None, 1.0, "p", "1", "active", (Share(NODE, (0,)),), None, {}, b"much", b"m", b"l", b"{}", 0.5
    )
    store.write(lambda tx: write(tx, fence, Changes(decisions=[new, new, new])))
    seqs = [1, 2, 3]

    with store.read() as tx:
        assert [row.seq for row in last_decisions(tx, 2)] == seqs[:0:-1]
        assert [row.seq for row in last_decisions(tx, 1, job.id)] == seqs[2:]
        assert [row.seq for row in decision_rows_after(tx, seqs[0], 9)] == seqs[1:]
        (row,) = last_decisions(tx, 1)
    assert (row.placement, row.took_s) == ((Share(NODE, (0,)),), 0.5)
