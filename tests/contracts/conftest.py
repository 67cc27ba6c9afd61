from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from longshore.testing.backends import BackendTrial
from tests.contracts.backend_trials import TRIALS


# A Ray takes half a minute to start, and keeps half a core busy.
@pytest.fixture(params=[pytest.param(it, marks=pytest.mark.full) if it == "ray" else it for it in TRIALS])
def trial(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BackendTrial]:
    trial = TRIALS[request.param](request)
    yield BackendTrial(partial(trial.make, tmp_path), tmp_path, trial.checks_programs)
    trial.end(tmp_path)
