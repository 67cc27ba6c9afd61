"""What goes wrong for many jobs is the fault of none of them, whenever they meet it."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longshore.scheduler.control import attempt_driver
from longshore.scheduler.control.job_errors import LONGEST_REST_S, MAX_ERRORS_IN_A_ROW, JobErrors
from longshore.scheduler.control.reconciler import Reconciler
from longshore.scheduler.model.states import JobState
from longshore.scheduler.placement.placer import Placer
from tests.scheduler.obedient import AGAIN, WELL, Obedient
from tests.scheduler.obedient_trial import StillTrial, obedient_trial
from tests.scheduler.trials import Trial
from tests.support.budgets import examples

NODES = {"a": 4, "b": 4}
TICK_S, LONG_S = 0.25, 300.0


def held(arrivals_s: Mapping[str, float], fails: Callable[[str], bool], until_s: float = LONG_S) -> set[str]:
    """Return the jobs that are held in the end where each is tried when it has come, and again when it has failed."""
    errors, waiting, failing = JobErrors(), dict(arrivals_s), set[str]()
    for tick in range(int(until_s / TICK_S)):
        now_s = tick * TICK_S
        errors.begin_tick(now_s)
        for job in [job for job, at_s in waiting.items() if at_s <= now_s and not errors.is_resting(job, now_s)]:
            if errors.is_failing(job):
                failing.add(job)
                del waiting[job]
                errors.forget({job})
                continue
            with errors.isolated(job, now_s, lambda: 0, action="placing", step="start"):
                assert not fails(job)
                errors.note_step(job, "placing", "start", now_s)
                del waiting[job]
    return failing


def arriving(gaps_s: list[float]) -> dict[str, float]:
    return {f"job {number}": sum(gaps_s[:number]) for number in range(len(gaps_s))}


@given(st.lists(st.floats(0.0, 2.5), min_size=2, max_size=8))
@settings(max_examples=examples(40))
def test_what_is_broken_for_all_jobs_holds_none_that_come_shortly_after_one_another(gaps_s: list[float]) -> None:
    assert held(arriving(gaps_s), lambda _job: True) == set()


@given(st.lists(st.floats(2.5, LONGEST_REST_S - 5.0), min_size=3, max_size=6))
@settings(max_examples=examples(40))
def test_what_is_broken_for_all_jobs_holds_at_most_the_first_to_meet_it(gaps_s: list[float]) -> None:
    assert held(arriving(gaps_s), lambda _job: True, sum(gaps_s) + LONG_S) <= {"job 0"}


@given(st.lists(st.integers(0, 99), min_size=1, max_size=5, unique=True), st.floats(0.0, 5.0))
@settings(max_examples=examples(40))
def test_some_jobs_with_faults_of_their_own_among_many_that_go_well_are_all_held(bad: list[int], gap_s: float) -> None:
    jobs = {f"bad {number}" if number in bad else str(number): number * gap_s for number in range(100)}

    assert held(jobs, lambda job: "bad" in job, 100 * gap_s + LONG_S) == {f"bad {number}" for number in bad}


def test_one_job_with_a_fault_of_its_own_is_held_after_three_errors() -> None:
    tries = list[str]()

    assert held({"bad": 0.0}, lambda job: not tries.append(job)) == {"bad"}  # type: ignore[func-returns-value]
    assert len(tries) == MAX_ERRORS_IN_A_ROW


def is_bad(job: str) -> bool:
    return job.startswith("bad")


TWO_S = 540.0  # in which two jobs alone are not held


@given(st.floats(0.0, 2.5))  # else the first is held before there are two
@settings(max_examples=examples(40))
def test_two_jobs_that_fail_again_and_again_with_no_one_else_there_are_held_after_nine_minutes(gap_s: float) -> None:
    jobs = {"bad 0": 0.0, "bad 1": gap_s}

    assert held(jobs, is_bad, TWO_S) == set()
    assert held(jobs, is_bad, TWO_S + 2 * LONGEST_REST_S) == jobs.keys()


def test_three_jobs_that_fail_with_no_one_else_there_share_what_is_wrong() -> None:
    assert held(dict.fromkeys(["bad 0", "bad 1", "bad 2"], 0.0), is_bad, 4 * TWO_S) == set()


@given(st.integers(2, 4), st.floats(40.0, 59.0))
@settings(max_examples=examples(40))
def test_some_jobs_with_faults_of_their_own_are_held_where_a_few_others_start(bad: int, gap_s: float) -> None:
    jobs = {f"bad {number}": 0.0 for number in range(bad)}
    others = {f"good {number}": (number + 1) * gap_s for number in range(8)}

    assert held(jobs | others, is_bad, 8 * gap_s) == jobs.keys()


def test_that_others_wait_or_run_on_says_nothing_of_who_is_to_blame() -> None:
    errors = JobErrors()
    for tick in range(int(4 * TWO_S)):
        errors.begin_tick(float(tick))
        for job in ("bad 0", "bad 1", "bad 2"):
            if not errors.is_resting(job, float(tick)):
                with errors.isolated(job, float(tick), lambda: 0, action="polling", step="reserved"):
                    raise ValueError("x")
        for job in ("a", "b", "c"):
            with errors.isolated(job, float(tick), lambda: 0, action="polling", step="running"):
                errors.note_step(job, "polling", "running", float(tick))

    assert errors.last_error("bad 0")
    assert not any(errors.is_failing(f"bad {number}") for number in range(3))


@pytest.fixture
def trial(tmp_path: Path) -> Iterator[Trial]:
    with obedient_trial(StillTrial, tmp_path, NODES) as made:
        yield made


PLACES = [(Placer, "decide"), (Reconciler, "_apply_decision"), (attempt_driver, "attempt_to_launch")]


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


def breaks_some(owner: object, name: str, bad: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a call always fail that is about some jobs."""
    real = getattr(owner, name)

    def call(*arguments: Any, **named: Any) -> Any:
        if any(getattr(it, "id", getattr(it, "job", "")) in bad for it in arguments):
            raise KeyError("a bug")
        return real(*arguments, **named)

    monkeypatch.setattr(owner, name, call)


@pytest.mark.few(2)
@pytest.mark.parametrize("others", [0, 2])
@pytest.mark.parametrize(("owner", "name"), [(Reconciler, "_apply_decision"), (attempt_driver, "_decide_outcome")])
def test_two_jobs_that_can_never_be_handled_are_held_on_a_quiet_cluster(
    owner: object, name: str, others: int, trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = trial.way.backend
    assert isinstance(backend, Obedient)
    running = [trial.submit("x") for _ in range(others)]
    trial.wait(5.0, 1.0)
    bad = [trial.submit("bad"), trial.submit("bad")]
    breaks_some(owner, name, bad, monkeypatch)
    trial.wait(5.0, 1.0)
    for job in bad:
        backend.end(AGAIN, job)

    trial.wait(TWO_S - 60.0, 5.0)
    assert JobState.HELD not in {trial.job(job).state for job in bad}
    trial.wait(240.0, 5.0)

    assert {trial.job(job).state for job in bad} == {JobState.HELD}
    assert {row.job_id for row in trial.held()} == set(running)


def test_jobs_that_can_never_be_launched_are_held_as_others_are_launched_now_and_then(
    trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = [trial.submit("bad") for _ in range(3)]
    breaks_some(attempt_driver, "attempt_to_launch", bad, monkeypatch)
    for _ in range(5):
        trial.wait(60.0, 5.0)
        trial.runs(trial.submit("x"))
    trial.wait(60.0, 5.0)

    assert {trial.job(job).state for job in bad} == {JobState.HELD}


def test_while_launches_are_broken_jobs_that_run_and_end_get_none_of_those_held_that_wait_for_theirs(
    trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = trial.way.backend
    assert isinstance(backend, Obedient)
    running = [trial.submit("x") for _ in range(4)]
    trial.wait(5.0, 1.0)
    with monkeypatch.context() as broken:
        broken.setattr(attempt_driver, "attempt_to_launch", lambda *_: 1 / 0)
        jobs = [trial.submit("x") for _ in range(3)]
        for job in running[:3]:
            trial.wait(240.0, 5.0)
            backend.end(WELL, job)
        assert {trial.job(job).state for job in jobs} == {JobState.STARTING}
    trial.wait(90.0, 1.0)

    assert {trial.job(job).state for job in jobs} == {JobState.RUNNING}
