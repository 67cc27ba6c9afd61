"""Errors about jobs that wait: they are over when all goes well, and are reported no longer than they last."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from longshore.scheduler.control.job_errors import (
    ERROR_ROW_GAP_S,
    FIRST_REST_S,
    LONGEST_REST_S,
    MAX_ERRORS_IN_A_ROW,
    JobErrors,
)
from longshore.scheduler.mirror.cluster_mirror import ClusterMirror
from longshore.scheduler.model.states import JobState
from longshore.scheduler.placement.placer import Placer, Proposal
from longshore.scheduler.store.events import SCHEDULER_LEASE, acquire_lease
from tests.scheduler.obedient_trial import StillTrial, obedient_trial
from tests.scheduler.trials import Trial, reason

NODES = {"a": 4}


@pytest.fixture
def trial(tmp_path: Path) -> Iterator[Trial]:
    with obedient_trial(StillTrial, tmp_path, NODES) as made:
        yield made


def fail_once(trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the next decision fail, of a scheduler that has just read its store."""
    trial.scheduler.cache = None
    with monkeypatch.context() as broken:
        broken.setattr(Placer, "decide", lambda *_: 1 / 0)
        trial.wait(1.0, 1.0)


def test_a_job_that_waits_for_gpus_after_an_error_says_so(trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    job = trial.submit("late", gpus=4)
    fail_once(trial, monkeypatch)
    assert reason(trial, job).startswith("it could not be handled, and is tried again: ZeroDivisionError")
    trial.runs(trial.submit("first", gpus=2))  # while it is left alone

    trial.wait(2 * FIRST_REST_S, FIRST_REST_S)

    assert reason(trial, job) == "it asks for 4 GPUs, and 2 are free"


def test_errors_with_decisions_between_them_that_let_the_job_wait_do_not_add_up(
    trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wait(_placer: Placer, mirror: ClusterMirror) -> Proposal:
        return Proposal(mirror.current_job, (), rests=False)

    trial.runs(trial.submit("first"))
    job = trial.submit("late")
    for _ in range(2 * MAX_ERRORS_IN_A_ROW):
        fail_once(trial, monkeypatch)
        assert trial.scheduler.errors.last_error(job)
        with monkeypatch.context() as patient:
            patient.setattr(Placer, "_heuristic_proposal", wait)
            trial.wait(3 * FIRST_REST_S, FIRST_REST_S)
        assert not trial.scheduler.errors.last_error(job)

    assert trial.job(job).state is JobState.QUEUED


@pytest.mark.parametrize(("apart_s", "is_failing"), [(LONGEST_REST_S, True), (ERROR_ROW_GAP_S + LONGEST_REST_S, False)])
def test_errors_that_lie_far_apart_do_not_add_up(apart_s: float, is_failing: bool) -> None:  # noqa: FBT001
    errors, broken = JobErrors(), True
    for number in range(2 * MAX_ERRORS_IN_A_ROW):
        with errors.isolated("j", number * apart_s, lambda: 0):
            assert not broken
        errors.begin_tick(number * apart_s)

    assert errors.is_failing("j") == is_failing


def test_a_scheduler_that_is_followed_forgets_the_errors_that_it_met(
    trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = trial.submit("one")
    for _ in range(MAX_ERRORS_IN_A_ROW - 1):
        fail_once(trial, monkeypatch)
        trial.later_s += LONGEST_REST_S
    trial.store.write(lambda tx: acquire_lease(tx, SCHEDULER_LEASE, "other", 1e12, 1.0))  # and it is gone at once
    trial.scheduler._renew_at_s = 0.0
    trial.tick()
    assert not trial.scheduler.errors.last_error(job)
