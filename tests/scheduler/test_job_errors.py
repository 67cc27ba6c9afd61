"""Whatever goes wrong about one job, wherever it goes wrong: the others go on, and that job is held in the end."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import update

from longshore.scheduler.control import attempt_driver
from longshore.scheduler.control import reconciler as loop
from longshore.scheduler.control import state_cache as cache
from longshore.scheduler.control import steps as judging
from longshore.scheduler.control.job_errors import ERROR_EVENT
from longshore.scheduler.control.reconciler import Reconciler
from longshore.scheduler.control.state_cache import StateCache
from longshore.scheduler.health.step_monitor import StepMonitor
from longshore.scheduler.mirror.cluster_mirror import ClusterMirror
from longshore.scheduler.model.states import Contact, Desired, JobState, Status
from longshore.scheduler.placement.placer import Placer
from longshore.scheduler.store import schema
from longshore.scheduler.store import transitions as changes
from tests.scheduler.breaking import NODES, Place, breaks
from tests.scheduler.obedient import AGAIN, WELL, Obedient
from tests.scheduler.obedient_trial import ReportingTrial, obedient_trial
from tests.scheduler.store.store_rows import assert_each_change_has_one_event

pytestmark = pytest.mark.long


@pytest.fixture
def trial(tmp_path: Path) -> Iterator[ReportingTrial]:
    with obedient_trial(ReportingTrial, tmp_path, NODES) as made:
        yield made


EITHER = ("held", "succeeded")
STUCK = ("starting", "running", "stopping")  # nothing of it can be written, so its GPUs stay held
PLACES = [
    *(Place(loop, name) for name in ("job_request_of", "_next_step_of")),
    *(Place(Reconciler, name) for name in ("_apply_decision", "_open_attempt", "_new_decision")),
    *(Place(ClusterMirror, name) for name in ("submit", "finish")),
    *(Place(ClusterMirror, name, EITHER) for name in ("come_back", "stop", "progress")),
    Place(Placer, "decide"),
    *(Place(StateCache, name) for name in ("open_attempt", "shape_of", "finish")),
    Place(StateCache, "requeue", EITHER),
    *(Place(attempt_driver, name) for name in ("_attempt_view", "_take_step", "_launch", "attempt_to_launch")),
    *(Place(attempt_driver, name) for name in ("_run_or_drain", "stored_job")),
    *(Place(attempt_driver, name) for name in ("_release_attempt", "read_last_report", "_decide_outcome")),
    *(Place(StepMonitor, name, EITHER) for name in ("_begin_following", "_read_and_judge")),
    Place(judging, "_watching_of", EITHER), Place(judging, "_checkpoint_rows"), Place(judging, "store_checkpoint"),
    *(Place(changes, name) for name in ("opened_attempt", "reserve")),
    *(Place(cache, name) for name in ("opened_job", "opened_attempt")),
    *(Place(cache, name, EITHER) for name in ("job_request_of", "running_progress")),
    Place(loop, "waiting_progress", EITHER),
    Place(attempt_driver, "_close_attempt", EITHER),
    Place(StateCache, "change_attempt", STUCK), Place(changes, "_events_of", STUCK),
    Place(cache, "changed_job", ("queued", *STUCK)),
]  # fmt: skip


@pytest.mark.few(7)
@pytest.mark.parametrize("place", PLACES, ids=lambda it: f"{getattr(it.owner, '__name__', it.owner)}.{it.name}")
def test_other_jobs_end_whatever_fails_about_one_and_that_one_is_held(
    place: Place, trial: ReportingTrial, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = trial.submit("before")
    trial.tick()
    bad = trial.submit("bad", gpus=2, retry={"again": 3})
    failures = breaks(place, lambda: bad, monkeypatch)
    after = trial.submit("after", gpus=2)

    trial.tick(2)

    assert trial.job(after).state is not JobState.QUEUED  # in the first tick, whatever had failed in it
    trial.wait(10.0, 1.0)
    trial.obedient.end(AGAIN, bad)
    trial.wait(20.0, 1.0)
    trial.scheduler.cache = None  # whoever reads the store anew finds no other way past it
    trial.wait(20.0, 1.0)
    trial.obedient.end(WELL)
    trial.wait(100.0, 1.0)

    assert failures
    assert trial.job(before).state is trial.job(after).state is JobState.SUCCEEDED
    assert trial.job(bad).state in place.ends_as
    assert {it.job_id for it in trial.held()} == ({bad} if "stopping" in place.ends_as else set())
    if trial.job(bad).state is JobState.HELD:
        reported = [it for it in trial.events(bad) if it.kind == ERROR_EVENT]
        assert len(reported) >= 1
        assert f"a bug in {place.name}" in reported[0].cause or "its end could not be handled" in reported[0].cause
        assert trial.job(bad).desired is Desired.HOLD
    for job in (before, bad, after):
        assert_each_change_has_one_event(trial.job(job), trial.events())


def test_a_job_that_was_held_for_errors_runs_once_its_owner_releases_it_and_they_are_gone(
    trial: ReportingTrial, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        bad = trial.submit("bad")
        breaks(Place(attempt_driver, "attempt_to_launch"), lambda: bad, broken)
        trial.wait(20.0, 1.0)
        assert trial.job(bad).state is JobState.HELD

    trial.wish(bad, Desired.RUN)
    trial.wait(5.0, 1.0)
    trial.obedient.end(WELL)
    trial.wait(5.0, 1.0)

    assert trial.job(bad).state is JobState.SUCCEEDED


@pytest.mark.parametrize(("end", "state"), [(WELL, JobState.SUCCEEDED), (AGAIN, JobState.HELD)], ids=["well", "again"])
def test_a_running_job_whose_stored_file_cannot_be_read_runs_on_and_ends_as_it_ends(
    end: Status, state: JobState, trial: ReportingTrial
) -> None:
    job = trial.submit("one")
    trial.runs(job)
    trial.store.write(lambda tx: tx.execute(update(schema.job).values(spec={"gpus": 1})))
    trial.scheduler.cache = None
    trial.wait(200.0, 1.0)
    assert trial.job(job).state is JobState.RUNNING

    trial.obedient.end(end)
    trial.wait(60.0, 1.0)

    assert trial.job(job).state is state  # what is not known how to be run cannot be tried again
    assert next(it.outcome for it in trial.attempts(job)) == ("success" if end is WELL else "again")
    assert trial.held() == []


def test_gpus_of_a_job_that_cannot_be_handled_are_freed_on_proof_only(
    trial: ReportingTrial, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = trial.submit("bad", gpus=4)
    trial.wait(3.0, 1.0)
    trial.obedient.holds.add(f"ls-{bad}-1")
    breaks(Place(attempt_driver, "_decide_outcome"), lambda: bad, monkeypatch)
    trial.obedient.end(AGAIN)

    trial.wait(200.0, 1.0)
    assert len(trial.held()) == 4

    trial.obedient.holds.clear()
    trial.wait(200.0, 1.0)
    assert trial.held() == []
    assert trial.job(bad).state is JobState.HELD


@pytest.mark.parametrize("state", [JobState.QUEUED, JobState.RUNNING])
def test_a_job_that_cannot_be_handled_can_be_cancelled(
    state: JobState, trial: ReportingTrial, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = trial.submit("bad")
    if state is JobState.RUNNING:
        trial.runs(bad)
    place = Place(attempt_driver, "_decide_outcome") if state is JobState.RUNNING else Place(loop, "job_request_of")
    breaks(place, lambda: bad, monkeypatch)

    trial.wish(bad, Desired.CANCEL)
    trial.wait(60.0, 1.0)

    assert trial.job(bad).state is JobState.CANCELLED


def test_a_job_of_which_the_backend_says_nothing_by_mistake_runs_on_out_of_contact_and_hides_no_other(
    trial: ReportingTrial, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, bad = trial.submit("good"), trial.submit("bad")
    trial.runs(good)
    trial.runs(bad)
    real = Obedient.status
    with monkeypatch.context() as broken:
        broken.setattr(Obedient, "status", lambda self, name: real(self, name) if bad not in name else 1 / 0)
        trial.obedient.end(WELL, good)
        trial.wait(30.0, 1.0)

        assert trial.job(good).state is JobState.SUCCEEDED
        assert trial.job(bad).state is JobState.RUNNING
        assert trial.attempts(bad)[0].contact is Contact.UNKNOWN
        assert "ZeroDivisionError" in next(it.cause for it in trial.events(bad) if it.kind == "contact")
    trial.obedient.end(WELL)
    trial.wait(3.0, 1.0)

    assert trial.job(bad).state is JobState.SUCCEEDED


def test_a_backend_that_fails_with_a_bug_of_its_own_stops_none_of_the_jobs_that_run(
    trial: ReportingTrial, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = [trial.submit("one"), trial.submit("two")]
    for job in jobs:
        trial.runs(job)
    with monkeypatch.context() as broken:
        for name in ("status", "statuses"):
            broken.setattr(Obedient, name, lambda *_: 1 / 0)
        trial.wait(30.0, 1.0)

    trial.wait(3.0, 1.0)
    assert {trial.job(job).state for job in jobs} == {JobState.RUNNING}
    assert {len(trial.attempts(job)) for job in jobs} == {1}


@pytest.mark.parametrize("name", ["_attempt_view", "_watching_of"])
def test_a_job_that_cannot_be_polled_runs_on_until_it_ends(
    name: str, trial: ReportingTrial, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = trial.submit("bad")
    trial.runs(bad)
    with monkeypatch.context() as broken:
        breaks(Place(attempt_driver if name == "_attempt_view" else judging, name), lambda: bad, broken)
        trial.wait(60.0, 1.0)
        assert trial.job(bad).state is JobState.RUNNING
        trial.obedient.end(WELL)
        trial.wait(60.0, 1.0)

    assert trial.job(bad).state is (JobState.HELD if name == "_attempt_view" else JobState.SUCCEEDED)
    assert trial.held() == []
