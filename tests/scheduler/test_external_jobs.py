"""Jobs that were submitted at a backend of a plug-in, whatever mistakes that backend makes."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from longshore.scheduler.backends.protocol import Backend, ExternalJob
from longshore.scheduler.control.reconciler import Reconciler
from longshore.scheduler.model.job import new_job_id
from longshore.scheduler.model.states import FINAL, Desired, JobState
from tests.scheduler.obedient import WELL, Obedient
from tests.scheduler.obedient_trial import obedient_trial
from tests.scheduler.trials import Trial, Way


def external(at_s: float) -> ExternalJob:
    return ExternalJob(new_job_id(at_s), "7", "fit", "bob", 1, 1, 60.0, at_s)


class ExternalWay(Way):
    """A way to a backend at which users submit jobs; each call does first what the test says."""

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        self.capabilities = replace(self.capabilities, has_external_jobs=True)
        self.jobs: list[ExternalJob] = []
        self.discarded: list[str] = []

    def external_jobs(self) -> Sequence[ExternalJob]:
        self.before("external_jobs")
        return self.jobs  # always the same list

    def discard_external_job(self, job: str) -> None:
        self.before("discard_external_job")
        self.discarded.append(job)


class ExternalTrial(Trial):
    way: ExternalWay

    def another(self, owner: str | None = None) -> Reconciler:
        self.way = ExternalWay(self.way.backend)
        return super().another(owner)


@pytest.fixture
def trial(tmp_path: Path) -> Iterator[ExternalTrial]:
    with obedient_trial(ExternalTrial, tmp_path, {"a": 4}) as made:
        yield made


def wrong(call: str) -> Callable[[str], None]:
    def fail(made: str) -> None:
        if made == call:
            raise KeyError("a bug of the plug-in")

    return fail


def test_a_list_that_grows_has_new_jobs(trial: ExternalTrial) -> None:
    for count in (1, 2):
        trial.way.jobs.append(external(trial.now_s() + count))
        trial.wait(3.0, 1.0)
        assert [trial.job(it.job).state for it in trial.way.jobs] == [JobState.RUNNING] * count


@pytest.mark.parametrize("call", ["external_jobs", "discard_external_job"])
def test_a_bug_in_them_stops_no_job_of_others(trial: ExternalTrial, call: str) -> None:
    trial.way.jobs.append(external(trial.now_s()))
    trial.wait(3.0, 1.0)
    trial.wish(trial.way.jobs[0].job, Desired.CANCEL)
    trial.way.before = wrong(call)
    other = trial.submit("x")
    trial.wait(3.0, 1.0)
    assert trial.job(other).state is JobState.RUNNING
    trial.way.before = lambda _call: None
    trial.wait(3.0, 1.0)
    assert set(trial.way.discarded) == {trial.way.jobs[0].job}
    assert trial.job(trial.way.jobs[0].job).state in FINAL
    assert isinstance(trial.way.backend, Obedient)
    trial.way.backend.end(WELL)
    assert trial.ends(other).state is JobState.SUCCEEDED
