"""Slurm backends on the nodes of the test cluster."""

from collections.abc import Mapping
from pathlib import Path

from benchmarks.slurm_cluster import GPUS, SlurmCluster
from longshore.cluster.model.placement import Placement, Share
from longshore.scheduler.backends.slurm.backend import SlurmBackend
from longshore.scheduler.backends.slurm.commands import SLURM_TIMES, SlurmTimes

NODES = dict.fromkeys("abcd", GPUS)
ON_A: Placement = (Share("a", (2,)),)
IMPATIENT = SlurmTimes(deadline_s=1.0)  # where no answer will come


def backend_of(
    cluster: SlurmCluster, folder: Path, times: SlurmTimes = SLURM_TIMES, nodes: Mapping[str, int] = NODES
) -> SlurmBackend:
    return SlurmBackend(folder, nodes, conf=cluster.conf, times=times)
