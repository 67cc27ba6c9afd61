from collections.abc import Iterator

import pytest
from hypothesis import settings

from benchmarks.slurm_cluster import SlurmCluster, why_not

# A first call compiles kernels, and the default deadline then reports a false failure.
settings.register_profile("longshore", deadline=None)
settings.load_profile("longshore")


@pytest.fixture(scope="session")
def slurm_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    """A real Slurm with four nodes of four GPUs each."""
    if why := why_not():
        pytest.skip(why)
    cluster = SlurmCluster(tmp_path_factory.mktemp("slurm"), "abcd")
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.end()
