"""Jobs that their owners want tried again, with real processes."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from longshore.scheduler.metrics import Following
from longshore.scheduler.model.states import Desired, JobState
from longshore.scheduler.store.attempts import AttemptRow, CheckpointRow, store_checkpoint
from longshore.scheduler.store.jobs import retry_job
from tests.scheduler.trials import Trial

FAILS_AT_FIRST = """
case $LONGSHORE_ATTEMPT in *-1) exit 3;; esac
echo "from $LONGSHORE_CHECKPOINT"
"""


@pytest.fixture
def trial(tmp_path: Path) -> Iterator[Trial]:
    made = Trial(tmp_path, {"a": 2})
    yield made
    made.close()


def retry(trial: Trial, job: str) -> bool:
    return trial.store.write(lambda tx: retry_job(tx, job, at_s=trial.now_s(), writer="api"))


def printed(trial: Trial, row: AttemptRow) -> str:
    return trial.way.logs(f"ls-{row.job_id}-{row.number}", 0, 0, 100)[0].decode()


def test_a_failed_job_goes_on_from_its_checkpoint_under_its_id(trial: Trial) -> None:
    go = trial.folder / "go"
    job = trial.submit(f"while [ ! -e {go} ]; do sleep 0.02; done; {FAILS_AT_FIRST}")
    trial.runs(job)
    kept = CheckpointRow(job, 1, 40, "/ckpt/40", "", trial.now_s())
    trial.store.write(lambda tx: store_checkpoint(tx, kept, writer="api"))
    go.touch()
    failed = trial.ends(job)

    assert failed.state is JobState.FAILED
    assert retry(trial, job)
    again = trial.job(job)
    assert (again.state, again.desired, again.ended_s) == (JobState.QUEUED, Desired.RUN, None)

    trial.until(lambda: trial.job(job).state is JobState.SUCCEEDED)
    assert [row.outcome for row in trial.attempts(job)] == ["user", "success"]
    assert printed(trial, trial.attempts(job)[-1]) == "from /ckpt/40\n"
    reported = [(event.was, event.now, event.writer) for event in trial.events(job) if event.kind == "job"]
    assert ("failed", "queued", "api") in reported


def test_a_retry_is_done_once_and_only_of_what_failed_or_is_held(trial: Trial) -> None:
    job = trial.submit(FAILS_AT_FIRST)
    assert not retry(trial, job)
    assert trial.ends(job).state is JobState.FAILED
    assert [retry(trial, job) for _ in range(3)] == [True, False, False]
    trial.until(lambda: trial.job(job).state is JobState.SUCCEEDED)
    assert not retry(trial, job)
    assert len(trial.attempts(job)) == 2


def test_a_retry_gives_back_all_tries(trial: Trial) -> None:
    job = trial.submit("exit 75", retry={"again": 1})

    def failed() -> bool:
        trial.later_s += 1.0
        return trial.job(job).state is JobState.FAILED

    trial.until(failed)
    assert (trial.job(job).stops_again, trial.job(job).attempt) == (1, 2)
    retry(trial, job)
    trial.until(failed)
    assert (trial.job(job).stops_again, trial.job(job).attempt) == (1, 4)


def test_a_job_that_is_held_for_lack_of_progress_is_let_go_with_all_its_tries(trial: Trial) -> None:
    job = trial.submit("[ -e /proc/self/nothing ] || exit 75", retry={"again": 5, "no_progress": 2})

    def held() -> bool:
        trial.later_s += 1.0
        return trial.job(job).state is JobState.HELD

    trial.until(held)
    assert retry(trial, job)
    row = trial.job(job)
    assert (row.desired, row.no_progress, row.stops_again) == (Desired.RUN, 0, 0)
    trial.until(lambda: trial.job(job).attempt == 3)


def test_a_cancel_is_not_taken_back_by_a_retry(trial: Trial) -> None:
    job = trial.submit("sleep 1000")
    trial.wish(job, Desired.CANCEL)
    assert not retry(trial, job)
    trial.until(lambda: trial.job(job).state is JobState.CANCELLED)
    assert not retry(trial, job)


def test_a_retry_is_found_by_the_next_scheduler(trial: Trial) -> None:
    job = trial.submit(FAILS_AT_FIRST)
    assert trial.ends(job).state is JobState.FAILED
    retry(trial, job)
    trial.crash()
    trial.until(lambda: trial.job(job).state is JobState.SUCCEEDED)
    assert [row.number for row in trial.attempts(job)] == [1, 2]


def test_both_ends_of_a_job_that_was_tried_again_are_counted_once(trial: Trial) -> None:
    registry = CollectorRegistry()
    following = Following(trial.store, registry)
    job = trial.submit(FAILS_AT_FIRST)
    assert trial.ends(job).state is JobState.FAILED
    retry(trial, job)
    trial.until(lambda: trial.job(job).state is JobState.SUCCEEDED)
    following.count_new()

    def ends(outcome: str, exit_class: str) -> float | None:
        return registry.get_sample_value("longshore_attempts_total", {"outcome": outcome, "class": exit_class})

    assert (ends("failed", "user"), ends("succeeded", "success")) == (1.0, 1.0)
    assert registry.get_sample_value("longshore_queue_wait_seconds_count") == 2.0
