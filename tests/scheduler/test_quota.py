"""How many GPUs one user may have."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from longshore.agents.heuristics import HEURISTICS
from longshore.scheduler.control.reconciler import Reconciler
from longshore.scheduler.model.job import JobRow
from longshore.scheduler.model.states import JobState
from longshore.scheduler.placement.placer import Placer
from longshore.scheduler.rules.jobs import Quota
from longshore.scheduler.store.database import open_store
from longshore.scheduler.store.jobs import NewJob, insert_job, list_jobs
from longshore.testing.twin import id_of
from tests.plain_run import busy_case
from tests.scheduler.twin_run import twin_of

JOBS = st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 9)), max_size=20)


def job(owner: str, gpus: int) -> JobRow:
    values = dict.fromkeys(JobRow._fields)
    return JobRow(**{**values, "owner": owner, "gpus": gpus})  # type: ignore[arg-type]


@given(JOBS, JOBS, st.integers(0, 20))
def test_no_user_gets_more_than_the_quota_and_no_job_is_overtaken_by_a_later_one_of_its_owner(
    inside: list[tuple[str, int]], waiting: list[tuple[str, int]], most: int
) -> None:
    quota = Quota(most, [job(*it) for it in inside])
    let = [quota.take_if_within(job(*it)) for it in waiting]
    has = Counter[str]()
    for owner, gpus in inside:
        has[owner] += gpus
    for (owner, gpus), is_in in zip(waiting, let, strict=True):
        if is_in:
            has[owner] += gpus
            assert has[owner] <= most
    for owner in "abc":
        own = [is_in for (whose, _), is_in in zip(waiting, let, strict=True) if whose == owner]
        assert own == sorted(own, reverse=True)


@given(JOBS)
def test_without_a_quota_everybody_comes_in(waiting: list[tuple[str, int]]) -> None:
    quota = Quota(None, [job("a", 99)])
    assert all(quota.take_if_within(job(*it)) for it in waiting)


def test_a_users_further_jobs_wait_until_some_have_ended_also_for_the_next_scheduler(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path / 'store.db'}")
    twin = twin_of(busy_case(ring=False), store, Placer(HEURISTICS["pack"]))
    twin.scheduler = Reconciler(replace(twin.parts, gpus_per_user=3))
    spec = {"gpus": 1, "command": ["true"], "estimate_s": 50.0}
    for number, owner in enumerate(["ada"] * 5 + ["bob"]):
        new = NewJob(id_of(number), "job", owner, {**spec, "gpus": 1 + (number == 1)}, 0, 1 + (number == 1), 50.0, 0.0)
        twin.backend.of_job[new.id] = number
        store.write(lambda tx, new=new: insert_job(tx, new, writer="api"))  # type: ignore[misc]

    def started() -> list[int]:
        with store.read() as tx:
            rows = list_jobs(tx, limit=99, states=set(JobState) - {JobState.QUEUED})
        return sorted(int(row.id) for row in rows)

    twin.tick()
    assert started() == [0, 1, 5]
    twin.scheduler.cache = None
    twin.tick()
    assert started() == [0, 1, 5]
    store.close()
