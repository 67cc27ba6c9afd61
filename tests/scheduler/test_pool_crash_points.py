"""A scheduler that is killed, or overtaken, at any point of filling a seat: the ring holds just what it uses."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from longshore.cluster.files.processes import this_process_name
from longshore.scheduler.control.reconciler import Reconciler
from longshore.scheduler.model.states import Desired, JobState
from tests.scheduler.backends.attempts import end_all, until
from tests.scheduler.ring_trials import LATER_S, RING_PATIENCE_S, Points, RingTrial, killed, look_or_die

pytestmark = pytest.mark.full  # minutes

NODES = {"a": 4, "b": 2}


@pytest.fixture(params=[False, True], ids=["unchecked", "checked"])
def trial(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[RingTrial]:
    it = RingTrial(tmp_path, NODES, checks=request.param)
    yield it
    it.close()
    end_all(tmp_path)


def lose_one(trial: RingTrial, job: str) -> None:
    """Take a GPU away from a ring that is whole, and let an hour pass."""
    trial.later_s += LATER_S
    trial.until(lambda: trial.is_settled(job))
    trial.lose(job, min(trial.used(job)))


def fill(trial: RingTrial, job: str, look: Callable[[], None]) -> None:
    """Let somebody look until the seat is filled."""

    def is_filled() -> bool:
        look()
        return trial.is_settled(job)

    until(is_filled, RING_PATIENCE_S)


def test_wherever_a_scheduler_is_killed_the_seat_is_filled_and_no_gpu_is_held_in_vain(
    trial: RingTrial, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = trial.submit_ring(2)
    trial.until(lambda: trial.job(job).state is JobState.RUNNING and trial.is_settled(job))
    number, passed = 0, 1
    while passed >= number:
        number += 1
        before = len(trial.seats_of(job))
        lose_one(trial, job)
        with monkeypatch.context() as patch:
            points = Points(trial, patch, number, killed)
            fill(trial, job, lambda: look_or_die(trial))
        passed = points.passed
        trial.tick()
        reported = [it.now for it in trial.seats_of(job)[before:]]
        assert {"left", "taken"} <= set(reported) <= {"left", "taken", "empty", "checked", "rejected"}, number
        assert reported.count("taken") == 1
        trial.assert_arrays_are_as_the_store()
        assert len(trial.attempts(job)) == 1
    assert number > 8  # so many points there were
    trial.wish(job, Desired.CANCEL)
    trial.ends(job)
    assert trial.held() == []


def look_both(points: Points, slow: Reconciler, fast: Reconciler) -> None:
    """Let the slow one look, and the other one if it has overtaken it."""
    slow.tick()
    if not points.is_armed:
        fast.tick()


def test_a_scheduler_that_another_overtakes_at_any_point_gives_nothing_away_any_more(
    trial: RingTrial, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = trial.submit_ring(2)
    trial.until(lambda: trial.job(job).state is JobState.RUNNING and trial.is_settled(job))
    number, passed = 0, 1
    while passed >= number:
        number += 1
        lose_one(trial, job)
        slow, fast = trial.scheduler, trial.another(this_process_name())
        with monkeypatch.context() as patch:
            points = Points(trial, patch, number, fast.tick)
            fill(trial, job, partial(look_both, points, slow, fast))
        passed = points.passed
        slow.close_ring_connections()
        trial.scheduler = fast if not points.is_armed else slow
        if points.is_armed:
            fast.close()
        trial.until(lambda: trial.scheduler.cache is not None and trial.is_settled(job))
        trial.assert_arrays_are_as_the_store()
        fences = [it.fence for it in trial.events(job) if it.fence is not None]
        assert fences == sorted(fences)
        assert len(trial.attempts(job)) == 1
        trial.scheduler.close()  # or the next one waits until its lease runs out
        trial.crash()
    assert number > 8
