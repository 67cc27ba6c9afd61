"""What goes wrong around attempts that are real processes: asserted on rows, on files, and on the process table."""

import os
import shutil
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from longshore.cluster.files.processes import find
from longshore.scheduler.backends.local.backend import LocalBackend
from longshore.scheduler.model.states import FINAL, AttemptState, Contact, Desired, JobState
from longshore.scheduler.store.attempts import AttemptRow
from tests.scheduler.backends.attempts import end_all, until
from tests.scheduler.store.store_rows import assert_each_change_has_one_event
from tests.scheduler.trials import Trial, failing, local_trial, processes_of

NODES = {"a": 4, "b": 4}
WAIT_FOR_GO = "while [ ! -e {}/go ]; do sleep 0.05; done; "


@pytest.fixture
def trial(tmp_path: Path) -> Iterator[Trial]:
    with local_trial(tmp_path, NODES) as it:
        yield it


def names(rows: list[AttemptRow]) -> list[int]:
    return [row.number for row in rows]


def test_a_job_that_cannot_be_reached_for_half_an_hour_goes_on_at_no_cost_and_is_found_again(trial: Trial) -> None:
    job = trial.submit("exec sleep 1000")
    trial.runs(job)
    trial.until(lambda: processes_of(job))
    (process,) = processes_of(job)[-1:]
    before, (node,) = trial.job(job), {share.node for share in trial.attempts(job)[0].placement}
    trial.way.before = failing("statuses")
    trial.way.silent_s[node] = trial.now_s()
    trial.wait(1800.0)
    assert trial.attempts(job)[0].contact is Contact.UNKNOWN
    trial.crash()
    trial.way.before = failing("statuses")
    trial.wait(600.0)
    assert [(row.state, row.contact) for row in trial.attempts(job)] == [(AttemptState.RUNNING, Contact.UNKNOWN)]
    assert find(process.pid) is not None

    trial.way.before, trial.way.silent_s = failing(), {}
    trial.wait(5.0)
    assert trial.job(job) == before
    assert [(row.state, row.contact) for row in trial.attempts(job)] == [(AttemptState.RUNNING, Contact.OK)]


def test_a_node_is_not_down_before_six_answers_are_missed_however_late_the_scheduler_and_however_slow_the_calls(
    trial: Trial,
) -> None:
    job = trial.submit("exec sleep 1000")
    trial.runs(job)
    (node,) = {share.node for share in trial.attempts(job)[0].placement}
    before = trial.job(job)

    def minute(call: str) -> None:
        if call == "statuses":
            trial.later_s += 60.0

    trial.way.silent_s[node] = trial.now_s()
    trial.later_s += 3600.0
    trial.crash()
    trial.way.before = minute
    missed = []
    for _ in range(7):
        trial.tick()
        missed.append([event.now for event in trial.events() if event.kind == "node"])
    assert missed[5] == ["suspect"]
    assert missed[6] == ["suspect", "down"]
    trial.way.silent_s.clear()
    trial.tick(2)
    assert [row.contact for row in trial.attempts(job)] == [Contact.OK]
    assert trial.job(job) == before


def test_a_job_that_ends_while_no_scheduler_lives_has_succeeded_at_its_first_attempt(
    trial: Trial, tmp_path: Path
) -> None:
    job = trial.submit(WAIT_FOR_GO.format(tmp_path))
    trial.runs(job)
    (tmp_path / "go").touch()
    marker = tmp_path / "attempts" / f"ls-{job}-1" / "exit.json"
    until(marker.exists)
    trial.crash()
    row = trial.ends(job)
    assert (row.state, row.attempt) == (JobState.SUCCEEDED, 1)
    assert names(trial.attempts(job)) == [1]


@pytest.mark.parametrize("closed", [True, False])
def test_a_failed_job_stays_so_when_all_that_the_backend_had_of_it_is_deleted(
    trial: Trial, tmp_path: Path, *, closed: bool
) -> None:
    trial.way.before = failing() if closed else failing("forget")
    job = trial.submit("exit 3")
    trial.until(lambda: trial.job(job).state is JobState.FAILED)
    if closed:
        trial.ends(job)
    before = trial.job(job)
    shutil.rmtree(tmp_path / "attempts" / f"ls-{job}-1")
    trial.crash()
    trial.wait(120.0)
    assert trial.job(job) == before
    assert [(row.number, row.outcome) for row in trial.attempts(job)] == [(1, "user")]
    assert processes_of(job) == []
    assert trial.held() == []
    assert not (tmp_path / "attempts" / f"ls-{job}-1").exists()


def test_gpus_stay_reserved_and_are_reported_to_leak_while_a_cancelled_job_cannot_be_stopped(trial: Trial) -> None:
    job = trial.submit("exec sleep 1000", gpus=2)
    trial.runs(job)
    refused = Counter[str]()

    def refuse_twenty(call: str) -> None:
        refused[call] += 1
        if refused["cancel"] <= 20:
            failing("cancel")(call)

    trial.way.before = refuse_twenty
    trial.wish(job, Desired.CANCEL)
    trial.wait(95.0)
    assert 0 < refused["cancel"] < 20
    assert [row.job_id for row in trial.held()] == [job, job]
    assert trial.gauge("longshore_gpus_leaking") == 2.0
    assert processes_of(job) != []
    assert trial.ends(job).state is JobState.CANCELLED
    assert refused["cancel"] > 20
    assert (trial.held(), trial.gauge("longshore_gpus_leaking"), processes_of(job)) == ([], 0.0, [])


def test_what_cannot_be_removed_of_a_job_is_reported_and_changes_nothing_of_how_it_ended(trial: Trial) -> None:
    trial.way.before = failing("forget")
    job = trial.submit("true")
    trial.until(lambda: trial.attempts(job) and trial.attempts(job)[0].cleanup_error)
    trial.crash()
    trial.way.before = failing("forget")
    trial.wait(60.0)
    row = trial.attempts(job)[0]
    assert (trial.job(job).state, row.state, row.cleanup_error) == (JobState.SUCCEEDED, "released", "status 500")
    assert [event.cause for event in trial.events(job) if event.kind == "cleanup"] == ["status 500"]
    trial.way.before = failing()
    assert trial.ends(job).state is JobState.SUCCEEDED


@pytest.mark.parametrize("elsewhere", ["folder", "machine"])
def test_a_job_of_another_folder_or_machine_is_left_alone_until_its_own_scheduler_is_back(
    trial: Trial, tmp_path: Path, elsewhere: str
) -> None:
    job, ends = trial.submit("exec sleep 1000"), trial.submit(f"{WAIT_FOR_GO.format(tmp_path)} exit 3")
    trial.runs(job)
    trial.runs(ends)
    before = trial.job(job), trial.job(ends)
    own = trial.make
    if elsewhere == "folder":
        trial.make = lambda: LocalBackend(tmp_path / "other", NODES)
    else:
        trial.make = lambda: LocalBackend(tmp_path, NODES, machine="another")
    trial.crash()
    trial.wait(600.0, step_s=60.0)
    assert (trial.job(job), trial.job(ends)) == before
    assert [row.contact for row in trial.attempts(job)] == [Contact.UNKNOWN]
    assert "it is known to local" in next(event.cause for event in trial.events(job) if event.kind == "contact")
    (tmp_path / "go").touch()
    waits = trial.submit("true", gpus=8)
    trial.wish(job, Desired.CANCEL)
    trial.tick(3)
    assert {row.job_id for row in trial.held()} == {job, ends}
    assert processes_of(job) != []

    trial.make = own
    trial.crash()
    assert trial.ends(job).state is JobState.CANCELLED
    assert trial.ends(ends).cause == "rank 0 ended with exit code 3"
    trial.ends(waits)


GATE = (
    "touch {0}/gate-$LONGSHORE_ATTEMPT-$RANK; "
    'while [ "$(ls {0}/gate-$LONGSHORE_ATTEMPT-* | wc -l)" -lt 4 ]; do sleep 0.05; done; '
)


def test_a_gang_whose_rank_fails_is_stopped_and_meets_again_as_a_whole_in_one_new_attempt(
    trial: Trial, tmp_path: Path
) -> None:
    script = GATE + "case $LONGSHORE_ATTEMPT-$RANK in *-1-2) exit 1;; *-1-*) exec sleep 1000;; esac"
    job = trial.submit(script.format(tmp_path), gpus=4, retry={"user": 1})
    row = trial.ends(job)
    first, second = trial.attempts(job)
    assert (row.state, row.stops_user) == (JobState.SUCCEEDED, 1)
    assert (first.state, first.outcome, first.cause) == ("closed", "user", "rank 2 ended with exit code 1")
    assert (second.number, second.outcome) == (2, "success")
    assert len(list(tmp_path.glob(f"gate-ls-{job}-2-*"))) == 4
    assert processes_of(job) == []
    ended_s = [end.ended_s for end in first.ends]
    assert len(ended_s) == 4
    assert max(ended_s) - min(ended_s) < 2.0 + 5.0  # the grace, and 5 s


def test_of_ranks_that_abort_one_after_another_the_first_is_the_cause(trial: Trial, tmp_path: Path) -> None:
    others = "trap 'sleep 0.$RANK; trap - ABRT; kill -ABRT $$' TERM; touch {0}/up$RANK; while :; do sleep 0.05; done"
    first = "while [ $(ls {0}/up* | wc -l) -lt 3 ]; do sleep 0.05; done; kill -ABRT $$"
    script = f"if [ $RANK = 3 ]; then {first}; fi; {others}".format(tmp_path)
    job = trial.submit(script, gpus=4, retry={"ambiguous": 0})
    row = trial.ends(job)
    assert (row.state, row.cause, row.attempt) == (JobState.FAILED, "rank 3 was ended by signal 6", 1)
    assert processes_of(job) == []


def test_a_job_runs_until_its_last_rank_has_ended_and_ends_as_all_of_them_say(trial: Trial, tmp_path: Path) -> None:
    job = trial.submit(f"[ $RANK = 0 ] || {{ {WAIT_FOR_GO.format(tmp_path)} [ $RANK != 3 ]; }}", gpus=4)
    trial.runs(job)
    trial.until(lambda: trial.way.status(f"ls-{job}-1").ends)
    trial.wait(60.0)
    assert trial.job(job).state is JobState.RUNNING
    assert names(trial.attempts(job)) == [1]
    (tmp_path / "go").touch()
    row = trial.ends(job)
    assert (row.state, row.cause) == (JobState.FAILED, "rank 3 ended with exit code 1")
    assert names(trial.attempts(job)) == [1]


@pytest.mark.full
def test_all_gpus_are_free_when_many_jobs_have_ended_at_once_under_two_schedulers(tmp_path: Path) -> None:
    trial = Trial(tmp_path, {f"n{number}": 8 for number in range(6)})
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    jobs = [trial.submit(f"cat {gate}") for _ in range(48)]
    trial.until(lambda: all(trial.job(job).state is JobState.RUNNING for job in jobs))
    assert len(trial.held()) == 48
    one, other = trial.scheduler, trial.another()
    opened = os.open(gate, os.O_WRONLY)
    os.close(opened)  # all of them end
    ends = threading.Event()

    def look_too() -> None:
        while not ends.wait(0.3):
            other.tick()

    thread = threading.Thread(target=look_too)
    thread.start()
    trial.scheduler = one
    trial.until(lambda: all(trial.job(job).state in FINAL for job in jobs))
    ends.set()
    thread.join()
    assert {trial.job(job).state for job in jobs} == {JobState.SUCCEEDED}
    assert {trial.job(job).attempt for job in jobs} == {1}
    assert trial.held() == []
    events = trial.events()
    for job in jobs:
        assert_each_change_has_one_event(trial.job(job), events)
    assert len({event.fence for event in events}) > 2  # both led
    trial.crash()
    again = [trial.submit("true", gpus=8) for _ in range(6)]
    trial.tick(2)
    assert {trial.job(job).attempt for job in again} == {1}  # nothing is held that nobody has
    trial.until(lambda: all(trial.job(job).state in FINAL for job in again))
    trial.close()
    end_all(tmp_path)
