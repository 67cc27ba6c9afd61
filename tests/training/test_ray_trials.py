"""Trials of `longshore tune` on a real Ray."""

import os
import re
import sys
from pathlib import Path

import pytest

from tests.command_line import Command
from tests.scheduler.backends.ray_cluster import RayCluster
from tests.support import processes
from tests.training.smaller import trace

pytestmark = [pytest.mark.full, pytest.mark.long]

LINE = ("--order", "easy", "--steps", "2000", "--trials", "1", "--logdir", "runs")


def tuned(folder: Path, cluster: RayCluster, address: str) -> processes.CompletedProcess[str]:
    jobs = trace(folder / "jobs.csv", 1, jobs=200)
    line = [sys.executable, "-m", "longshore", "tune", "--trace", str(jobs), *LINE, "--ray", address]
    environment = {**os.environ, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(cluster.token)}
    return processes.run(line, cwd=folder, env=environment, capture_output=True, check=False)


def address_of(cluster: RayCluster) -> str:
    """Return where the head of a Ray answers its drivers."""
    line = Path(f"/proc/{cluster.raylet(cluster.nodes[0])}/cmdline").read_bytes().decode()
    found = re.search(r"--gcs-address=([\d.:]+)", line)
    assert found, line
    return found[1]


def test_trials_run_on_ray_and_their_runs_are_kept(ray_cluster: RayCluster, tmp_path: Path) -> None:
    pytest.importorskip("optuna", reason="no optuna here; pip install -e '.[dev]'")
    done = tuned(tmp_path, ray_cluster, address_of(ray_cluster))
    assert done.returncode == 0, done.stderr
    assert "The best is trial" in done.stdout
    runs = sorted(tmp_path.glob("runs/tune-*/trial-*/*/best.zip"))
    assert [path.parent.parent.name for path in runs] == ["trial-000"]


def test_where_no_ray_answers_the_error_is_one_line(tmp_path: Path, longshore: Command) -> None:
    for needed in ("optuna", "ray"):
        pytest.importorskip(needed, reason=f"no {needed} here; pip install -e '.[dev]'")
    jobs = trace(tmp_path / "jobs.csv", 1, jobs=200)
    done = longshore("tune", "--trace", jobs, *LINE, "--logdir", tmp_path, "--ray", "127.0.0.2:9")
    assert done.status == 2
    assert "no Ray answers at 127.0.0.2:9" in done.err.splitlines()[-1]
    assert "Traceback" not in done.err
