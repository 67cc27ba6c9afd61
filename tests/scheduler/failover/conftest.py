import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from .trial import ROOT, Outcome, run_ring


@pytest.fixture(scope="session")
def warm() -> Iterator[Path]:
    """A process that has imported PyTorch; all members of all rings are forked from it."""
    with tempfile.TemporaryDirectory(prefix="warm-") as folder:
        path = Path(folder) / "warm.sock"
        variables = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
        process = subprocess.Popen(
            [sys.executable, "-m", "longshore.scheduler.failover.warm", str(path)], env=variables
        )
        yield path
        process.kill()
        process.wait()


@pytest.fixture(scope="session")
def undisturbed(warm: Path, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """A ring of four in which nothing goes wrong."""
    return run_ring(tmp_path_factory.mktemp("undisturbed"), warm)
