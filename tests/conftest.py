from collections.abc import Iterator

import pytest
from hypothesis import settings

from benchmarks import slurm_cluster as slurm
from benchmarks.slurm_cluster import SlurmCluster
from tests.command_line import Command
from tests.scheduler.backends import ray_cluster as ray
from tests.scheduler.backends.ray_cluster import RayCluster

# A first call compiles kernels, and the default deadline then reports a false failure.
settings.register_profile("longshore", deadline=None)
settings.load_profile("longshore")


@pytest.fixture
def longshore(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(monkeypatch, capsys)


@pytest.fixture(scope="session")
def slurm_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    """A real Slurm with four nodes of four GPUs each."""
    if why := slurm.why_not():
        pytest.skip(why)
    cluster = SlurmCluster(tmp_path_factory.mktemp("slurm"), "abcd")
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.end()


@pytest.fixture(scope="session")
def ray_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayCluster]:
    """A real Ray with four nodes of four GPUs each."""
    if why := ray.why_not():
        pytest.skip(why)
    cluster = RayCluster(tmp_path_factory.mktemp("ray"), "abcd")
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.end()
