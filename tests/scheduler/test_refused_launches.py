"""A job that the backend refuses to launch gives its GPUs back at once, and those behind it are decided about anew."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from longshore.scheduler.model.states import Desired, JobState
from tests.scheduler.backends.attempts import end_all
from tests.scheduler.trials import Trial

REFUSED = {
    "a folder that is not there": {"folder": "/nowhere/at/all"},
    "a folder that is a file": {"folder": "/etc/hostname"},
    "a program that is not there": {"command": ["/no/such/program"]},
    "a program that is a folder": {"command": ["/etc"]},
}


@pytest.fixture
def trial(tmp_path: Path) -> Iterator[Trial]:
    it = Trial(tmp_path, {"a": 4})
    yield it
    it.close()
    end_all(tmp_path)


@pytest.mark.few(2)
@pytest.mark.parametrize("broken", [1, 3])
@pytest.mark.parametrize("spec", REFUSED.values(), ids=REFUSED)
def test_nothing_else_needs_to_happen_for_the_next_job_to_start(
    trial: Trial, spec: dict[str, object], broken: int
) -> None:
    before = trial.submit("sleep 1000", gpus=4)
    trial.until(lambda: trial.job(before).state is JobState.RUNNING)
    for _ in range(broken):  # ahead of the one that is well, and too large to run beside it
        trial.submit("", gpus=3, **spec)
    well = trial.submit("true", gpus=3)
    trial.tick(3)
    trial.wish(before, Desired.CANCEL)
    trial.until(lambda: trial.job(well).state is JobState.SUCCEEDED)
    assert trial.held() == []
