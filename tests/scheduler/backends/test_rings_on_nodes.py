"""Rings whose pieces run on nodes of Slurm and Ray: a node that is lost with all it runs stops no other."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from longshore.scheduler.control.seating import ranks_of_ring, survives_without
from longshore.scheduler.model.states import Desired, JobState
from longshore.scheduler.store.rings import MOVED
from tests.scheduler.backends.ring_nodes import Nodes, ray_nodes, slurm_nodes
from tests.scheduler.backends.slurm_backends import NODES
from tests.scheduler.trials import processes_of

pytestmark = pytest.mark.full


@pytest.fixture(params=["slurm", "ray"])
def nodes(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Nodes]:
    make = slurm_nodes if request.param == "slurm" else ray_nodes
    with make(tmp_path, request.getfixturevalue(f"{request.param}_cluster"), NODES) as found:
        yield found


def test_a_ring_of_three_nodes_comes_to_its_end(nodes: Nodes) -> None:
    trial = nodes.trial
    job = trial.submit_ring(9, steps=30)
    assert trial.ends(job).state is JobState.SUCCEEDED
    assert [attempt.outcome for attempt in trial.attempts(job)] == ["success"]
    assert trial.held() == []


def test_a_ring_goes_on_elsewhere_when_a_node_is_lost_and_gives_its_gpus_back_once_that_is_back(nodes: Nodes) -> None:
    trial = nodes.trial
    job = trial.submit_ring(6)
    trial.runs(job)
    trial.until(lambda: trial.is_whole(job))
    began, lost = nodes.report(job), {place for place in trial.holds(job) if place[0] == "b"}
    assert {node for node, _ in trial.holds(job)} == {"a", "b"}
    assert len(lost) == 2
    nodes.lose("b", job)
    trial.until(lambda: nodes.report(job).generation > began.generation and trial.is_whole(job))
    assert nodes.report(job).step >= began.step
    assert {node for node, _ in trial.used(job)} == {"a", "c"}
    assert lost < trial.holds(job)  # it is not proven that nothing runs there
    cache, row = trial.scheduler.cache, trial.attempts(job)[-1]
    assert cache is not None
    assert ranks_of_ring(cache, row) == (("c", "c"), frozenset({4, 5}))  # what reports nothing any more does not hang
    assert survives_without(cache, row, ["a", "b"])
    assert not survives_without(cache, row, ["a", "b", "c"])
    nodes.bring_back("b")
    trial.until(lambda: not lost & trial.holds(job))
    assert trial.is_whole(job)
    trial.wish(job, Desired.CANCEL)
    assert trial.ends(job).state is JobState.CANCELLED
    assert len(trial.attempts(job)) == 1
    assert trial.held() == []
    assert processes_of(job) == []


def test_a_ring_goes_on_when_the_node_of_its_coordinator_is_lost_and_when_the_next_one_is(nodes: Nodes) -> None:
    trial = nodes.trial
    job = trial.submit_ring(6)
    trial.runs(job)
    trial.until(lambda: trial.is_whole(job))
    began, lost = nodes.report(job), {place for place in trial.holds(job) if place[0] == "a"}
    nodes.lose("a", job)
    trial.until(lambda: nodes.report(job).generation > began.generation and trial.is_whole(job))
    again = nodes.report(job)
    assert again.step >= began.step
    assert {node for node, _ in trial.used(job)} == {"b", "c"}
    nodes.bring_back("a")
    trial.until(lambda: not lost & trial.holds(job))
    nodes.lose("b", job)  # of whose GPUs not all are replaced, as the ring has had many within an hour
    trial.until(lambda: nodes.report(job).generation > again.generation and nodes.report(job).phase == "running")
    assert {node for node, _ in trial.used(job)} <= {"a", "c"}
    moves = [(event.data or {})["node"] for event in trial.events(job) if event.now == MOVED]
    assert moves == ["b", "c"]
    nodes.bring_back("b")
    trial.wish(job, Desired.CANCEL)
    assert trial.ends(job).state is JobState.CANCELLED
    assert len(trial.attempts(job)) == 1
    assert trial.held() == []
    assert processes_of(job) == []
