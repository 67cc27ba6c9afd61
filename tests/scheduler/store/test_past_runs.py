"""Estimates of jobs whose owners give none, from the ended jobs of the store."""

from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, delete, insert

from longshore.cluster.workloads.estimates import Alike, predict_works
from longshore.scheduler.model.job import estimate_source_words
from longshore.scheduler.model.job_spec import MIN_JOB_ESTIMATE_S, YEAR_S
from longshore.scheduler.model.states import AttemptState, Contact, JobState
from longshore.scheduler.store import jobs
from longshore.scheduler.store.database import Store, open_store
from longshore.scheduler.store.jobs import GIVEN, UNKNOWN, UNNAMED, NewJob, insert_job, with_estimate
from longshore.scheduler.store.schema import attempt, job
from tests.support.budgets import examples


class Past(NamedTuple):
    """A job that has ended."""

    owner: str
    name: str
    gpus: int
    ran_s: float
    slowdown: float = 1.0
    saved_s: float = 0.0
    overhead_s: float = 0.0
    came_back: bool = False  # into the queue after its attempt, and ended there
    state: JobState = JobState.SUCCEEDED
    started: bool = True


def asked(owner: str = "ada", name: str = "bert", gpus: int = 4) -> NewJob:
    return NewJob(f"{9:026}", name, owner, {"gpus": gpus, "estimate_s": 3600.0}, 0, gpus, 3600.0, 1e6, UNKNOWN)


def put(tx: Connection, jobs: list[Past]) -> None:
    """Write jobs that ended one after the other, a second apart."""
    tx.execute(delete(attempt))
    tx.execute(delete(job))
    for number, it in enumerate(jobs):
        ended_s = 1e5 + number
        new = NewJob(f"{number:026}", it.name, it.owner, {"gpus": it.gpus}, 0, it.gpus, 60.0, 0.0)
        insert_job(tx, new, writer="api")
        entered_s = ended_s if it.came_back else 0.0
        tx.execute(
            job.update()
            .where(job.c.id == new.id)
            .values(state=it.state, ended_s=ended_s, attempt=1, saved_s=it.saved_s, entered_s=entered_s)
        )
        started_s = ended_s - it.ran_s
        tx.execute(
            insert(attempt).values(
                job_id=new.id, number=1, state=AttemptState.RELEASED, version=1, backend="local", placement=(),
                slowdown=it.slowdown, overhead_s=it.overhead_s, opened_s=started_s - 1.0,
                started_s=started_s if it.started else None, ended_s=ended_s, contact=Contact.OK, contact_since_s=0.0,
                outcome="", cause="", ends=(), cleanup_error="",
            )
        )  # fmt: skip


def found(store: Store, jobs: list[Past], new: NewJob | None = None) -> NewJob:
    def write(tx: Connection) -> NewJob:
        put(tx, jobs)
        return with_estimate(tx, new or asked())

    return store.write(write)


PASTS = st.lists(
    st.tuples(
        st.sampled_from(["ada", "ben"]),
        st.sampled_from(["bert", "gpt", UNNAMED]),
        st.sampled_from([1, 4]),
        st.floats(1.0, 90000.0),
    ).map(lambda drawn: Past(*drawn)),
    max_size=40,
)


@settings(max_examples=examples(25), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(PASTS, st.sampled_from(["ada", "ben", "eve"]), st.sampled_from(["bert", "new", UNNAMED]))
def test_the_estimate_is_the_one_that_a_trace_of_these_jobs_gives(
    store: Store, jobs: list[Past], owner: str, name: str
) -> None:
    mine = asked(owner, name)
    ends_s = np.arange(len(jobs), dtype=float) + 1e5
    work_s = np.array([it.ran_s for it in jobs] + [1.0])
    submit_s = np.append(ends_s, 1e6) - work_s + np.append(np.zeros(len(jobs)), 1.0)
    everyone = [*jobs, Past(owner, name, mine.gpus, 1.0)]
    trace = predict_works(
        np.array([it.gpus for it in everyone], np.int32), work_s, submit_s, [it.owner for it in everyone],
        ["" if it.name == UNNAMED else it.name for it in everyone],
    )  # fmt: skip

    got = found(store, jobs, mine)

    assert got.estimate_s == pytest.approx(float(trace.estimate_s[-1]), rel=1e-6)
    assert got.estimate_jobs == trace.ended[-1]
    level = int(trace.alike[-1])
    assert got.estimate_from == (UNKNOWN if level < 0 else list(Alike)[level])
    assert got.spec["estimate_s"] == got.estimate_s


def test_what_an_owner_says_is_kept(store: Store) -> None:
    mine = asked()._replace(estimate_from=GIVEN, estimate_s=77.0)
    assert found(store, [Past("ada", "bert", 4, 500.0)], mine) == mine


def test_work_is_what_was_saved_and_the_last_run_on_reference_gpus(store: Store) -> None:
    past = Past("ada", "bert", 4, 230.0, slowdown=2.0, saved_s=1000.0, overhead_s=30.0)
    assert found(store, [past]).estimate_s == pytest.approx(1100.0)
    assert found(store, [past._replace(came_back=True)]).estimate_s == pytest.approx(1000.0)


@pytest.mark.parametrize("state", [JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED])
def test_jobs_count_however_they_ended_since_they_held_their_gpus(store: Store, state: JobState) -> None:
    assert found(store, [Past("ada", "bert", 4, 500.0, state=state)]).estimate_s == pytest.approx(500.0)


def test_jobs_that_never_ran_do_not_count(store: Store) -> None:
    got = found(store, [Past("ada", "bert", 4, 500.0, started=False), Past("ada", "bert", 4, 0.0)])
    assert (got.estimate_s, got.estimate_from, got.estimate_jobs) == (3600.0, UNKNOWN, 0)


@pytest.mark.parametrize("ran_s", [1e-4, 1e12])
def test_an_estimate_is_one_that_a_job_file_could_give(store: Store, ran_s: float) -> None:
    got = found(store, [Past("ada", "bert", 4, ran_s, slowdown=1e-9 if ran_s > 1 else 1.0)])
    assert MIN_JOB_ESTIMATE_S <= got.estimate_s <= YEAR_S


def test_the_name_that_jobs_have_without_one_says_nothing(store: Store) -> None:
    others = [Past("ada", UNNAMED, 1, 10.0), Past("ben", "gpt", 4, 500.0)]
    got = found(store, others, asked(name=UNNAMED))
    assert got.estimate_from == Alike.GPUS.value
    assert got.estimate_s == pytest.approx(500.0)


@pytest.mark.parametrize(
    ("alike", "index"),
    [
        (Alike.USER_AND_NAME, "ix_job_ended_owner_name"),
        (Alike.USER_AND_GPUS, "ix_job_ended_owner_gpus"),
        (Alike.GPUS, "ix_job_ended_gpus"),
        (Alike.ANY, "ix_job_ended_s_submit_seq"),
    ],
)
def test_an_index_finds_the_last_ended_jobs(sqlite_url: str, alike: Alike, index: str) -> None:
    store = open_store(sqlite_url)
    with store.read() as tx:
        rows = jobs._LEVELS[alike].params(as_owner="ada", as_name="bert", as_gpus=4)
        query = rows.compile(tx.engine, compile_kwargs={"literal_binds": True})
        plan = " ".join(str(row) for row in tx.exec_driver_sql(f"EXPLAIN QUERY PLAN {query}"))
    store.close()
    assert index in plan, plan
    assert "TEMP B-TREE" not in plan.replace("LAST TERM OF ORDER BY", ""), plan


def test_where_an_estimate_is_from_is_said_in_words() -> None:
    assert estimate_source_words(GIVEN, 0) == "given by its owner"
    assert estimate_source_words(UNKNOWN, 0).startswith("assumed")
    assert estimate_source_words("user-and-name", 1) == "from the last ended job of the same user and name"
    for alike in Alike:
        assert estimate_source_words(alike, 3).startswith("from the last 3 ended jobs ")
    assert len({estimate_source_words(alike, 3) for alike in Alike}) == len(Alike)
