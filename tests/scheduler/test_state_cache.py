"""What the leading scheduler holds in memory: what spoils it, and the progress of jobs by the rows of the store."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from longshore.cluster.model.placement import Share
from longshore.scheduler.control.job_errors import MAX_ERRORS_IN_A_ROW, SpoiledError
from longshore.scheduler.control.seating import held_placement
from longshore.scheduler.control.state_cache import StateCache, running_progress, with_held_gpus
from longshore.scheduler.model.job import SCHEDULER_WRITER, NewEvent
from longshore.scheduler.model.states import JobState
from longshore.scheduler.store.attempts import held_gpus
from tests.scheduler.obedient import Obedient
from tests.scheduler.obedient_trial import obedient_trial
from tests.scheduler.trials import Trial

NODES = {"a": 4}


@pytest.fixture
def trial(tmp_path: Path) -> Iterator[Trial]:
    with obedient_trial(Trial, tmp_path, NODES) as made:
        yield made


def cache_of(trial: Trial) -> StateCache:
    trial.tick()
    cache = trial.scheduler.cache
    assert cache is not None
    return cache


def fails_after(change: Callable[[], object]) -> None:
    change()
    raise ValueError("no")


def test_an_error_spoils_the_state_in_memory_only_if_something_was_changed_before_it(trial: Trial) -> None:
    cache, now_s = cache_of(trial), trial.now_s()
    with cache.isolated("same", now_s):
        fails_after(lambda: None)
    assert cache.errors.is_resting("same", now_s)
    with pytest.raises(SpoiledError), cache.isolated("half", now_s, spoils=True):
        raise ValueError("something was changed that shows nowhere")
    with pytest.raises(SpoiledError), cache.isolated("stored", now_s):
        fails_after(lambda: cache.batch.add_event(NewEvent("kind", SCHEDULER_WRITER, now_s)))
    with pytest.raises(SpoiledError), cache.isolated("mirrored", now_s):
        fails_after(lambda: cache.mirror.take_out(0))


@pytest.mark.parametrize("kept", [0, 1, 2])
def test_a_ring_has_the_gpus_that_it_holds_now_and_none_that_it_gave_up(trial: Trial, kept: int) -> None:
    job = trial.submit("x", gpus=2)
    trial.until(lambda: trial.job(job).state is JobState.RUNNING)
    cache = cache_of(trial)
    row, job_row = cache.table.attempts[job], cache.table.jobs[job]
    ring = job_row._replace(spec={**job_row.spec, "failover": "switch"})
    (share,) = row.placement
    with trial.store.read() as tx:
        held = held_gpus(tx)[:kept]
    expected = (Share(share.node, share.gpus[:kept]),) if kept else ()
    found = with_held_gpus([ring], {job: row}, held)
    assert {name: each.placement for name, each in found.items()} == ({job: expected} if kept else {})
    assert with_held_gpus([job_row], {job: row}, held) == {job: row}

    for gpu in share.gpus[kept:]:
        cache.mirror.give_up(job, trial.layout.number(share.node, gpu))
    cache.table.jobs[job] = ring
    assert held_placement(cache, row) == expected
    cache.table.jobs[job] = job_row
    assert held_placement(cache, row) == (expected or row.placement)


@pytest.mark.parametrize("step", ["start", "wait"])
def test_an_error_of_several_jobs_is_their_own_only_if_another_job_takes_the_very_step(trial: Trial, step: str) -> None:
    cache, now_s = cache_of(trial), trial.now_s()
    for turn in range(MAX_ERRORS_IN_A_ROW + 1):  # at the first error the step has not been taken since one before
        for job in ("one", "two"):
            with cache.isolated(job, now_s + turn, action="placing", step="start"):
                raise ValueError("no")
        cache.errors.note_step("third", "placing", step, now_s + turn)
        cache.errors.begin_tick(now_s + turn)
    assert cache.errors.is_failing("one") == cache.errors.is_failing("two") == (step == "start")


def test_a_job_that_runs_was_stopped_once_less_than_it_has_attempts(trial: Trial) -> None:
    backend = trial.way.backend
    assert isinstance(backend, Obedient)
    job = trial.submit("true")
    trial.runs(job)
    (attempt,) = trial.attempts(job)
    for number in (1, 2, 5):
        progress = running_progress(trial.job(job), attempt._replace(number=number), trial.layout)
        assert progress.stops == number - 1
    cache = cache_of(trial)
    assert cache.mirror.progress(job).stops == 0
