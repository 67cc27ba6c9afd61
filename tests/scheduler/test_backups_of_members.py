"""A scheduler gives a ring a free GPU for a member that computes in place of a slow one, and has it back."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from longshore.scheduler.model.states import Desired, JobState
from tests.scheduler.backends.attempts import end_all
from tests.scheduler.ring_trials import RingTrial

COMPUTES = {"COMPUTES_S": "0.08"}  # so long that a busy machine makes nobody slow


@pytest.fixture(params=[False, True], ids=["unchecked", "checked"])
def trial(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[RingTrial]:
    it = RingTrial(tmp_path, {"a": 3, "b": 1}, checks=request.param)
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
    told = [it.now for it in trial.seats_of(job) if it.now not in ("checked", "struck off")]
    assert told == ["backup", "left"], [(it.at_s, it.now, it.cause) for it in trial.seats_of(job)]
    assert len(trial.attempts(job)) == 1
    trial.assert_arrays_are_as_the_store()
    trial.wish(job, Desired.CANCEL)
    trial.ends(job)
    assert trial.held() == []


def test_a_slow_member_whose_node_alone_is_free_gets_no_backup(tmp_path: Path) -> None:
    trial = RingTrial(tmp_path, {"a": 3})
    try:
        job = trial.submit_ring(2, variables=COMPUTES, backups=1)
        trial.until(lambda: trial.job(job).state is JobState.RUNNING and trial.is_settled(job))
        (trial.folder / "slow-0").touch()
        trial.until(lambda: trial.seats_of(job))
        trial.tick(5)
        (told,) = trial.seats_of(job)
        assert (told.now, "member 0 on a" in told.cause) == ("slow", True)
        assert trial.holds(job) == {("a", 0), ("a", 1)}
    finally:
        trial.close()
        end_all(tmp_path)


def test_a_job_that_asked_for_none_gets_none_and_one_that_lies_gets_no_more_than_it_asked_for(tmp_path: Path) -> None:
    trial = RingTrial(tmp_path, {"a": 2, "b": 2})
    try:
        job = trial.submit_ring(2, variables=COMPUTES)
        trial.until(lambda: trial.job(job).state is JobState.RUNNING and trial.is_settled(job))
        (trial.folder / "slow-0").touch()
        trial.until(lambda: (trial.report(job) or 0) and trial.report(job).step > 60)  # type: ignore[union-attr]
        assert trial.seats_of(job) == []
        assert trial.holds(job) == {("a", 0), ("a", 1)}
    finally:
        trial.close()
        end_all(tmp_path)
