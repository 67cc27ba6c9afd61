"""A scheduler gives a ring a free GPU for a member that computes in place of a slow one, and has it back."""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from longshore.scheduler.control.reconciler import Reconciler
from longshore.scheduler.model.states import Desired, JobState
from tests.scheduler.backends.attempts import end_all, until
from tests.scheduler.ring_trials import LATER_S, RING_PATIENCE_S, Points, RingTrial, killed, look_or_die

pytestmark = [pytest.mark.full, pytest.mark.long]

PARTS = 8  # of the points at which a scheduler is killed: each is a test
COMPUTES = {"COMPUTES_S": "0.08"}  # so long that a busy machine makes nobody slow


@pytest.fixture(params=["unchecked", pytest.param("checked", marks=pytest.mark.full)])
def trial(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[RingTrial]:
    it = RingTrial(tmp_path, {"a": 3, "b": 1}, checks=request.param == "checked")
    yield it
    it.close()
    end_all(tmp_path)


def is_relieved(trial: RingTrial, job: str, members: list[int]) -> bool:
    report = trial.report(job)
    return report is not None and report.phase == "running" and report.relieved == members


def test_a_slow_member_gets_a_backup_on_another_node_until_it_is_well(trial: RingTrial) -> None:
    job = trial.submit_ring(2, variables=COMPUTES, backups=1)
    trial.until(lambda: trial.job(job).state is JobState.RUNNING and trial.is_settled(job))
    before = trial.holds(job)
    assert before == {("a", 0), ("a", 1)}
    (trial.folder / "slow-1").touch()
    trial.until(lambda: is_relieved(trial, job, [1]))
    assert trial.holds(job) == {*before, ("b", 0)}
    trial.tick(5)
    assert trial.holds(job) == {*before, ("b", 0)}
    (trial.folder / "slow-1").unlink()
    trial.until(lambda: is_relieved(trial, job, []) and trial.holds(job) == before)
    assert trial.is_settled(job)
    reported = [it.now for it in trial.seats_of(job) if it.now not in ("checked", "rejected")]
    assert reported == ["backup", "left"], [(it.at_s, it.now, it.cause) for it in trial.seats_of(job)]
    assert len(trial.attempts(job)) == 1
    trial.assert_arrays_are_as_the_store()
    trial.wish(job, Desired.CANCEL)
    trial.ends(job)
    assert trial.held() == []


@pytest.mark.parametrize(
    ("nodes", "most", "why"),
    [({"a": 3}, None, "no free GPU suits it"), ({"a": 2, "b": 1}, 2, "its owner has 2 of 2 GPUs")],
)
@pytest.mark.full
def test_a_slow_member_gets_no_backup_on_its_node_or_beyond_what_its_owner_may_have(
    nodes: dict[str, int], most: int | None, why: str, tmp_path: Path
) -> None:
    trial = RingTrial(tmp_path, nodes)
    parts = replace(trial.scheduler.parts, gpus_per_user=most)
    trial.scheduler = Reconciler(parts, trial.times)
    try:
        job = trial.submit_ring(2, variables=COMPUTES, backups=1)
        trial.until(lambda: trial.job(job).state is JobState.RUNNING and trial.is_settled(job))
        (trial.folder / "slow-0").touch()
        trial.until(lambda: trial.seats_of(job))
        trial.tick(5)
        (reported,) = trial.seats_of(job)
        assert (reported.now, "member 0 on a" in reported.cause) == ("slow", True)
        assert reported.cause.endswith(f"it gets no backup: {why}")
        assert trial.holds(job) == {("a", 0), ("a", 1)}
    finally:
        trial.close()
        end_all(tmp_path)


@pytest.mark.full
def test_a_job_that_asked_for_none_gets_none(tmp_path: Path) -> None:
    trial = RingTrial(tmp_path, {"a": 2, "b": 2})
    try:
        job = trial.submit_ring(2, variables=COMPUTES)
        trial.until(lambda: trial.job(job).state is JobState.RUNNING and trial.is_settled(job))
        (trial.folder / "slow-0").touch()  # with a backup it would have one after ten steps
        trial.until(lambda: (trial.report(job) or 0) and trial.report(job).step > 20)  # type: ignore[union-attr]
        assert trial.seats_of(job) == []
        assert trial.holds(job) == {("a", 0), ("a", 1)}
    finally:
        trial.close()
        end_all(tmp_path)


@pytest.mark.full
@pytest.mark.timeout(120)  # a backup comes after 6 s and goes after 11 more, two or three times
@pytest.mark.parametrize("first", range(1, 1 + PARTS))
def test_wherever_a_scheduler_is_killed_a_backup_comes_once_and_is_given_back(
    first: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = RingTrial(tmp_path, {"a": 2, "b": 2})
    try:
        job = trial.submit_ring(2, variables=COMPUTES, backups=1)
        trial.until(lambda: trial.job(job).state is JobState.RUNNING and trial.is_settled(job))
        number, passed = first - PARTS, first
        while passed >= number:
            number += PARTS
            before = len(trial.seats_of(job))
            trial.later_s += LATER_S
            with monkeypatch.context() as patch:
                points = Points(trial, patch, number, killed)
                come_and_go(trial, job)
            passed = points.passed
            trial.tick()  # the scheduler that was killed last has a successor, which has not looked yet
            seats = trial.seats_of(job)[before:]
            assert [it.now for it in seats] == ["backup", "left"], "\n".join(
                [f"killed at {number}", *(f"{it.at_s} {it.now}: {it.cause}" for it in seats)]
            )
            trial.assert_arrays_are_as_the_store()
            assert len(trial.attempts(job)) == 1
        assert passed > 6  # points in an undisturbed course
        trial.wish(job, Desired.CANCEL)
        trial.ends(job)
        assert trial.held() == []
    finally:
        trial.close()
        end_all(tmp_path)


def come_and_go(trial: RingTrial, job: str) -> None:
    """Let a member be slow until it has a backup, and until that is given back."""

    def look(is_so: Callable[[], bool]) -> bool:
        time.sleep(0.1)  # what rings do takes seconds, and a tick milliseconds of a core
        look_or_die(trial)
        return is_so()

    before = trial.holds(job)
    (trial.folder / "slow-1").touch()
    until(partial(look, lambda: is_relieved(trial, job, [1]) and len(trial.holds(job)) == 3), RING_PATIENCE_S)
    (trial.folder / "slow-1").unlink()
    until(partial(look, lambda: trial.is_settled(job) and trial.holds(job) == before), RING_PATIENCE_S)
