"""How many files a story enters, from a row of a trace to its GPUs, say: as many as its reader may have to open.

Each story is played by real processes of a copy of the sources, which notes what is entered (tests/support/entered.py).
"""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.checkout import HETERO64, SMALL
from tests.scheduler.served import Served, until
from tests.scheduler.served_rings import CLUSTER, ring_job, running
from tests.support import processes
from tests.support.entered import Entry, Tracked

CHECKPOINT = HETERO64.parent.parent / "checkpoints" / "hetero64.zip"
TRACE = "job,submit_s,gpus,work_s\na,0,2,100\nb,10,1,50\n"


@pytest.fixture(scope="module")
def tracked(tmp_path_factory: pytest.TempPathFactory) -> Tracked:
    return Tracked(tmp_path_factory.mktemp("tracked"))


@contextmanager
def scheduler(tracked: Tracked, folder: Path) -> Iterator[Served]:
    """A scheduler of the copy with two nodes of two slots, which decides by a rule; its start is no part of a story."""
    (folder / "cluster.yaml").write_text(CLUSTER)
    it = Served(folder, "--cluster", "cluster.yaml", "--policy", "pack")
    it.environment |= tracked.environment()
    it.start()
    try:
        yield it
    finally:
        it.end()


def entered_by(tracked: Tracked, folder: Path, *arguments: object) -> set[str]:
    """Return the files of the product that a command enters."""
    line = [sys.executable, "-m", "longshore", *map(str, arguments)]
    tracked.begin()
    processes.run(line, check=True, cwd=folder, env={**os.environ, **tracked.environment()}, capture_output=True)
    return files(tracked.end())


def files(entries: list[Entry]) -> set[str]:
    """Return the files that have been entered."""
    return {it.file for it in entries}


def within(found: set[str], most: int) -> bool:
    """Say whether a story enters no more files than it may; a failure shows them."""
    return len(found) <= most


def test_from_a_row_of_a_trace_to_its_gpus(tracked: Tracked, tmp_path: Path) -> None:
    (tmp_path / "jobs.csv").write_text(TRACE)
    found = entered_by(tracked, tmp_path, "simulate", "--cluster", SMALL, "--policy", "pack", "--trace", "jobs.csv")
    assert "cluster/simulator/engine.py" in found
    assert within({it for it in found if not it.startswith(("src/", "scheduler/", "eval/"))}, 40)


@pytest.mark.full
def test_a_decision(tracked: Tracked, tmp_path: Path) -> None:
    (tmp_path / "jobs.csv").write_text(TRACE)
    options = ["--cluster", HETERO64, "--policy", CHECKPOINT, "--waiting", "--trace", "jobs.csv"]
    found = entered_by(tracked, tmp_path, "simulate", *options)
    assert "cluster/candidates/candidates.py" in found
    assert within({it for it in found if not it.startswith(("src/", "scheduler/", "eval/"))}, 50)


@pytest.mark.full
def test_a_submission(tracked: Tracked, tmp_path: Path) -> None:
    with scheduler(tracked, tmp_path) as served:
        tracked.begin()
        served.add("true", gpus=1)
        found = {it.file for it in tracked.end() if it.thread not in ("scheduler", "keeping")}
    assert "scheduler/api/submitting.py" in found
    assert within(found, 15)


@pytest.mark.full
def test_a_live_job(tracked: Tracked, tmp_path: Path) -> None:
    with scheduler(tracked, tmp_path) as served:
        assert served.process is not None
        tracked.begin()
        job = served.add("true", gpus=1)
        until(lambda: (tmp_path / "state").exists() and served.state(job) == "succeeded")
        entries = tracked.end()
        own = served.process.pid
    assert "scheduler/control/reconciler.py" in files(entries)
    assert within({it.file for it in entries if it.process == own}, 60)
    assert within(files(entries), 70)


@pytest.mark.full
@pytest.mark.parametrize(("spares", "most"), [(1, 15), (0, 35)])
def test_a_member_that_is_killed(tracked: Tracked, tmp_path: Path, spares: int, most: int) -> None:
    with scheduler(tracked, tmp_path) as served:
        assert served.process is not None
        job = ring_job(served, 10**6, gpus=2, spares=spares)
        step = running(served, job, 10)["step"]
        tracked.begin()
        os.kill(int((tmp_path / "pid-1").read_text()), signal.SIGKILL)
        until(lambda: len(running(served, job, step + 5)["recoveries"]) > 1)
        entries = tracked.end()
        own = served.process.pid
        served.cancel_all()
    assert "ring/coordinator.py" in files(entries)
    assert within({it.file for it in entries if it.process != own}, most)
