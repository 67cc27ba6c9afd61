"""After a restore: attempts that the store does not know keep their GPUs until they are settled."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from longshore.cluster.files.errors import BackendError
from longshore.scheduler.backends.local.ranks import RankPlace, Spec, encode_spec
from longshore.scheduler.control.reconciler import ReconcilerTiming
from longshore.scheduler.model.states import Desired, JobState
from tests.scheduler.conftest import Here
from tests.scheduler.restored_trial import Restored, restored_trial
from tests.scheduler.served import Served, until
from tests.scheduler.trials import processes_of


@pytest.fixture
def trial(tmp_path: Path) -> Iterator[Restored]:
    with restored_trial(tmp_path) as it:
        yield it


def test_an_attempt_that_a_restored_store_does_not_have_is_named_and_keeps_its_gpus_until_it_is_gone(
    trial: Restored,
) -> None:
    first = trial.submit("exec sleep 1000", gpus=2)
    trial.runs(first)
    trial.keep()
    second = trial.submit("exec sleep 1000", gpus=3)
    trial.runs(second)
    held = {(row.node, row.gpu) for row in trial.held() if row.job_id == second}
    running = processes_of(second)
    trial.go_back()

    small, large = trial.submit("exec sleep 1000", gpus=3), trial.submit("true", gpus=6)
    trial.runs(small)
    trial.tick(20)

    assert trial.unknown() == [f"ls-{second}-1"]
    assert trial.told() == ["found"]
    assert held.isdisjoint((row.node, row.gpu) for row in trial.held())
    assert trial.job(large).state is JobState.QUEUED
    assert {it.pid for it in running} <= {it.pid for it in processes_of(second)}
    trial.crash()
    trial.tick(5)
    assert trial.unknown() == [f"ls-{second}-1"]

    assert trial.scheduler.unknown_attempts.request_end(f"ls-{second}-1")
    trial.wish(small, Desired.CANCEL)
    assert trial.ends(large).state is JobState.SUCCEEDED
    assert trial.unknown() == []
    assert trial.told() == ["found", "found", "gone"]
    assert processes_of(second) == []
    assert processes_of(first)


def test_a_job_that_was_started_after_the_copy_goes_on_with_its_attempt(trial: Restored) -> None:
    job = trial.submit("exec sleep 1000", gpus=3)
    trial.keep()
    trial.runs(job)
    placement = trial.attempts(job)[0].placement
    until(lambda: len(processes_of(job)) == 3)
    pids = {it.pid for it in processes_of(job)}
    trial.go_back()
    assert trial.job(job).state is JobState.QUEUED

    trial.runs(job)

    assert trial.unknown() == []
    assert [(row.number, row.placement) for row in trial.attempts(job)] == [(1, placement)]
    assert {it.pid for it in processes_of(job)} == pids
    trial.wish(job, Desired.CANCEL)
    assert trial.ends(job).state is JobState.CANCELLED


@pytest.mark.full
def test_an_operator_may_give_the_gpus_of_an_unknown_attempt_away(trial: Restored) -> None:
    trial.tick()
    trial.keep()
    lost = trial.submit("exec sleep 1000", gpus=8)
    trial.runs(lost)
    trial.go_back()
    waits = trial.submit("true", gpus=1)
    trial.tick(10)
    assert trial.job(waits).state is JobState.QUEUED
    assert not trial.scheduler.unknown_attempts.request_disregard("ls-nobody-1")
    assert trial.scheduler.unknown_attempts.request_disregard(f"ls-{lost}-1")
    assert trial.ends(waits).state is JobState.SUCCEEDED
    assert trial.told() == ["found", "disregarded"]


def test_nothing_starts_until_it_is_known_what_runs(trial: Restored) -> None:
    trial.times = ReconcilerTiming(list_again_s=0.0)
    trial.crash()

    def fail(name: str) -> None:
        if name == "launched":
            raise BackendError("status 500")

    trial.way.before = fail
    job = trial.submit("true")
    trial.tick(20)
    assert trial.job(job).state is JobState.QUEUED
    trial.way.before = lambda _name: None
    assert trial.ends(job).state is JobState.SUCCEEDED


@pytest.mark.full
def test_after_a_restore_by_hand_what_runs_is_shown_and_can_be_ended(tmp_path: Path, here: Here) -> None:
    served = Served(tmp_path)
    served.start()
    served.call("store", "backup", "copy.db")
    lost = served.add("sleep", "1000", gpus=16)
    until(lambda: served.state(lost) == "running")
    served.end()
    assert "is in the place of" in served.call("store", "restore", "copy.db").stdout
    served.start()

    assert f"ls-{lost}-1  rack0-node0:0,1,2,3 " in served.call("store", "unknown").stdout
    waits = served.add("true")
    assert served.state(waits) == "queued"
    assert served.call("store", "unknown", "--end", "ls-nobody-1", check=False).returncode == 2
    here(served, "store", "unknown", "--end", f"ls-{lost}-1")
    assert served.ended(waits) == "succeeded"
    assert here(served, "store", "unknown").out == "no unknown attempts\n"
    assert processes_of(lost) == []
    assert f"ls-{lost}-1 is not in the store and may run on" in (tmp_path / "serve.log").read_text()
    served.end()


NO_SENSE = [
    b"{torn", b"[]", b"{}", b'{"ranks": [], "command": [], "new": 1}', b"\xff",
    b"[" * 100_000, b'{"a":' * 100_000, b" " * (5 << 20),
    encode_spec(Spec("ls-other-1", "other", 1, ("true",), "/", {}, 0.0, None, (RankPlace("a", 0),))),
]  # fmt: skip


def spec_of(trial: Restored, job: str) -> Path:
    return trial.folder / "attempts" / f"ls-{job}-1" / "spec.json"


def test_attempts_whose_files_make_no_sense_are_passed_over_once_they_are_gone_and_the_others_are_found(
    trial: Restored, caplog: pytest.LogCaptureFixture
) -> None:
    trial.tick()
    trial.keep()
    lost, past = trial.submit("exec sleep 1000", gpus=2), [trial.submit("true") for _ in NO_SENSE]
    trial.runs(lost)
    for job, content in zip(past, NO_SENSE, strict=True):
        trial.ends(job)
        spec_of(trial, job).write_bytes(content)
    trial.go_back()

    assert trial.ends(trial.submit("true")).state is JobState.SUCCEEDED

    assert trial.unknown() == [f"ls-{lost}-1"]
    for job in past:
        assert f"ls-{job}-1: its spec.json cannot be read" in caplog.text


@pytest.mark.full
def test_nothing_starts_while_an_attempt_may_run_of_which_no_one_knows_the_gpus(trial: Restored) -> None:
    trial.tick()
    trial.keep()
    lost = trial.submit("exec sleep 1000", gpus=2)
    trial.runs(lost)
    spec_of(trial, lost).write_bytes(NO_SENSE[0])
    trial.go_back()
    waits = trial.submit("true")
    for content in NO_SENSE:
        spec_of(trial, lost).write_bytes(content)
        trial.crash()
        trial.tick(10)
        assert trial.job(waits).state is JobState.QUEUED
        assert trial.unknown() == [f"ls-{lost}-1"]
        assert "not known on which GPUs" in trial.scheduler.why_held_back

    assert trial.scheduler.unknown_attempts.request_end(f"ls-{lost}-1")
    assert trial.ends(waits).state is JobState.SUCCEEDED
    assert trial.unknown() == []


def test_the_file_of_an_attempt_that_the_store_has_may_make_no_sense(trial: Restored) -> None:
    runs = trial.submit("exec sleep 1000", gpus=2)
    trial.runs(runs)
    spec_of(trial, runs).write_bytes(b"{torn")
    trial.crash()

    assert trial.ends(trial.submit("true")).state is JobState.SUCCEEDED
    assert trial.unknown() == []
    assert trial.job(runs).state is JobState.RUNNING


def test_an_operator_may_disregard_an_attempt_of_which_no_one_knows_the_gpus(trial: Restored) -> None:
    trial.tick()
    torn = trial.folder / "attempts" / "ls-torn-1"
    torn.mkdir()
    (torn / "spec.json").write_bytes(b"{torn")
    trial.crash()
    waits = trial.submit("true")
    trial.tick(20)
    assert (trial.unknown(), trial.job(waits).state) == (["ls-torn-1"], JobState.QUEUED)

    assert trial.scheduler.unknown_attempts.request_disregard("ls-torn-1")

    assert trial.ends(waits).state is JobState.SUCCEEDED
