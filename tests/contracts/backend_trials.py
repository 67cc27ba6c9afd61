"""How each backend of ours is tried on the real thing. A test cluster has nodes a and b, with 4 and 2 GPUs."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from benchmarks.slurm_cluster import SlurmCluster
from longshore.scheduler.backends.local.backend import LocalBackend
from longshore.scheduler.backends.protocol import Backend
from longshore.scheduler.backends.ray.backend import RayBackend
from longshore.scheduler.backends.slurm.backend import SlurmBackend
from tests.scheduler.backends.attempts import NODES, end_all
from tests.scheduler.backends.kubernetes_trials import end_double, make_on_double
from tests.scheduler.backends.ray_cluster import RayCluster, end_attempts


@dataclass(frozen=True, slots=True)
class Trial:
    """How to try a backend of ours."""

    make: Callable[[Path], Backend]  # a fresh object on the same folder knows the attempts of an earlier one
    end: Callable[[Path], None]
    checks_programs: bool = True  # whether it refuses a program that does not exist


def local_trial(request: pytest.FixtureRequest) -> Trial:
    del request
    return Trial(lambda folder: LocalBackend(folder, NODES), end_all)


def kubernetes_trial(request: pytest.FixtureRequest) -> Trial:
    del request
    return Trial(make_on_double, end_double, checks_programs=False)


def slurm_trial(request: pytest.FixtureRequest) -> Trial:
    cluster: SlurmCluster = request.getfixturevalue("slurm_cluster")
    return Trial(lambda folder: SlurmBackend(folder, NODES, conf=cluster.conf), lambda _: cluster.end_jobs())


def ray_trial(request: pytest.FixtureRequest) -> Trial:
    cluster: RayCluster = request.getfixturevalue("ray_cluster")
    # One folder for all tests, as each has a launcher of its own, which takes a while to start.
    make = partial(RayBackend, cluster.folder, NODES, address=cluster.address, token=cluster.token)
    return Trial(lambda _: make(), lambda _: end_attempts(cluster))


TRIALS = {"local": local_trial, "kubernetes": kubernetes_trial, "ray": ray_trial, "slurm": slurm_trial}
