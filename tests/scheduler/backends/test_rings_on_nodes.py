"""Rings whose pieces run on nodes of Slurm and Ray: a node that is lost with all it runs stops no other."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from benchmarks.slurm_cluster import SlurmCluster
from longshore.cluster.files.processes import environment, living
from longshore.ring.wire import RingReport
from longshore.scheduler.control.seating import ranks_of_ring, survives_without
from longshore.scheduler.model.states import Desired, JobState
from longshore.scheduler.store.rings import MOVED
from tests.scheduler.backends import ray_cluster as ray
from tests.scheduler.backends.slurm_backends import NODES, backend_of
from tests.scheduler.ring_trials import RingTrial
from tests.scheduler.trials import processes_of

pytestmark = pytest.mark.full


class Nodes(NamedTuple):
    """A trial on the nodes of a cluster, of which each may be lost and come back."""

    trial: RingTrial
    lose_daemon: Callable[[str], object]
    bring_back: Callable[[str], object]

    def lose(self, node: str, job: str) -> None:
        """Lose a node with all of a job that runs there; what other tests run on this machine lives on."""
        attempt = self.trial.name(job)
        of_slurm, of_ranks = (b"SLURM_JOB_NAME", b"SLURMD_NODENAME"), (b"LONGSHORE_ATTEMPT", b"LONGSHORE_NODE")
        wanted = (attempt.encode(), node.encode())
        for process in living():
            found = environment(process, *of_slurm, *of_ranks)
            own = [tuple(map(found.get, names)) for names in (of_slurm, of_ranks)]
            if wanted in own or _supervises(process.pid, attempt, node):
                with suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)
        self.lose_daemon(node)

    def report(self, job: str) -> RingReport:
        report = self.trial.report(job)
        assert report is not None
        return report


def _supervises(pid: int, attempt: str, node: str) -> bool:
    """Return whether a process supervises, under Ray, an attempt's piece on a node."""
    with suppress(OSError):
        line = Path(f"/proc/{pid}/cmdline").read_bytes()
        return b"start_piece" in line and f"/{attempt}\0".encode() in line and line.endswith(f"\0{node}\0".encode())
    return False


@pytest.fixture(params=["slurm", "ray"])
def nodes(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Nodes]:
    if request.param == "slurm":
        slurm: SlurmCluster = request.getfixturevalue("slurm_cluster")
        trial = RingTrial(tmp_path, NODES, lambda: backend_of(slurm, tmp_path), "slurm")
        yield Nodes(trial, slurm.lose_node, slurm.start_node)
        trial.close()
        slurm.heal()
    else:
        cluster: ray.RayCluster = request.getfixturevalue("ray_cluster")
        trial = RingTrial(tmp_path, NODES, lambda: ray.backend_of(cluster), "ray")
        yield Nodes(trial, cluster.kill_node, cluster.start_node)
        trial.close()
        cluster.heal()
        ray.end_attempts(cluster)


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
