"""A scheduler that is killed, or overtaken by another one, before and after each call that changes anything."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest
from sqlalchemy import Connection

from longshore.cluster.files.processes import this_process_name
from longshore.scheduler.control.reconciler import Reconciler
from longshore.scheduler.model.states import FINAL, Desired, JobState
from tests.scheduler.backends.attempts import end_all, until
from tests.scheduler.backends.kubernetes_trials import Trial as KubernetesTrial
from tests.scheduler.store.store_rows import assert_each_change_has_one_event
from tests.scheduler.trials import KilledError, Trial, processes_of

T = TypeVar("T")
NODES = {"a": 4, "b": 2}
CHANGING = ("write", "launch", "cancel", "forget")


class Points:
    """Counts the moments before and after calls that change anything, and does something at one of them."""

    def __init__(self, trial: Trial, monkeypatch: pytest.MonkeyPatch, number: int, do: Callable[[], object]) -> None:
        self.number, self._do, self._real = number, do, trial.store.write
        self.passed = 0
        self.armed = False
        monkeypatch.setattr(trial.store, "write", self._write)
        trial.way.before = trial.way.after = self._pass

    def _pass(self, call: str) -> None:
        if not self.armed or call not in CHANGING:
            return
        self.passed += 1
        if self.passed == self.number:
            self._do()

    def _write(self, work: Callable[[Connection], T]) -> T:
        self._pass("write")
        value = self._real(work)
        self._pass("write")
        return value


def local(folder: Path) -> Iterator[Trial]:
    """Real attempts on this machine."""
    trial = Trial(folder, NODES)
    yield trial
    trial.close()
    end_all(folder)


def kubernetes(folder: Path) -> Iterator[Trial]:
    """Real attempts under the double of a cluster."""
    (folder / "double").mkdir()
    cluster = KubernetesTrial(folder / "double", NODES)
    trial = Trial(folder, NODES, cluster.make, "kubernetes")
    yield trial
    trial.close()
    cluster.end()


@pytest.fixture(params=[local, kubernetes])
def trial(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Trial]:
    yield from request.param(tmp_path)


def killed() -> None:
    raise KilledError


def live_on(trial: Trial, points: Points) -> None:
    """Let the scheduler look once, and another process go on for it if it was killed."""
    points.armed = True
    try:
        trial.tick()
    except KilledError:
        points.armed = False
        trial.crash()
    points.armed = False


@pytest.mark.few(1)
def test_wherever_a_scheduler_is_killed_every_job_starts_once_and_ends_as_it_does(
    trial: Trial, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first attempt is adopted by its name at whatever point of its life the scheduler died."""
    number, passed = 0, 1
    while passed >= number:
        number += 1
        job = trial.submit(f"echo $LONGSHORE_ATTEMPT >> {tmp_path}/starts")
        with monkeypatch.context() as patch:
            points = Points(trial, patch, number, killed)
            until(partial(is_over, trial, job, partial(live_on, trial, points)))
        passed = points.passed
        row = trial.job(job)
        assert (row.state, row.attempt) == (JobState.SUCCEEDED, 1)
        assert (tmp_path / "starts").read_text().split().count(f"ls-{job}-1") == 1
        assert_sound(trial, job)
    assert number > 9  # so many points there were


@pytest.mark.few(1)
def test_wherever_a_scheduler_is_killed_that_cancels_a_job_it_is_cancelled_and_never_starts_again(
    trial: Trial, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    number, passed = 0, 1
    while passed >= number and number < 8:  # from there on it only asks again
        number += 1
        job = trial.submit(f"echo started >> {tmp_path}/$LONGSHORE_ATTEMPT; exec sleep 1000")
        trial.runs(job)
        trial.wish(job, Desired.CANCEL)
        with monkeypatch.context() as patch:
            points = Points(trial, patch, number, killed)
            until(partial(is_over, trial, job, partial(live_on, trial, points)))
        passed = points.passed
        assert (trial.job(job).state, trial.job(job).attempt) == (JobState.CANCELLED, 1)
        assert_sound(trial, job)
    assert number > 4


@pytest.mark.full
def test_a_scheduler_that_another_overtakes_at_any_point_changes_nothing_more_and_starts_nothing_twice(
    trial: Trial, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    number, passed = 0, 1
    while passed >= number:
        number += 1
        job = trial.submit(f"echo $LONGSHORE_ATTEMPT >> {tmp_path}/starts")
        fast = trial.another(this_process_name())
        with monkeypatch.context() as patch:
            points = Points(trial, patch, number, fast.tick)
            until(partial(is_over, trial, job, partial(look_both, trial, points, fast)))
        passed = points.passed
        row = trial.job(job)
        assert (row.state, row.attempt) == (JobState.SUCCEEDED, 1)
        assert (tmp_path / "starts").read_text().split().count(f"ls-{job}-1") == 1
        assert_sound(trial, job)
        fast.close()


def look_both(trial: Trial, points: Points, fast: Reconciler) -> None:
    """Let the slow one look, and the other one if it has overtaken it."""
    live_on(trial, points)
    if points.passed >= points.number:
        fast.tick()


def is_over(trial: Trial, job: str, look: Callable[[], None]) -> bool:
    """Let somebody look, and say whether the job has ended and nothing is left to be done."""
    look()
    return trial.job(job).state in FINAL and {row.state.value for row in trial.attempts(job)} == {"closed"}


def assert_sound(trial: Trial, job: str) -> None:
    assert trial.held() == []
    assert processes_of(job) == []
    assert_each_change_has_one_event(trial.job(job), trial.events(job))
    fences = [event.fence for event in trial.events(job) if event.fence is not None]
    assert fences == sorted(fences)
