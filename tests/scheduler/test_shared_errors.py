"""What goes wrong for many jobs is the fault of none of them, whenever they meet it."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.scheduler.control import attempt_driver as settling
from longshore.scheduler.control.job_errors import LONGEST_REST_S, MOST, JobErrors
from longshore.scheduler.control.reconciler import Scheduler
from longshore.scheduler.model.states import JobState
from longshore.scheduler.placement.placer import Deciding
from tests.scheduler.obedient import Obedient
from tests.scheduler.trials import Trial

NODES = {"a": 4, "b": 4}
TICK_S, LONG_S = 0.25, 300.0


def held(arrivals_s: Mapping[str, float], fails: Callable[[str], bool], until_s: float = LONG_S) -> set[str]:
    """Return the jobs that are held in the end where each is tried when it has come, and again when it has failed."""
    errors, waiting, failing = JobErrors(), dict(arrivals_s), set[str]()
    for tick in range(int(until_s / TICK_S)):
        now_s = tick * TICK_S
        errors.begin(now_s)
        for job in [job for job, at_s in waiting.items() if at_s <= now_s and not errors.rests(job, now_s)]:
            if errors.is_failing(job):
                failing.add(job)
                del waiting[job]
                errors.forget({job})
                continue
            with errors.about(job, now_s, lambda: 0, what="placing"):
                assert not fails(job)
                del waiting[job]
    return failing


def arriving(gaps_s: list[float]) -> dict[str, float]:
    return {f"job {number}": sum(gaps_s[:number]) for number in range(len(gaps_s))}


@given(st.lists(st.floats(0.0, 2.5), min_size=2, max_size=8))
def test_what_is_broken_for_all_jobs_holds_none_that_come_shortly_after_one_another(gaps_s: list[float]) -> None:
    assert held(arriving(gaps_s), lambda _job: True) == set()


@given(st.lists(st.floats(2.5, LONGEST_REST_S - 5.0), min_size=3, max_size=6))
def test_what_is_broken_for_all_jobs_holds_at_most_the_first_to_meet_it(gaps_s: list[float]) -> None:
    assert held(arriving(gaps_s), lambda _job: True, sum(gaps_s) + LONG_S) <= {"job 0"}


@given(st.lists(st.integers(0, 99), min_size=1, max_size=5, unique=True), st.floats(0.0, 5.0))
def test_some_jobs_with_faults_of_their_own_among_many_that_go_well_are_all_held(bad: list[int], gap_s: float) -> None:
    jobs = {f"bad {number}" if number in bad else str(number): number * gap_s for number in range(100)}

    assert held(jobs, lambda job: "bad" in job, 100 * gap_s + LONG_S) == {f"bad {number}" for number in bad}


def test_one_job_with_a_fault_of_its_own_is_held_after_three_errors() -> None:
    tries = list[str]()

    assert held({"bad": 0.0}, lambda job: not tries.append(job)) == {"bad"}  # type: ignore[func-returns-value]
    assert len(tries) == MOST


@pytest.fixture
def trial(tmp_path: Path) -> Iterator[Trial]:
    backend = Obedient(NODES)
    made = Trial(tmp_path, NODES, lambda: backend, "obedient")
    backend.now_s = made.now_s
    yield made
    made.close()


PLACES = [(Deciding, "settle"), (Scheduler, "_carry_on"), (settling, "attempt_of")]


@pytest.mark.parametrize(("owner", "name"), PLACES, ids=[name for _, name in PLACES])
def test_jobs_that_come_one_after_another_while_starts_are_broken_start_when_they_are_mended(
    owner: object, name: str, trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial.tick()
    jobs = []
    with monkeypatch.context() as broken:
        broken.setattr(owner, name, lambda *_: 1 / 0)
        for _ in range(6):
            jobs.append(trial.submit("x"))
            trial.wait(1.5, 0.25)
        trial.wait(30.0, 0.5)
        assert JobState.HELD not in {trial.job(job).state for job in jobs}
    trial.wait(90.0, 1.0)

    assert {trial.job(job).state for job in jobs} == {JobState.RUNNING}
