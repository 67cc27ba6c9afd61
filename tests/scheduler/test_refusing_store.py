"""A store that answers, and refuses what any change writes: no job is to blame for it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy.exc import IntegrityError

from longshore.scheduler.control.job_errors import ERROR_EVENT
from longshore.scheduler.model.states import JobState
from longshore.scheduler.store.attempts import held_gpus
from longshore.scheduler.store.database import Store, StoreRefusesError
from longshore.scheduler.store.events import events_after
from longshore.scheduler.store.jobs import open_jobs
from longshore.scheduler.store.transitions import try_writing
from tests.scheduler.obedient_trial import obedient_trial
from tests.scheduler.trials import Trial

NODES = {"a": 4, "b": 4}
WRITES = [
    ("insert", "event"), ("update", "job"), ("insert", "attempt"), ("update", "attempt"), ("insert", "decision")
]  # fmt: skip


@pytest.fixture
def trial(tmp_path: Path) -> Iterator[Trial]:
    with obedient_trial(Trial, tmp_path, NODES) as made:
        yield made


def run(trial: Trial, statement: str) -> None:
    trial.store.write(lambda tx: tx.exec_driver_sql(statement))


@pytest.mark.few(2)
@pytest.mark.parametrize(("what", "table"), WRITES, ids=lambda it: it)
def test_a_store_that_refuses_a_kind_of_write_for_a_minute_has_no_job_held_or_stopped(
    what: str, table: str, trial: Trial
) -> None:
    started = [trial.submit("one"), trial.submit("two")]
    trial.tick()
    waiting = [trial.submit("three"), trial.submit("four")]
    run(trial, f"CREATE TRIGGER refuses BEFORE {what} ON {table} BEGIN SELECT RAISE(ABORT, 'refused'); END")
    refusals = 0
    for _ in range(60):
        trial.later_s += 1.0
        try:
            trial.tick()
        except (StoreRefusesError, IntegrityError):
            refusals += 1
    assert refusals
    assert not any(trial.scheduler.errors.last_error(job) for job in (*started, *waiting))

    run(trial, "DROP TRIGGER refuses")
    trial.wait(5.0, 1.0)

    assert {trial.job(job).state for job in (*started, *waiting)} == {JobState.RUNNING}
    assert {len(trial.attempts(job)) for job in (*started, *waiting)} == {1}
    assert not [it for it in trial.events() if it.kind == ERROR_EVENT]


def test_what_is_tried_leaves_no_trace(store: Store, fence: int) -> None:
    with store.read() as tx:
        before = events_after(tx, 0, 1 << 40)

    try_writing(store, fence, 1.0, "scheduler")

    with store.read() as tx:
        assert (events_after(tx, 0, 1 << 40), open_jobs(tx), held_gpus(tx)) == (before, [], [])
