"""Two rings that want the last free GPU, and what comes before whom when one is free again."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from longshore.scheduler.model.states import Desired, JobState
from tests.scheduler.backends.attempts import end_all
from tests.scheduler.ring_trials import RingTrial

pytestmark = pytest.mark.full


@pytest.fixture
def trial(tmp_path: Path) -> Iterator[RingTrial]:
    it = RingTrial(tmp_path, {"a": 3, "b": 2})
    yield it
    it.scheduler.close_ring_connections()
    it.close()
    end_all(tmp_path)


def test_of_two_rings_that_want_the_last_gpu_one_has_it_and_the_other_shrinks_until_another_is_free(
    trial: RingTrial,
) -> None:
    rings = [trial.submit_ring(2), trial.submit_ring(2)]
    for job in rings:
        trial.runs(job)
        trial.until(partial(trial.is_settled, job))
    waiting = trial.submit("sleep 1000", gpus=2)
    trial.way.broken = {min(trial.used(job)) for job in rings}  # a GPU of each at once, and one is free
    trial.until(lambda: all(not trial.holds(job) & trial.way.broken for job in rings))
    trial.until(lambda: sorted(map(trial.is_settled, rings)) == [False, True])
    short = next(job for job in rings if not trial.is_settled(job))
    trial.until(lambda: (report := trial.report(short)) is not None and report.phase == "running")
    assert [len(trial.holds(job)) for job in rings if job == short] == [1]
    assert "empty" in [it.now for it in trial.seats_of(short)]
    assert len({(it.node, it.gpu) for it in trial.held()}) == len(trial.held()) == 3
    assert trial.job(waiting).state is JobState.QUEUED

    trial.way.broken = set(sorted(trial.way.broken)[1:])  # one is well again
    trial.until(lambda: trial.is_settled(short))
    assert trial.job(waiting).state is JobState.QUEUED
    assert [it.now for it in trial.seats_of(short)].count("taken") == 1
    trial.assert_arrays_are_as_the_store()
    for job in (*rings, waiting):
        trial.wish(job, Desired.CANCEL)
    for job in rings:
        assert len(trial.attempts(job)) == 1
        trial.ends(job)
    assert trial.held() == []
