"""A process that writes is killed at any moment; what it leaves has to be whole."""

import json
import signal
import sys
from pathlib import Path

import pytest

from longshore.scheduler.store.database import open_store
from longshore.scheduler.store.jobs import list_jobs
from tests.support import processes

from .store_rows import all_events, assert_each_change_has_one_event

pytestmark = pytest.mark.full

ROOT = Path(__file__).parents[3]
WRITER = """
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from longshore.scheduler.model.states import JobState as S
from longshore.scheduler.store.transitions import Changes, JobChange, write_changes
from longshore.scheduler.store.jobs import NewJob, insert_job
from longshore.scheduler.store.events import acquire_lease
from longshore.scheduler.store.database import open_store

store = open_store(sys.argv[1])
fence = store.write(lambda tx: acquire_lease(tx, "scheduler", "writer", 0.0, 1.0))
way = (S.QUEUED, S.STARTING, S.RUNNING, S.STOPPING, S.SUCCEEDED)

def write(client):
    for number in range(100_000):
        name = f"{client}-{number}"
        store.write(lambda tx: insert_job(tx, NewJob(name, "a", "b", {}, 0, 1, 1.0, 1.0), writer="w"))
        for version, (was, now) in enumerate(zip(way, way[1:]), 1):
            changes = Changes(jobs=[JobChange(name, was, now, "c", {})])
            store.write(lambda tx: write_changes(tx, fence, changes, at_s=1.0, writer="w"))
            os.write(1, f"{name} {version + 1}\\n".encode())  # a line at once, whatever the other threads write

with ThreadPoolExecutor(4) as pool:
    list(pool.map(write, range(4)))
"""
LINES = 300  # reported as committed before the kill


def test_a_killed_writer_leaves_every_change_whole_and_loses_none_that_it_reported(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'store.db'}"
    with processes.start([sys.executable, "-c", WRITER, url], stdout=processes.PIPE, text=True) as process:
        assert process.stdout is not None
        reported = [process.stdout.readline() for _ in range(LINES)]
        process.send_signal(signal.SIGKILL)
        reported += process.stdout.readlines()
    store = open_store(url)
    with store.read() as tx:
        assert tx.exec_driver_sql("PRAGMA quick_check").scalar() == "ok"
        jobs = {job.id: job for job in list_jobs(tx, limit=1_000_000)}
    events = all_events(store)
    store.close()
    for job in jobs.values():
        assert_each_change_has_one_event(job, [event for event in events if event.job_id == job.id])
    whole = [line.split() for line in reported if line.endswith("\n")]
    assert all(jobs[name].version >= int(version) for name, version in whole)
    assert len(whole) >= LINES


ENDURE = """
import json
import sys
from pathlib import Path
from benchmarks.killed_writers import endure

seen = endure(sys.argv[1], Path(sys.argv[2]), seconds=6.0, seed=3)
print(json.dumps(seen._asdict()))
"""


def test_writers_that_are_killed_and_frozen_lose_and_double_nothing_and_no_old_one_writes_after_a_newer(
    url: str, tmp_path: Path
) -> None:
    """In a process of its own, which forks: `make bench-killed_writers` does the same for ten minutes."""
    line = [sys.executable, "-c", ENDURE, url, str(tmp_path)]
    done = processes.run(line, cwd=ROOT, capture_output=True, check=True)
    seen = json.loads(done.stdout)
    assert (seen["lost"], seen["doubled"], seen["backwards"]) == (0, 0, 0)
    assert seen["kills"] > 5
    assert seen["freezes"] > 0
    assert seen["takeovers"] > 0
    assert seen["changes"] > 20
