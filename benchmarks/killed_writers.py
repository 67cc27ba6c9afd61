"""Eight processes that write one store while they are killed and frozen at random moments.

Each wants the scheduler's lease, and while it has it takes jobs through their states; without it, it submits jobs. What
the store has reported as committed they note outside it, so that at the end it can be checked whether anything of it is
lost, doubled, or was written by a holder that another one had overtaken.
"""

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple, NoReturn

from longshore.cluster.files.errors import LongshoreError
from longshore.scheduler.model.job import JobRow
from longshore.scheduler.model.states import FINAL, JobState
from longshore.scheduler.store.database import FencedError, StaleWriteError, Store, open_store
from longshore.scheduler.store.events import SCHEDULER_LEASE, acquire_lease, database_now_s, events_after, renew_lease
from longshore.scheduler.store.jobs import NewJob, insert_job, list_jobs
from longshore.scheduler.store.transitions import Changes, JobChange, write_changes
from tests.scheduler.store.postgresql_server import NoServerError, Server

from .harness import Row, main, progress

WRITERS = 8
LEASE_S, RENEW_S = 0.6, 0.2
TURN_S, KILLS, FREEZES, FROZEN_S = 0.1, 0.5, 0.2, 1.5  # at each turn one may be killed, or be frozen for so long
FULL_S = 600.0
PAGE = 20  # jobs that are taken up at a time
NEXT = dict(
    zip(
        (JobState.QUEUED, JobState.STARTING, JobState.RUNNING, JobState.STOPPING),
        (JobState.STARTING, JobState.RUNNING, JobState.STOPPING, JobState.SUCCEEDED),
        strict=True,
    )
)


class Seen(NamedTuple):
    """What was done, and the outcome."""

    kills: int
    freezes: int
    takeovers: int
    refused: int  # writes of a holder that had been overtaken
    changes: int  # that were reported as committed
    lost: int  # of them, those that are not in the store
    doubled: int  # versions of a job without exactly one event
    backwards: int  # events of a token that is older than that of an event before


class Writer:
    """One of the processes.

    Args:
        url: Of the store.
        folder: For its notes of what was committed.
        number: Its own.
    """

    def __init__(self, url: str, folder: Path, number: int) -> None:
        self.store: Store = open_store(url)
        self.notes = os.open(folder / f"notes-{os.getpid()}", os.O_CREAT | os.O_APPEND | os.O_WRONLY)
        self.name, self.submitted = f"{os.getpid()}-{os.urandom(4).hex()}", 0
        self.leads, self.number = folder / "leads", number

    def note(self, *words: object) -> None:
        """Write a line, whole or not at all."""
        os.write(self.notes, (" ".join(map(str, words)) + "\n").encode())

    def run(self) -> None:
        """Write until this process is killed."""
        while True:
            fence = self.store.write(
                lambda tx: acquire_lease(tx, SCHEDULER_LEASE, self.name, database_now_s(tx), LEASE_S)
            )
            if fence is None:
                self.submit()
                time.sleep(0.02)
                continue
            self.leads.write_text(str(self.number))
            try:
                self.lead(fence)
            except (FencedError, StaleWriteError):
                self.note("refused")

    def submit(self) -> None:
        """Submit a job."""
        self.submitted += 1
        new = NewJob(f"{self.name}-{self.submitted}", "a", "b", {}, 0, 1, 1.0, 1.0)
        row = self.store.write(lambda tx: insert_job(tx, new, writer="w"))
        self.note("change", row.id, row.version)

    def lead(self, fence: int) -> None:
        """Take jobs through their states for as long as the lease is held."""
        renew_s = time.monotonic() + RENEW_S
        while True:
            with self.store.read() as tx:
                rows = list_jobs(tx, limit=PAGE, states=set(JobState) - FINAL)
            for row in rows:
                self.push(row, fence)
                if time.monotonic() > renew_s:
                    renew_s = time.monotonic() + RENEW_S
                    if not self.store.write(
                        lambda tx: renew_lease(tx, SCHEDULER_LEASE, fence, database_now_s(tx), LEASE_S)
                    ):
                        return
            if not rows:
                self.submit()

    def push(self, row: JobRow, fence: int) -> None:
        """Take a job into its next state."""
        changes = Changes(jobs=[JobChange(row.id, row.state, NEXT[row.state], "c", {})])
        self.store.write(lambda tx: write_changes(tx, fence, changes, at_s=1.0, writer="w"))
        self.note("change", row.id, row.version + 1)


def fork(url: str, folder: Path, number: int) -> int:
    """Start a writer and return its pid. The process that calls it has one thread."""
    pid = os.fork()
    if pid == 0:
        try:
            write_for_ever(url, folder, number)
        finally:  # A copy of the caller must not go on with what the caller does.
            os._exit(1)
    return pid


def write_for_ever(url: str, folder: Path, number: int) -> NoReturn:
    """Write until this process is killed, and open the store again when it does not answer."""
    while True:
        with suppress(LongshoreError):
            Writer(url, folder, number).run()
        time.sleep(0.1)


def endure(url: str, folder: Path, seconds: float, seed: int, *, now_s: Callable[[], float] = time.monotonic) -> Seen:
    """Let writers be killed and frozen for a while, and check what they have left.

    Args:
        url: Of the store, which is made.
        folder: For their notes.
        seconds: For how long.
        seed: Of chance.
        now_s: The present.
    """
    rng = random.Random(seed)
    open_store(url).close()
    pids = [fork(url, folder, number) for number in range(WRITERS)]
    frozen: dict[int, float] = {}
    done: Counter[str] = Counter()
    until_s = now_s() + seconds
    while now_s() < until_s:
        time.sleep(TURN_S)
        number = chosen(folder, rng)
        if rng.random() < KILLS:
            kill(pids[number])
            frozen.pop(pids[number], None)
            pids[number] = fork(url, folder, number)
            done["kill"] += 1
        elif rng.random() < FREEZES and pids[number] not in frozen:
            os.kill(pids[number], signal.SIGSTOP)
            frozen[pids[number]] = now_s() + FROZEN_S
            done["freeze"] += 1
        for pid in [pid for pid, wakes_s in frozen.items() if wakes_s < now_s()]:
            del frozen[pid]
            os.kill(pid, signal.SIGCONT)
    for pid in pids:
        kill(pid)
    return judged(url, folder, done["kill"], done["freeze"])


def chosen(folder: Path, rng: random.Random) -> int:
    """Return whose turn it is: half of the time that of the writer that took the lease last."""
    text = (folder / "leads").read_text() if (folder / "leads").exists() else ""
    return int(text) if text and rng.random() < 0.5 else rng.randrange(WRITERS)


def kill(pid: int) -> None:
    """Kill a child and wait for its end."""
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def judged(url: str, folder: Path, kills: int, freezes: int) -> Seen:
    """Compare the store with the notes of the writers."""
    store = open_store(url)
    with store.read() as tx:
        jobs = {row.id: row.version for row in list_jobs(tx, limit=1 << 40)}
        events = events_after(tx, 0, 1 << 40)
        if tx.dialect.name == "sqlite":
            assert tx.exec_driver_sql("PRAGMA quick_check").scalar() == "ok"
    store.close()
    lines = [line.split() for path in folder.glob("notes-*") for line in path.read_text().splitlines()]
    changes = [(line[1], int(line[2])) for line in lines if line[0] == "change"]
    versions: dict[str, list[int]] = {}
    for event in events:
        versions.setdefault(event.job_id or "", []).append(event.version or 0)
    fences = [event.fence for event in events if event.fence is not None]
    return Seen(
        kills, freezes, len(set(fences)), sum(line[0] == "refused" for line in lines), len(changes),
        sum(jobs.get(job, 0) < version for job, version in changes),
        sum(versions.get(job) != list(range(1, version + 1)) for job, version in jobs.items()),
        sum(later < before for before, later in pairwise(fences)),
    )  # fmt: skip


def rows(name: str, seen: Seen) -> Iterator[Row]:
    """Yield what was seen, with its bars."""
    yield Row(f"{name}: writers killed", seen.kills, "kills", least=500)
    yield Row(f"{name}: writers frozen", seen.freezes, "freezes", least=100)
    yield Row(f"{name}: leases taken over", seen.takeovers, "takeovers")
    yield Row(f"{name}: late writes refused", seen.refused, "writes", least=1)
    yield Row(f"{name}: changes reported as committed", seen.changes, "changes")
    yield Row(f"{name}: of them lost", seen.lost, "changes", most=0)
    yield Row(f"{name}: jobs with a version twice or never", seen.doubled, "jobs", most=0)
    yield Row(f"{name}: older tokens after newer ones", seen.backwards, "events", most=0)


def measure() -> Iterator[Row]:
    """Endure it on SQLite, and on PostgreSQL where it is installed."""
    with TemporaryDirectory() as folder:
        yield from rows("SQLite", endure(f"sqlite:///{folder}/store.db", Path(folder), FULL_S, seed=1))
    try:
        server = Server()
    except NoServerError as error:
        progress(f"not on PostgreSQL: {error}")
        return
    with TemporaryDirectory() as folder:
        yield from rows("PostgreSQL", endure(server.url("public"), Path(folder), FULL_S, seed=2))
    server.remove()


if __name__ == "__main__":
    main(measure)
