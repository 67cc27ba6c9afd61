from collections.abc import Iterator
from pathlib import Path

import pytest

from longshore.scheduler.backends.local.backend import LocalBackend
from tests.scheduler.backends.attempts import NODES, end_all
from tests.scheduler.backends.kubernetes_trials import Trial


@pytest.fixture
def backend(tmp_path: Path) -> Iterator[LocalBackend]:
    yield LocalBackend(tmp_path, NODES)
    end_all(tmp_path)


@pytest.fixture
def trial(tmp_path: Path) -> Iterator[Trial]:
    """The double of a Kubernetes cluster."""
    trial = Trial(tmp_path)
    yield trial
    trial.end()
