"""How fast the store changes states: 8 client threads, each change a transaction, fenced and with its event.

A client claims the job that waits longest, then changes it twice more; that makes three transitions a job.
"""

import statistics
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory

from sqlalchemy import Connection, select

from longshore.scheduler.model.states import JobState
from longshore.scheduler.store.database import Store, open_store
from longshore.scheduler.store.events import SCHEDULER_LEASE, acquire_lease
from longshore.scheduler.store.jobs import NewJob, insert_job
from longshore.scheduler.store.schema import job
from longshore.scheduler.store.transitions import Changes, JobChange, write_changes

from .harness import Row, main, progress

CLIENTS = 8
JOBS = {"normal": 4000, "full": 1000}  # in one measurement
ROUNDS = 5
LEAST_PER_S = 3000
MOST_MS = 250
TTL_S = 3600.0
NEXT = select(job.c.id).where(job.c.state == JobState.QUEUED).order_by(job.c.submit_seq).limit(1)
AFTER = ((JobState.STARTING, JobState.RUNNING), (JobState.RUNNING, JobState.STOPPING))


def submitted(store: Store, jobs: int) -> int:
    """Put jobs into an empty store and return the fence of its scheduler."""

    def fill(tx: Connection) -> int:
        for number in range(jobs):
            new = NewJob(f"{number:026}", "measured", "somebody", {"gpus": 1}, 0, 1, 3600.0, float(number))
            insert_job(tx, new, writer="benchmark")
        return acquire_lease(tx, SCHEDULER_LEASE, "benchmark", 0.0, TTL_S) or 0

    return store.write(fill)


def client(store: Store, fence: int) -> list[float]:
    """Take jobs through three transitions each until none waits, and return how long each transition took."""
    taken_s: list[float] = []
    while True:
        begin_s = time.perf_counter()
        claimed = store.write(partial(claim, fence=fence))
        if claimed is None:
            return taken_s
        taken_s.append(time.perf_counter() - begin_s)
        for was, now in AFTER:
            begin_s = time.perf_counter()
            store.write(partial(change, fence=fence, claimed=claimed, was=was, now=now))
            taken_s.append(time.perf_counter() - begin_s)


def claim(tx: Connection, fence: int) -> str | None:
    """Claim the job that waits longest; None if none waits."""
    claimed: str | None = tx.execute(NEXT).scalar_one_or_none()
    if claimed is not None:
        change(tx, fence, claimed, JobState.QUEUED, JobState.STARTING)
    return claimed


def change(tx: Connection, fence: int, claimed: str, was: JobState, now: JobState) -> None:
    """Change the state of a claimed job."""
    changes = Changes(jobs=[JobChange(claimed, was, now, "measured", {})])
    write_changes(tx, fence, changes, at_s=time.time(), writer="benchmark")


def run(folder: Path, durability: str, jobs: int) -> tuple[float, float]:
    """Return transitions a second, and the longest one in milliseconds, in a store of its own."""
    store = open_store(f"sqlite:///{folder / durability}.db?durability={durability}")
    fence = submitted(store, jobs)
    begin_s = time.perf_counter()
    with ThreadPoolExecutor(CLIENTS) as pool:
        taken_s = list(chain.from_iterable(pool.map(lambda _: client(store, fence), range(CLIENTS))))
    whole_s = time.perf_counter() - begin_s
    store.close()
    return len(taken_s) / whole_s, max(taken_s) * 1000.0


def measure() -> Iterator[Row]:
    """Yield transitions a second and the longest one, for both ways to make them durable."""
    runs: dict[str, list[tuple[float, float]]] = {"normal": [], "full": []}
    for turn in range(ROUNDS):
        progress(f"round {turn + 1} of {ROUNDS}")
        for durability, measured in runs.items():
            with TemporaryDirectory() as folder:
                measured.append(run(Path(folder), durability, JOBS[durability]))
    for durability, measured in runs.items():
        per_s, most_ms = zip(*measured, strict=True)
        least, most = (LEAST_PER_S, MOST_MS) if durability == "normal" else (None, None)
        yield Row(f"SQLite, {durability}", statistics.median(per_s), "transitions/s", least=least)
        yield Row(f"SQLite, {durability}: the longest transition", max(most_ms), "ms", most=most)


if __name__ == "__main__":
    main(measure)
