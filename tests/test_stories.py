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

CHECKPOINT = HETERO64.parent.parent / "checkpoints" / "hetero64-wait.zip"
# The aim is 40, 50, 30, 15, 60, 70, 15 and 35. A story that becomes shorter lowers its number here.
MAX_FILES = {
    "a row of a trace": 39, "a decision": 55, "a submission": 13,
    "training": 62,  # ten of them read the trace and the cluster
    "a live job, scheduler": 70, "a live job": 78,  # two less, unless something takes long
    "a member with a spare": 21, "a member with a GPU of the scheduler": 21,
}  # fmt: skip
HEADER = "job,submit_s,gpus,work_s\n"
TRACE = HEADER + "a,0,2,100\nb,10,1,50\n"
# As few jobs as can be trained on, on as few GPUs as let a policy choose: kernels run as plain Python.
TRAINED_TRACE = HEADER + "".join(f"{job},{100 * job},{1 + job % 2},{50 + 10 * (job % 5)}\n" for job in range(192))
TRAINED_CLUSTER = """
name: two
node_types:
  plain: {gpus: 2, peak_flops: 1e14, memory_bytes: 3e10, intra_bytes_per_s: 1e11, nic_bytes_per_s: 1e10,
          host_bytes_per_s: 1e10}
racks: [{uplink_bytes_per_s: 1e10, nodes: [{type: plain, count: 2}]}]
"""


@pytest.fixture(scope="module")
def tracked(tmp_path_factory: pytest.TempPathFactory) -> Tracked:
    return Tracked(tmp_path_factory.mktemp("tracked"))


@contextmanager
def scheduler(tracked: Tracked, folder: Path) -> Iterator[Served]:
    """A scheduler of the copy with two nodes of two slots, which decides by a rule; its start is no part of a story."""
    (folder / "cluster.yaml").write_text(CLUSTER)
    served = Served(folder, "--cluster", "cluster.yaml", "--policy", "pack")
    served.environment |= tracked.environment()
    served.start()
    try:
        yield served
    finally:
        served.end()


def entered_by(tracked: Tracked, folder: Path, *arguments: object) -> set[str]:
    """Return the files of the product that a command enters."""
    line = [sys.executable, "-m", "longshore", *map(str, arguments)]
    with tracked.story() as entries:
        environment = {**os.environ, **tracked.environment()}
        processes.run(line, check=True, cwd=folder, env=environment, capture_output=True, timeout_s=380)
    return files(entries)


def files(entries: list[Entry]) -> set[str]:
    """Return the files that have been entered."""
    return {entry.file for entry in entries}


def apart_from_commands(found: set[str]) -> set[str]:
    """Return the files of a story apart from those that parse options and print."""
    return {file for file in found if not file.startswith(("src/", "scheduler/", "eval/"))}


def assert_within(found: set[str], story: str) -> None:
    """Assert that a story enters no more files than it may."""
    assert len(found) <= MAX_FILES[story], f"{len(found)} files: {', '.join(sorted(found))}"


def test_from_a_row_of_a_trace_to_its_gpus(tracked: Tracked, tmp_path: Path) -> None:
    (tmp_path / "jobs.csv").write_text(TRACE)
    found = entered_by(tracked, tmp_path, "simulate", "--cluster", SMALL, "--policy", "pack", "--trace", "jobs.csv")
    assert "cluster/simulator/engine.py" in found
    assert_within(apart_from_commands(found), "a row of a trace")


@pytest.mark.full
def test_a_decision(tracked: Tracked, tmp_path: Path) -> None:
    (tmp_path / "jobs.csv").write_text(TRACE)
    options = ["--cluster", HETERO64, "--policy", CHECKPOINT, "--waiting", "--trace", "jobs.csv"]
    found = entered_by(tracked, tmp_path, "simulate", *options)
    assert "cluster/candidates/candidates.py" in found
    assert_within(apart_from_commands(found), "a decision")


@pytest.mark.full
@pytest.mark.timeout(400)  # kernels run as plain Python
def test_training_by_ppo(tracked: Tracked, tmp_path: Path) -> None:
    (tmp_path / "jobs.csv").write_text(TRAINED_TRACE)
    (tmp_path / "cluster.yaml").write_text(TRAINED_CLUSTER)
    options = ["--trace", "jobs.csv", "--cluster", "cluster.yaml", "--algo", "ppo", "--steps", 10, "--environments", 1]
    found = entered_by(tracked, tmp_path, "train", *options)
    assert "training/ppo.py" in found
    assert_within(apart_from_commands(found), "training")


@pytest.mark.full
def test_a_submission(tracked: Tracked, tmp_path: Path) -> None:
    with scheduler(tracked, tmp_path) as served, tracked.story() as entries:
        served.add("true", gpus=1)
    found = {entry.file for entry in entries if entry.thread not in ("scheduler", "keeping")}
    assert "scheduler/api/submitting.py" in found
    assert_within(found, "a submission")


@pytest.mark.full
def test_a_live_job(tracked: Tracked, tmp_path: Path) -> None:
    with scheduler(tracked, tmp_path) as served:
        assert served.process is not None
        own = served.process.pid
        with tracked.story() as entries:
            job = served.add("true", gpus=1)
            until(lambda: served.state(job) == "succeeded")
    assert "scheduler/control/reconciler.py" in files(entries)
    assert_within({entry.file for entry in entries if entry.process == own}, "a live job, scheduler")
    assert_within(files(entries), "a live job")


@pytest.mark.full
@pytest.mark.parametrize(
    ("spares", "story"), [(1, "a member with a spare"), (0, "a member with a GPU of the scheduler")]
)
def test_a_member_that_is_killed(tracked: Tracked, tmp_path: Path, spares: int, story: str) -> None:
    with scheduler(tracked, tmp_path) as served:
        assert served.process is not None
        own = served.process.pid
        job = ring_job(served, 10**6, gpus=2, spares=spares)
        step = running(served, job, 10)["step"]
        with tracked.story() as entries:
            os.kill(int((tmp_path / "pid-1").read_text()), signal.SIGKILL)
            until(lambda: len(running(served, job, step + 5)["recoveries"]) > 1)
        served.cancel_all()
    assert "ring/coordinator.py" in files(entries)
    assert_within({entry.file for entry in entries if entry.process != own}, story)
