"""What members of a real ring tell of their steps: who is slow, and those that came while it ran."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from longshore.scheduler.control.attempt_driver import status_by_lease
from longshore.scheduler.model.states import Desired, JobState, Run
from longshore.scheduler.store.nodes import ComputeRecord, compute_records_of
from tests.scheduler.backends.attempts import end_all
from tests.scheduler.ring_trials import RING_PATIENCE_S, RingTrial

LOOK_S = 2.0  # of the scheduler's time between two looks of a test


@pytest.fixture
def trial(tmp_path: Path) -> Iterator[RingTrial]:
    it = RingTrial(tmp_path, {"a": 2, "b": 1, "c": 2})
    yield it
    it.close()
    end_all(tmp_path)


def until(trial: RingTrial, is_so: Callable[[], object]) -> None:
    """Let minutes pass for the scheduler while the ring trains, until something has come true."""
    until_s = time.monotonic() + RING_PATIENCE_S
    while not is_so():
        assert time.monotonic() < until_s, "it did not come true"
        trial.later_s += LOOK_S
        trial.tick()
        time.sleep(0.1)


def told(trial: RingTrial, job: str) -> list[str]:
    return [it.now for it in trial.events(job) if it.kind == "health"]


def records(trial: RingTrial, job: str) -> dict[str, ComputeRecord]:
    with trial.store.read() as tx:
        return {it.kind: it for it in compute_records_of(tx, job)}


@pytest.mark.full
def test_a_member_that_is_ten_times_slower_is_reported_once_and_no_one_is_replaced(trial: RingTrial) -> None:
    slow = {"COMPUTES_0_S": "0.03", "COMPUTES_1_S": "0.03", "COMPUTES_2_S": "0.3"}
    job = trial.submit_ring(3, variables=slow)
    trial.runs(job)
    trial.until(lambda: trial.is_settled(job))
    until(trial, lambda: "straggler" in told(trial, job))
    (event,) = [it for it in trial.events(job) if it.now == "straggler"]
    assert event.data is not None
    assert (event.data["rank"], event.data["node"]) == (2, "b")
    assert float(str(event.data["compute_s"])) > 3.0 * float(str(event.data["others_s"]))
    assert "rank 2 on b computes for" in event.cause
    later_s = trial.later_s + 300.0
    until(trial, lambda: trial.later_s > later_s)
    assert told(trial, job).count("straggler") == 1
    report = trial.report(job)
    assert report is not None
    assert (report.generation, report.gone, report.order) == (1, {}, [0, 1, 2])
    assert (trial.job(job).state, len(trial.attempts(job)), trial.seats_of(job)) == (JobState.RUNNING, 1, [])


@pytest.mark.full
def test_steps_of_a_member_that_came_later_count_as_those_of_the_first(trial: RingTrial) -> None:
    variables = {"COMPUTES_0_S": "0.01", "COMPUTES_1_S": "0.01", "COMPUTES_2_S": "0.1"}
    job = trial.submit_ring(2, variables=variables)
    trial.runs(job)
    trial.until(lambda: trial.is_settled(job))
    trial.lose(job, ("a", 1))
    trial.until(lambda: trial.is_settled(job) and ("a", 1) not in trial.used(job))
    (place,) = trial.used(job) - {("a", 0)}
    steps = trial.scheduler.parts.monitor.steps
    until(trial, lambda: job in steps.figures and steps.figures[job].slowest == place[0])
    until(trial, lambda: records(trial, job).get("of1" if place[0] == "b" else "of2") is not None)
    trial.wish(job, Desired.CANCEL)
    trial.ends(job)


@pytest.mark.full
def test_a_lease_that_has_run_out_counts_where_a_ring_is_and_not_where_it_was(trial: RingTrial) -> None:
    job = trial.submit_ring(2)
    trial.runs(job)
    trial.until(lambda: trial.is_settled(job))
    for place in sorted(trial.used(job)):
        trial.lose(job, place)
        trial.until(lambda: trial.is_settled(job) and place not in trial.used(job))  # noqa: B023  # called at once
    cache = trial.scheduler.cache
    assert cache is not None
    row, health = cache.table.attempts[job], cache.health
    nodes = {node for node, _ in trial.used(job)}
    assert {share.node for share in row.placement} == {"a"}
    assert nodes == {"b", "c"}
    for fenced in ({"a"}, {"b"}, {"a", "c"}):  # it goes on where its other members are
        cache.health = health._replace(fenced=frozenset(fenced))
        assert status_by_lease(cache, row) is None
    cache.health = health._replace(fenced=frozenset(nodes))
    status = status_by_lease(cache, row)
    assert status is not None
    assert (status.run, status.words.split(" was ")[0]) == (Run.LOST, "b, c")
    cache.health = health
