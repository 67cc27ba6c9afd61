"""A job that leaves memory of a GPU behind, through a scheduler: the GPU goes out of service, and that is reported.

The GPUs are scripted, as `ScriptedReader` says: who holds memory of one stands in a file. All else is real.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from longshore.preflight.context import Context, NodeSetup
from longshore.preflight.readers import GpuProcess
from longshore.preflight.rounds import BackgroundRounds
from longshore.preflight.warm import LocalNode, WarmNodes
from longshore.preflight.warm_worker import serve
from longshore.scheduler.control.node_checks import NodeChecks
from longshore.scheduler.control.state_cache import Parts
from longshore.scheduler.model.states import JobState
from longshore.scheduler.store.nodes import open_quarantines
from tests.preflight.gpus import ScriptedReader, gpu
from tests.scheduler.backends.attempts import end_all
from tests.scheduler.trials import Trial, Way


class Holding(ScriptedReader):
    """GPUs whose memory is held by the processes that a file names."""

    def __init__(self, folder: Path, node: str) -> None:
        super().__init__([gpu(0), gpu(1)])
        self.folder, self.node = folder, node

    def memory_holders(self, gpu: int) -> Sequence[GpuProcess]:
        path = self.folder / f"holds-{self.node}-{gpu}"
        return [GpuProcess(int(it), 2 * 10**9) for it in path.read_text().split()] if path.exists() else []


def serve_scripted(connection: Connection, place: NodeSetup) -> None:
    """Serve a node with such GPUs."""
    serve(connection, Context(place, Holding(place.folder, place.node)))


class Checking(Trial):
    """A scheduler that checks such nodes."""

    def parts(self, way: Way, owner: str) -> Parts:
        nodes = WarmNodes(
            lambda node: NodeSetup(node, self.folder, slots=True), lambda place: LocalNode(place, serve_scripted)
        )
        self.rounds = BackgroundRounds(nodes, lambda: None)
        return replace(super().parts(way, owner), checks=NodeChecks(self.rounds, "auto", slots=True))


@pytest.fixture
def trial(tmp_path: Path) -> Iterator[Checking]:
    made = Checking(tmp_path, {"a": 2, "b": 2})
    yield made
    made.rounds.close()
    made.close()
    end_all(tmp_path)


def test_a_gpu_whose_memory_is_held_after_a_job_goes_out_of_service_and_the_next_job_elsewhere(trial: Checking) -> None:
    holds = trial.folder / "holds-a-1"
    job = trial.submit(f"echo 4711 > {holds}", gpus=2)
    assert trial.ends(job).state is JobState.SUCCEEDED
    assert [(it.node, it.gpus) for it in trial.attempts(job)[0].placement] == [("a", (0, 1))]
    reported = [(it.now, it.cause) for it in trial.events(job) if it.kind == "preflight"]
    wrong = "a gpu 1: post.reset: fail: got process 4711 with 2 GB, wanted no process holds its memory; "
    assert [now for now, _ in reported] == ["passed", "not cleaned"]
    assert reported[1][1] == wrong + "keep the node out of service until it is repaired"
    with trial.store.read() as tx:
        (entry,) = open_quarantines(tx)
    assert (entry.place.node, entry.place.gpu, entry.check) == ("a", 1, "post.reset")
    assert entry.evidence == "gpu 1: got process 4711 with 2 GB, wanted no process holds its memory"
    assert trial.held() == []
    after = trial.submit("true", gpus=2, shape={"nodes": 1, "gpus_per_node": 2})
    assert trial.ends(after).state is JobState.SUCCEEDED
    assert [(it.node, it.gpus) for it in trial.attempts(after)[0].placement] == [("b", (0, 1))]
