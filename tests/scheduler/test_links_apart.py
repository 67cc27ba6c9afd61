"""Links of known rates between nodes in real network namespaces: what probes say of them, and who takes a seat."""

import json
import os
import statistics
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.link_probes import MOST_OFF, RATES, probed
from benchmarks.namespaces import NAMESPACES, why_not
from tests.support import processes
from tests.support.processes import PYTHON_PATH

ROOT = Path(__file__).parents[2]
PLAYS = 4


@pytest.fixture(autouse=True)
def _namespaces() -> None:
    if why := why_not():
        pytest.skip(why)


@pytest.mark.full
def test_a_probe_reports_the_rate_of_a_link_within_five_percent() -> None:
    found = probed(5)
    for rate in RATES:
        assert statistics.median(found[f"{rate} Mb/s"]) == pytest.approx(1.0, abs=MOST_OFF)
    assert len(found["seconds"]) == 5


def played(case: str, folder: Path) -> dict[str, Any]:
    """Return what took the seat of a ring on node a, once a probe came in time of each link; that of node b is slow.

    The scheduler gives probes a second. On a busy machine one may take longer, and its link counts as the file says.
    """
    for number in range(PLAYS):
        came = play(case, folder / str(number))
        late = [it["node"] for it in came["candidates"] if "reckoned" in it["links"]]
        if not late:
            return came
    pytest.fail(f"no probe of {late} came in time in {PLAYS} plays")


def play(case: str, folder: Path) -> dict[str, Any]:
    """Return what took the seat."""
    folder.mkdir()
    environment = {**os.environ, "PYTHONPATH": PYTHON_PATH}
    command = [*NAMESPACES, sys.executable, "-m", "tests.scheduler.links_apart", str(folder), case]
    done = processes.run(command, cwd=ROOT, env=environment, capture_output=True, timeout_s=400, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.full
def test_the_gpu_behind_the_slower_link_does_not_take_the_seat(tmp_path: Path) -> None:
    came = played("slow", tmp_path)
    links = {it["node"]: it for it in came["candidates"]}
    assert (came["node"], came["gpu"]) == ("c", 0)
    assert links["b"]["to_next_bytes_per_s"] < 0.5 * links["c"]["to_next_bytes_per_s"]


@pytest.mark.full
def test_a_gpu_whose_link_is_cut_takes_no_seat_though_its_agent_reports(tmp_path: Path) -> None:
    """Node b is slow, and c, which is not, cannot reach a; nothing is refused."""
    came = played("cut", tmp_path)
    links = {it["node"]: it["links"] for it in came["candidates"]}
    assert (came["node"], came["gpu"]) == ("b", 0)
    assert "is broken: nothing answers at" in links["c"]
