"""Errors about several jobs at once: who is held, and who is not."""

import math
from collections.abc import Iterator
from pathlib import Path

import pytest

from longshore.scheduler.control import attempt_driver
from longshore.scheduler.control import reconciler as loop
from longshore.scheduler.control import steps as judging
from longshore.scheduler.control.job_errors import (
    ERROR_EVENT,
    FIRST_REST_S,
    LONGEST_REST_S,
    MAX_ERRORS_IN_A_ROW,
    JobErrors,
    SpoiledError,
)
from longshore.scheduler.control.reconciler import Reconciler
from longshore.scheduler.control.state_cache import StateCache
from longshore.scheduler.model.states import JobState
from longshore.scheduler.placement.placer import Decision, Placer
from longshore.scheduler.store import transitions as changes
from longshore.scheduler.store.attempts import CheckpointRow
from longshore.scheduler.store.database import FencedError, StaleWriteError, StoreUnreachableError
from tests.scheduler.breaking import NODES, Place, breaks
from tests.scheduler.obedient_trial import ReportingTrial, obedient_trial


@pytest.fixture
def trial(tmp_path: Path) -> Iterator[ReportingTrial]:
    with obedient_trial(ReportingTrial, tmp_path, NODES) as made:
        yield made


@pytest.mark.parametrize(
    "place", [Place(Placer, "decide"), Place(attempt_driver, "attempt_to_launch")], ids=lambda it: it.name
)
def test_what_fails_for_most_jobs_at_once_holds_none_of_them_and_they_start_when_it_is_gone(
    place: Place, trial: ReportingTrial, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(place.owner, place.name, lambda *_: 1 / 0)
        jobs = [trial.submit("one"), trial.submit("two")]
        trial.wait(30.0, 1.0)
    trial.wait(90.0, 1.0)

    assert {trial.job(job).state for job in jobs} == {JobState.RUNNING}
    assert not [it for it in trial.events() if it.kind == ERROR_EVENT]


def test_a_job_starts_in_the_tick_in_which_any_number_before_it_cannot_be_handled(
    trial: ReportingTrial, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = {trial.submit("bad") for _ in range(3 * loop.MAX_CYCLES)}
    good = trial.submit("good")
    real = Reconciler._apply_decision

    def apply(self: Reconciler, cache: StateCache, decision: Decision, now_s: float) -> None:
        if decision.job in bad:
            raise KeyError("a bug")
        real(self, cache, decision, now_s)

    monkeypatch.setattr(Reconciler, "_apply_decision", apply)
    monkeypatch.setattr(loop, "MAX_CYCLES_S", math.inf)  # however slow this machine is
    trial.tick()

    assert trial.job(good).state is not JobState.QUEUED
    assert {trial.job(job).state for job in bad} == {JobState.QUEUED}


def test_several_jobs_of_which_nothing_can_be_written_are_all_held_and_stop_no_one(
    trial: ReportingTrial, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = [trial.submit("bad"), trial.submit("bad")]
    for job in bad:
        breaks(Place(changes, "reserve"), lambda job=job: job, monkeypatch)  # type: ignore[misc]

    trial.wait(20.0, 1.0)

    assert {trial.job(job).state for job in bad} == {JobState.HELD}
    assert "a bug in reserve" in trial.job(bad[1]).cause
    good = trial.submit("good")
    trial.runs(good)


def test_several_jobs_whose_checkpoints_cannot_be_written_are_all_identified(
    trial: ReportingTrial, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = [trial.submit("bad"), trial.submit("bad")]
    for job in bad:
        trial.runs(job)
        breaks(Place(judging, "store_checkpoint"), lambda job=job: job, monkeypatch)  # type: ignore[misc]
    cache = trial.scheduler.cache
    assert cache is not None
    notes = judging._Notes(saved=[CheckpointRow(job, 1, 40, "/ckpt/40", "", trial.now_s()) for job in bad])

    with pytest.raises(SpoiledError):
        judging._write_notes(cache, notes, trial.now_s())

    assert all("a bug in store_checkpoint" in trial.scheduler.errors.last_error(job) for job in bad)


def test_errors_with_polls_between_them_that_succeed_do_not_add_up(
    trial: ReportingTrial, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = trial.submit("one")
    trial.runs(job)
    for _ in range(2 * MAX_ERRORS_IN_A_ROW):
        with monkeypatch.context() as broken:
            failures = breaks(Place(attempt_driver, "_attempt_view"), lambda: job, broken)
            trial.wait(1.0, 1.0)
        assert failures
        trial.wait(5.0, 1.0)
        assert not trial.scheduler.errors.last_error(job)


@pytest.mark.parametrize(
    "error", [FencedError("f"), StaleWriteError("s"), StoreUnreachableError("u")], ids=lambda it: type(it).__name__
)
def test_what_is_the_stores_doing_is_no_jobs_fault(error: Exception) -> None:
    errors = JobErrors()

    for _ in range(9):
        with pytest.raises(type(error)), errors.isolated("j", 0.0, lambda: 0):
            raise error

    assert not errors.is_failing("j")


def test_errors_count_in_a_row_only_and_a_job_rests_after_each_for_longer() -> None:
    errors, now_s = JobErrors(), 0.0

    def fail() -> None:
        with errors.isolated("j", now_s, lambda: 0):
            raise ValueError("x")

    for number in range(1, 12):
        fail()
        errors.begin_tick(now_s)
        rest_s = min(LONGEST_REST_S, FIRST_REST_S * 2.0 ** (number - 1))
        assert errors.is_failing("j") == (number >= MAX_ERRORS_IN_A_ROW)
        assert errors.is_resting("j", now_s + rest_s - 0.5)
        now_s += rest_s
        assert not errors.is_resting("j", now_s)
    errors.forget({"j"})
    assert not errors.is_failing("j")


@pytest.mark.parametrize(("failing", "is_shared"), [(1, False), (3, False), (4, True), (10, True)])
def test_jobs_are_blamed_for_what_goes_wrong_unless_it_goes_wrong_for_many_at_once(
    failing: int, is_shared: bool  # noqa: FBT001
) -> None:  # fmt: skip
    errors = JobErrors()
    for _ in range(MAX_ERRORS_IN_A_ROW):
        for job in range(10):
            with errors.isolated(str(job), 0.0, lambda: 0):
                assert job >= failing
        errors.begin_tick(0.0)

    assert {str(job) for job in range(10) if errors.is_failing(str(job))} == (
        set() if is_shared else {str(job) for job in range(failing)}
    )


def test_an_error_behind_a_change_says_that_the_copy_is_of_no_use() -> None:
    errors, changed = JobErrors(), [0]

    def change_and_fail() -> None:
        with errors.isolated("j", 0.0, lambda: changed[0]):
            changed[0] += 1
            raise ValueError("x")

    for _ in range(MAX_ERRORS_IN_A_ROW):
        with pytest.raises(SpoiledError):
            change_and_fail()
        errors.begin_tick(0.0)

    assert errors.is_failing("j")
