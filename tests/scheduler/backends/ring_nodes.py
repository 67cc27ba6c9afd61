"""Nodes of a real Slurm or Ray that run rings: each may be lost with all that a job has there, and come back."""

import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from benchmarks.slurm_cluster import SlurmCluster
from longshore.cluster.files.processes import environment, living
from longshore.ring.wire import RingReport
from tests.scheduler.backends import ray_cluster as ray
from tests.scheduler.backends.slurm_backends import backend_of
from tests.scheduler.ring_trials import RingTrial


class Nodes(NamedTuple):
    """A trial on the nodes of a cluster, of which each may be lost and come back."""

    trial: RingTrial
    lose_daemon: Callable[[str], object]
    bring_back: Callable[[str], object]

    def lose(self, node: str, job: str) -> None:
        """Lose a node with all of a job that runs there; what other tests run on this machine lives on."""
        self.kill(node, job)
        self.lose_daemon(node)

    def kill(self, node: str, job: str) -> None:
        """Kill all of a job that runs on a node."""
        attempt = self.trial.name(job)
        of_slurm, of_ranks = (b"SLURM_JOB_NAME", b"SLURMD_NODENAME"), (b"LONGSHORE_ATTEMPT", b"LONGSHORE_NODE")
        wanted = (attempt.encode(), node.encode())
        for process in living():
            found = environment(process, *of_slurm, *of_ranks)
            own = [tuple(map(found.get, names)) for names in (of_slurm, of_ranks)]
            if wanted in own or _supervises(process.pid, attempt, node):
                with suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)

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


@contextmanager
def slurm_nodes(folder: Path, cluster: SlurmCluster, nodes: Mapping[str, int]) -> Iterator[Nodes]:
    """Yield the nodes of a Slurm that runs, under a scheduler of their own."""
    trial = RingTrial(folder, nodes, lambda: backend_of(cluster, folder, nodes=nodes), "slurm")
    yield Nodes(trial, cluster.lose_node, cluster.start_node)
    trial.close()
    cluster.heal()


@contextmanager
def ray_nodes(folder: Path, cluster: ray.RayCluster, nodes: Mapping[str, int]) -> Iterator[Nodes]:
    """Yield the nodes of a Ray that runs, under a scheduler of their own."""
    trial = RingTrial(folder, nodes, lambda: ray.backend_of(cluster, nodes=nodes), "ray")
    yield Nodes(trial, cluster.kill_node, cluster.start_node)
    trial.close()
    cluster.heal()
    ray.end_attempts(cluster)
