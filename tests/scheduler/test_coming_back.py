"""Jobs that wait outside of the cluster's queue, and come into it again."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from longshore.scheduler.control.state_cache import mirror_origin_of, running_progress, waiting_progress
from longshore.scheduler.model.states import Desired, JobState
from longshore.scheduler.store.attempts import unclosed_attempts
from longshore.scheduler.store.database import open_store
from longshore.scheduler.store.jobs import NewJob, insert_job, open_jobs, set_priority
from longshore.testing.twin import id_of
from tests.scheduler.troubled import Case


@pytest.fixture
def case(tmp_path: Path) -> Iterator[Case]:
    store = open_store(f"sqlite:///{tmp_path / 'store.db'}")
    yield Case(store)
    store.close()


def assert_a_restart_would_change_nothing(case: Case) -> None:
    """Check that the queue and all that is known of those in it stand in the store."""
    cache, parts = case.twin.scheduler.cache, case.twin.parts
    assert cache is not None
    with case.store.read() as tx:
        rows, attempts = open_jobs(tx), {row.job_id: row for row in unclosed_attempts(tx)}
    known = mirror_origin_of(rows, attempts, parts.layout, [], parts.now_s())
    assert list(cache.mirror.origin_now().queue) == list(known.queue)
    for row in rows:
        if row.id in known.queue and row.attempt:
            here, there = cache.mirror.progress(row.id), waiting_progress(row)
            assert (here.saved_s, here.guess_s, here.wait_s, here.entered_s, here.stops) == pytest.approx(
                (there.saved_s, there.guess_s, there.wait_s, there.entered_s, there.stops)
            )
        if row.id in attempts and row.state is JobState.RUNNING:
            here, there = cache.mirror.progress(row.id), running_progress(row, attempts[row.id], parts.layout)
            assert here.stops == there.stops


def test_a_job_that_comes_back_from_a_hold_has_all_that_it_had(case: Case) -> None:
    case.backend.saved_s = 5.0
    came_back = 0
    for turn in range(60):
        case.live_on()
        for number in case.jobs_in(JobState.HELD):
            assert case.job(number).attempt > 0
            case.wish(number, Desired.RUN)
            came_back += 1
        running = case.jobs_in(JobState.RUNNING)
        if running and came_back < 20:
            case.wish(running[turn % len(running)], Desired.HOLD)
        case.twin.tick()
        case.twin.tick()  # a job that is released is queued first, and then let in
        assert_a_restart_would_change_nothing(case)
    assert came_back > 3
    assert case.jobs_in(JobState.SUCCEEDED) == list(range(9, -1, -1))


@pytest.mark.full
def test_a_job_larger_than_the_cluster_has_become_fails_and_says_why(case: Case) -> None:
    case.live_on()
    gpus = case.twin.parts.layout.gpus + 1
    too_large = NewJob(id_of(99), "large", "ann", {"gpus": gpus, "command": ["true"]}, 0, gpus, 60.0, 0.0)
    case.store.write(lambda tx: insert_job(tx, too_large, writer="api"))

    case.live_on()

    assert (case.job(99).state, case.job(99).cause) == (JobState.FAILED, "it asks for 11 GPUs, and the cluster has 10")
    case.crash()
    case.live_on(60)
    assert case.jobs_in(JobState.SUCCEEDED) == list(range(9, -1, -1))


@pytest.mark.parametrize("state", [JobState.QUEUED, JobState.RUNNING])
def test_a_job_that_is_given_another_priority_has_its_place_at_the_next_look(case: Case, state: JobState) -> None:
    case.live_on(3)
    number = case.jobs_in(state)[0]
    case.store.write(lambda tx: set_priority(tx, id_of(number), 5, at_s=0.0, writer="api"))
    if state is JobState.RUNNING:
        case.wish(number, Desired.HOLD)
        case.twin.tick()
        case.wish(number, Desired.RUN)
        case.twin.tick()
    case.twin.tick()

    assert_a_restart_would_change_nothing(case)
    cache = case.twin.scheduler.cache
    assert cache is not None
    assert id_of(number) not in list(cache.mirror.origin_now().queue)[1:]
    case.live_on(60)
    assert case.jobs_in(JobState.SUCCEEDED) == list(range(9, -1, -1))


def test_a_release_while_a_held_job_is_still_being_stopped_is_not_lost(case: Case) -> None:
    case.live_on(3)
    number = case.jobs_in(JobState.RUNNING)[0]
    case.backend.stuck = 1
    case.wish(number, Desired.HOLD)
    case.twin.tick()
    assert case.job(number).state is JobState.STOPPING
    case.wish(number, Desired.RUN)
    case.live_on(60)
    assert case.job(number).state is JobState.SUCCEEDED
