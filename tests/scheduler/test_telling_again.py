"""What an attempt tells is taken for its own, and not for what another one of the job has reported."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from longshore.cluster.model.placement import Placement
from longshore.scheduler.backends.protocol import Backend, StepLines
from longshore.scheduler.model.states import AttemptState, Desired, JobState
from longshore.scheduler.store.attempts import checkpoints_of
from tests.scheduler.trials import Trial, Way

FIRST_DIES = """
case $LONGSHORE_ATTEMPT in
*-1) echo "train 1 1.0" >> $LONGSHORE_STEPS; while [ ! -e die ]; do sleep 0.05; done; kill -9 $$;;
esac
exec sleep 1000
"""


class TellingWay(Way):
    """The way to a backend that reads the steps of jobs."""

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        self.capabilities = replace(self.capabilities, reads_steps=True)

    def step_lines(self, name: str, placement: Placement, before: Sequence[StepLines]) -> list[StepLines]:
        return self.backend.step_lines(name, placement, before)


@pytest.fixture
def trial(tmp_path: Path) -> Iterator[Trial]:
    made = Trial(tmp_path, {"n0": 1})
    made.way = TellingWay(made.make())
    made.scheduler = made.another()
    yield made
    made.close()


def test_a_scheduler_that_comes_back_takes_no_checkpoint_for_one_of_a_later_attempt(
    trial: Trial, tmp_path: Path
) -> None:
    job = trial.submit(FIRST_DIES, retry={"ambiguous": 5})
    trial.runs(job)
    folder = tmp_path / "attempts" / f"ls-{job}-1"
    trial.wait(60.0)
    paused, other = trial.scheduler, trial.another()
    assert other.tick()
    with (folder / "saved-0").open("a") as saved:
        saved.write("5000 1.0 - /ckpt/of-attempt-1\n")
    trial.later_s += 5.0
    paused._renew_at_s = time.monotonic() + 60.0  # it was paused just behind its renewal
    assert not paused.tick()

    trial.scheduler = other
    trial.wait(35.0)
    (folder / "work" / "die").touch()
    trial.until(lambda: trial.job(job).state is JobState.QUEUED)
    trial.later_s += 310.0  # the wait before another try
    trial.until(lambda: len(trial.attempts(job)) == 2 and trial.job(job).state is JobState.RUNNING)
    other.close()
    trial.scheduler = paused
    trial.wait(40.0)

    with trial.store.read() as tx:
        assert [(it.number, it.path) for it in checkpoints_of(tx, job)] == [(1, "/ckpt/of-attempt-1")]
    trial.wish(job, Desired.CANCEL)
    trial.ends(job)


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("reported", "tries"),
    [
        ('echo "train 0 1.0" >> $LONGSHORE_STEPS', 3),
        ('echo "train 1000 1.0" >> $LONGSHORE_STEPS', 3),  # the first one behind the checkpoint that it began with
        ('echo "1000 1.0 - /ckpt" >> $LONGSHORE_SAVED', 4),  # the first attempt saved it, and the others again
        ('printf "train 1000 1.0\\ntrain 1001 2.0\\n" >> $LONGSHORE_STEPS', 6),
    ],
)
def test_a_job_that_comes_no_further_than_it_began_is_given_up(trial: Trial, reported: str, tries: int) -> None:
    job = trial.submit(f"{reported}; exit 75", retry={"again": 5})
    for number in range(1, tries + 1):
        trial.until(lambda number=number: len(trial.attempts(job)) == number)  # type: ignore[misc]
        trial.until(lambda: trial.attempts(job)[-1].state is AttemptState.CLOSED)
        trial.later_s += 310.0  # longer than the wait before another try
    trial.wait(30.0)
    assert (len(trial.attempts(job)), trial.job(job).state is JobState.QUEUED) == (tries, False)
