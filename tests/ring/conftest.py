from collections.abc import Iterator
from pathlib import Path

import pytest

from .coordinator_process import Process, started
from .trial import Outcome, run_ring, warm_process


@pytest.fixture(scope="session")
def warm() -> Iterator[Path]:
    """A process that has imported PyTorch; all members of all rings are forked from it."""
    with warm_process() as path:
        yield path


@pytest.fixture(scope="session")
def undisturbed(warm: Path, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """A ring of four in which nothing goes wrong."""
    return run_ring(tmp_path_factory.mktemp("undisturbed"), warm)


@pytest.fixture
def ring(tmp_path: Path) -> Iterator[Process]:
    """A ring of three that runs."""
    with started(tmp_path) as process:
        process.run_ring()
        yield process
