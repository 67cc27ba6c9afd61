"""Who is looked after first where there is no time for all attempts: nobody's load hides another's."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.scheduler.control import attempt_driver
from longshore.scheduler.model.job import JobRow, new_job_id
from longshore.scheduler.model.job_spec import JobFile
from longshore.scheduler.model.states import Desired, JobState
from longshore.scheduler.rules.attempts import in_polling_order, poll_turn_of
from longshore.scheduler.store.jobs import NewJob, insert_job
from tests.scheduler.obedient import WELL, Obedient
from tests.scheduler.trials import Trial

NODES = {f"n{node}": 8 for node in range(40)}
CLAIMS = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 2), st.integers(0, 2)), max_size=40)


def job_of(name: str, owner: str, priority: int, place: int) -> JobRow:
    return JobRow(
        place, name, name, owner, {}, Desired.RUN, JobState.RUNNING, priority, 1, 60.0, 0.0, 0.0, 1, 1, 0, 0, 0, 0, 0,
        0, 0.0, 60.0, 0.0, 0.0, None, "", "", None, None,
    )  # fmt: skip


def test_one_attempt_of_a_user_stands_behind_one_of_each_other_and_not_behind_thousands() -> None:
    many = [job_of(f"ada-{place}", "ada", 0, place) for place in range(5000)]
    order = in_polling_order([*many, job_of("bob", "bob", 0, 9000), job_of("eve", "eve", 5, 9001)], {})
    assert order[:4] == ["eve", "ada-0", "bob", "ada-1"]
    assert len(order) == 5002


@given(CLAIMS)
def test_the_order_is_by_whose_turn_it_is_then_priority_then_users_by_turns(
    reported: list[tuple[str, int, int]],
) -> None:
    """Of each three claims, those of mark 1 had their turn, and those of mark 2 as well but are over."""
    every = [job_of(f"{place}", *it[:2], place) for place, it in enumerate(reported)]
    had = {it.id: poll_turn_of(it) for it, (_, _, mark) in zip(every, reported, strict=True) if mark}
    claims = {it.id: it for it, (_, _, mark) in zip(every, reported, strict=True) if mark < 2}
    order = [claims[job] for job in in_polling_order(reversed(claims.values()), had)]
    assert sorted(order) == sorted(claims.values())
    keys = [(it.id in had, -it.priority) for it in order]
    assert keys == sorted(keys)
    for key in set(keys):
        group = [it for it in order if (it.id in had, -it.priority) == key]
        seen = Counter() if key[0] else Counter(user for priority, user in had.values() if priority == -key[1])
        left = Counter(it.owner for it in group)
        for it in group:
            # Nobody who had more turns goes before another one who still waits.
            assert all(seen[it.owner] <= seen[user] for user in left if left[user])
            seen[it.owner] += 1
            left[it.owner] -= 1
        for user in left:
            places = [it.submit_seq for it in group if it.owner == user]
            assert places == sorted(places)


@pytest.fixture
def trial(tmp_path: Path) -> Iterator[Trial]:
    backend = Obedient(NODES)
    made = Trial(tmp_path, NODES, lambda: backend, "obedient")
    yield made
    made.close()


def submit(trial: Trial, owner: str, jobs: int, priority: int = 0) -> list[str]:
    found = []
    for _ in range(jobs):
        spec = JobFile.model_validate({"command": ["x"], "gpus": 1}).model_dump(mode="json")
        new = NewJob(new_job_id(trial.now_s()), "job", owner, spec, priority, 1, 60.0, trial.now_s())
        trial.store.write(lambda tx, new=new: insert_job(tx, new, writer="api"))  # type: ignore[misc]
        found.append(new.id)
    return found


def test_where_there_is_time_for_a_single_step_every_users_attempt_has_its_turn_and_all_are_reached(
    trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = submit(trial, "ada", 300)
    (one,) = submit(trial, "bob", 1)
    trial.tick()
    backend = trial.way.backend
    assert isinstance(backend, Obedient)
    for job in [*many, one]:
        trial.runs(job)
    backend.end(WELL)
    monkeypatch.setattr(attempt_driver, "ADVANCE_S", -1.0)  # a backend so slow that a look reaches one attempt

    def reached() -> int:
        return sum(trial.job(job).state is not JobState.RUNNING for job in many)

    ticks = 0
    while trial.job(one).state is JobState.RUNNING:
        trial.tick()
        ticks += 1
        assert ticks <= 3, "the attempt of a user with one is hidden by those of another"
    assert reached() <= 3
    monkeypatch.undo()
    trial.wait(3.0, 1.0)
    assert reached() == 300
