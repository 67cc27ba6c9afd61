"""Whatever job file is accepted, and whatever becomes of the job: all numbers stay finite, and other jobs go on."""

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from sqlalchemy import update

from longshore.scheduler.api.jobs import job_detail_page
from longshore.scheduler.model.job import JobRow, new_job_id
from longshore.scheduler.model.job_spec import YEAR_S, JobFile
from longshore.scheduler.model.states import FINAL, AttemptState, Desired, EndedBy, JobState, RankEnd, Run, Status
from longshore.scheduler.store import schema
from longshore.scheduler.store.attempts import AttemptRow
from longshore.scheduler.store.jobs import NewJob, insert_job
from tests.scheduler.obedient import AGAIN, WELL, Obedient
from tests.scheduler.obedient_trial import obedient_trial
from tests.scheduler.trials import RING, Trial
from tests.support.budgets import examples

NODES = {"a": 4, "b": 4, "c": 2}
FAILS = Status(Run.EXITED, (RankEnd(0, 3, 0, 2.0),), EndedBy.RANK_FAILED, started_s=1.0)
EDGES = (5e-324, 1e-300, 1e-9, 1e-6, 1e-3, 1.0, 86400.0, YEAR_S, 1e12, 1e15, 1e18, 1e300, math.inf, math.nan, 0.0, -1.0)
NUMBERS = st.sampled_from(EDGES) | st.floats()
NUMERIC = ("estimate_s", "limit_s", "grace_s", "compute_s", "parameter_bytes")
ACTIONS = ("hold", "run", "again", "fails", "anew", "crash", "wait", "saved")


@st.composite
def job_files(draw: st.DrawFn) -> dict[str, Any]:
    """A job file that the API accepts, with numbers from everywhere."""
    spec: dict[str, Any] = {"command": ["job"], "gpus": draw(st.integers(1, 10))}
    spec["retry"] = {"again": 1000, "user": 1000, "no_progress": 1000}
    for name in draw(st.sets(st.sampled_from(NUMERIC), min_size=1)):
        value = draw(NUMBERS)
        try:
            JobFile.model_validate({**spec, name: value})
        except ValidationError:
            continue
        spec[name] = value
    return spec


def act(trial: Trial, backend: Obedient, job: str, action: str, saved_s: float) -> None:
    if action in ("hold", "run"):
        trial.wish(job, Desired(action))
    elif action in ("again", "fails"):
        backend.end(replace(AGAIN if action == "again" else FAILS, progress={"saved_s": saved_s}), job)
    elif action == "saved":
        backend.known = {name: replace(it, progress={"saved_s": saved_s}) for name, it in backend.known.items()}
    elif action == "anew":
        trial.scheduler.cache = None
    elif action == "crash":
        trial.crash()
    trial.wait(20.0, 10.0)


def assert_all_is_finite(trial: Trial, jobs: list[str]) -> None:
    rows: list[JobRow | AttemptRow] = [trial.job(job) for job in jobs]
    rows += [row for job in jobs for row in trial.attempts(job)]
    for row in rows:
        numbers = {name: it for name, it in row._asdict().items() if isinstance(it, float)}
        assert all(map(math.isfinite, numbers.values())), numbers
    assert all(row.slowdown > 0.0 for row in rows if isinstance(row, AttemptRow))
    cache = trial.scheduler.cache
    assert cache is not None
    mirror = cache.mirror.sim.state
    for name in ("guess_s", "saved_s", "wait_s", "start_s", "end_s", "overhead_s", "slowdown", "queued_gpu_s"):
        assert np.isfinite(getattr(mirror, name)).all(), name
    assert all(0.0 < standing.guess_s < math.inf for _, standing in cache.mirror.origin_now().jobs)


@settings(max_examples=examples(24))
@given(
    st.lists(job_files(), min_size=1, max_size=3),
    st.lists(st.tuples(st.integers(0, 2), st.sampled_from(ACTIONS), NUMBERS), max_size=10),
)
def test_all_numbers_stay_finite_and_the_job_beside_it_ends_well(
    specs: list[dict[str, Any]], actions: list[tuple[int, str, float]]
) -> None:
    with TemporaryDirectory() as folder:
        backend = Obedient(NODES)
        trial = Trial(Path(folder), NODES, lambda: backend, "obedient", RING)
        backend.now_s = trial.now_s
        jobs = [submit(trial, spec) for spec in specs]
        good = submit(trial, {"command": ["good"], "gpus": 2, "priority": 5})
        trial.wait(20.0, 10.0)
        for which, action, saved_s in actions:
            act(trial, backend, jobs[which % len(jobs)], action, saved_s)
            assert_all_is_finite(trial, [*jobs, good])
        for _ in range(20):
            for job in jobs:
                if trial.job(job).state not in FINAL:
                    trial.wish(job, Desired.RUN)
            backend.end(WELL)
            trial.wait(400.0, 200.0)
        assert_all_is_finite(trial, [*jobs, good])
        assert {trial.job(job).state for job in [*jobs, good]} == {JobState.SUCCEEDED}
        assert trial.held() == []
        trial.close()


def submit(trial: Trial, spec: dict[str, Any]) -> str:
    """Put a job into the store as the API does."""
    job = JobFile.model_validate(spec)
    new = NewJob(
        new_job_id(trial.now_s()), job.name, "ada", job.model_dump(mode="json"), job.priority, job.gpus,
        job.estimate_s, trial.now_s(),
    )  # fmt: skip
    trial.store.write(lambda tx: insert_job(tx, new, writer="api"))
    return new.id


@pytest.fixture
def trial(tmp_path: Path) -> Iterator[Trial]:
    with obedient_trial(Trial, tmp_path, NODES, RING) as made:
        yield made


# What another version, or a hand, may have left in a row of a job, in the state in which it was left.
ROWS: list[dict[str, Any]] = [
    {"spec": {"command": ["job"], "gpus": 4, "compute_s": 5e-324}}, {"spec": {"command": ["job"], "limit_s": 1e300}},
    {"spec": {"command": ["job"], "of_a_later_version": 3, "retry": {"infra": 10**9}, "health": {"hang": 5e-324}}},
    {"spec": {}}, {"spec": []}, {"spec": None}, {"spec": {"command": []}},
    {"estimate_s": 0.0}, {"estimate_s": 5e-324}, {"estimate_s": math.inf}, {"estimate_s": 1e308},
    {"guess_s": 0.0}, {"guess_s": math.inf}, {"guess_s": -1.0}, {"saved_s": math.inf}, {"saved_s": -1.0},
    {"wait_s": math.inf}, {"entered_s": math.inf}, {"submitted_s": -math.inf}, {"priority": 2**31 - 1},
    {"gpus": 0}, {"gpus": -3}, {"gpus": 2**31 - 1}, {"not_before_s": -math.inf},
]  # fmt: skip


@pytest.mark.few(12)
@pytest.mark.parametrize("state", [JobState.QUEUED, JobState.RUNNING])
@pytest.mark.parametrize("values", ROWS, ids=str)
def test_a_row_that_another_version_has_left_holds_up_no_one(
    values: dict[str, Any], state: JobState, trial: Trial
) -> None:
    odd = trial.submit("odd", gpus=4)
    if state is JobState.RUNNING:
        trial.runs(odd)
    trial.store.write(lambda tx: tx.execute(update(schema.job).where(schema.job.c.id == odd).values(**values)))
    trial.crash()
    good = trial.submit("good", gpus=4)

    trial.wait(20.0, 1.0)
    job_detail_page(trial.job(odd), trial.attempts(odd), None, {}).model_dump_json()
    backend = trial.way.backend
    assert isinstance(backend, Obedient)
    backend.end(WELL)
    trial.wait(60.0, 1.0)

    assert trial.job(good).state is JobState.SUCCEEDED
    assert trial.job(odd).state in {*FINAL, JobState.HELD}
    assert trial.held() == []


@pytest.mark.parametrize("slowdown", [0.0, 5e-324, math.inf, -1.0])
def test_an_attempt_with_a_slowdown_that_is_none_is_taken_up(slowdown: float, trial: Trial) -> None:
    odd, good = trial.submit("odd", gpus=4), trial.submit("good")
    trial.runs(odd)
    trial.store.write(lambda tx: tx.execute(update(schema.attempt).values(slowdown=slowdown, overhead_s=slowdown)))
    trial.crash()
    trial.tick(2)
    backend = trial.way.backend
    assert isinstance(backend, Obedient)
    backend.end(AGAIN, odd)
    trial.wait(60.0, 1.0)
    backend.end(WELL)
    trial.wait(60.0, 1.0)

    assert trial.job(odd).state is trial.job(good).state is JobState.SUCCEEDED
    assert math.isfinite(trial.job(odd).saved_s)


@pytest.mark.parametrize(
    ("table", "column", "text"),
    [("job", "spec", "{torn"), ("job", "desired", "'paused'"), ("attempt", "placement", "{torn"),
     ("attempt", "placement", "[3]"), ("attempt", "contact", "later")],
)  # fmt: skip
def test_a_row_that_cannot_be_read_is_named_and_passed_over_and_its_gpus_stay_held(
    table: str, column: str, text: str, trial: Trial, caplog: pytest.LogCaptureFixture
) -> None:
    odd = trial.submit("odd", gpus=4)
    if table == "attempt":
        trial.runs(odd)
    with trial.store.engine.begin() as tx:
        tx.exec_driver_sql(f"UPDATE {table} SET {column} = ?", (text,))
    good = trial.submit("good", gpus=4)
    trial.crash()

    trial.wait(20.0, 1.0)
    backend = trial.way.backend
    assert isinstance(backend, Obedient)
    backend.end(WELL, good)
    trial.wait(20.0, 1.0)

    assert trial.job(good).state is JobState.SUCCEEDED
    assert odd in caplog.text
    assert len(trial.held()) == (4 if table == "attempt" else 0)
    with trial.store.engine.connect() as tx:
        state = tx.exec_driver_sql("SELECT state FROM job WHERE id = ?", (odd,)).scalar_one()
    assert state in (("running", "stopping") if table == "attempt" else ("held",))


def test_an_attempt_whose_row_names_a_node_that_there_is_not_ends_as_it_does(trial: Trial) -> None:
    odd, good = trial.submit("odd", gpus=2), trial.submit("good", gpus=4)
    trial.runs(odd)
    with trial.store.engine.begin() as tx:
        tx.exec_driver_sql("UPDATE attempt SET placement = '[[\"gone\", [0, 1]]]' WHERE job_id = ?", (odd,))
    trial.crash()
    trial.tick(3)
    backend = trial.way.backend
    assert isinstance(backend, Obedient)
    backend.end(WELL)
    trial.wait(20.0, 1.0)

    assert trial.job(odd).state is trial.job(good).state is JobState.SUCCEEDED
    assert {row.state for row in trial.attempts(odd)} == {AttemptState.CLOSED}
