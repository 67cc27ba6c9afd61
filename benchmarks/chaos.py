"""Short jobs on the local back end while the scheduler and the jobs' processes are killed at random moments.

Each job checks from inside whether it is alone on its GPUs: it holds a lock on a file for each, and leaves a mark if
another job holds it. What is counted at the end are these marks, what the jobs did, the log of events, and processes.
"""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import httpx

from longshore.cluster.files.errors import LongshoreError
from longshore.cluster.files.processes import environment, living
from longshore.scheduler.client import Client
from longshore.scheduler.model.states import FINAL, JobState
from longshore.scheduler.store.database import open_store
from longshore.scheduler.store.events import events_after
from longshore.scheduler.store.jobs import CHANGE, list_jobs
from tests.scheduler.store.postgresql_server import NoServerError, Server

from .harness import Row, main, progress
from .poison_jobs import SHARE, poison_of, put
from .served import SERVE

JOB = """\
import fcntl, os, pathlib, sys, time
home = pathlib.Path(os.environ["CHAOS"])
gpu = os.environ["CUDA_VISIBLE_DEVICES"].split(",")[int(os.environ["LOCAL_RANK"])]
name = "-".join((os.environ["LONGSHORE_NODE"], gpu))
rank, attempt = os.environ["RANK"], os.environ["LONGSHORE_ATTEMPT"]
lock = os.open(home / "gpus" / name, os.O_CREAT | os.O_RDWR)
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError:
    (home / "shared" / f"{name}-{attempt}").touch()
if rank == "0":  # it has come further, so that being killed again and again does not hold it
    pathlib.Path(os.environ["LONGSHORE_PROGRESS"]).write_text('{"step": 1}')
time.sleep(float(sys.argv[1]))
(home / "done" / f"{attempt}-{rank}").touch()
sys.exit(int(sys.argv[2]))
"""
FAILS = 0.1  # of the jobs end with exit code 3
LONGEST_S = 8.0
PATIENCE_S, RANK_S = 900.0, 30.0
MARK, ATTEMPT = b"CHAOS", b"LONGSHORE_ATTEMPT"


class Chaos(NamedTuple):
    """What happens to a scheduler."""

    jobs: int
    scheduler_kills: int
    job_kills: int
    store_restarts: int


FULL = Chaos(jobs=500, scheduler_kills=100, job_kills=50, store_restarts=10)


class Seen(NamedTuple):
    """What was seen of it."""

    wrong: int  # jobs that did not end as they had to
    twice: int  # jobs that ended more than once, by the events or by what they did themselves
    shared: int  # GPUs on which two jobs met
    orphans: int  # processes left
    scheduler_kills: int
    job_kills: int
    store_restarts: int
    took_s: float


class Served:
    """A scheduler on a port of the loopback interface, which is killed and started again."""

    def __init__(self, home: Path, url: str | None) -> None:
        self.home, self.port = home, 18000 + os.getpid() % 2000
        self.line = [sys.executable, "-m", "longshore", *SERVE, "--folder", str(home / "state")]
        self.line += ["--port", str(self.port), *(["--store", url] if url else [])]
        self.process: subprocess.Popen[bytes] | None = None
        self.client = Client(f"http://127.0.0.1:{self.port}")

    def start(self) -> None:
        """Start it; it serves a little later."""
        with (self.home / "serve.log").open("ab") as log:
            self.process = subprocess.Popen(self.line, stdout=log, stderr=log, cwd=self.home)

    def kill(self) -> None:
        """Kill it as a loss of power would."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def call(self, what: Callable[[Client], object]) -> object:
        """Call the API until it answers."""
        give_up = time.monotonic() + PATIENCE_S
        while True:
            try:
                return what(self.client)
            except (LongshoreError, httpx.HTTPError):
                if time.monotonic() > give_up:
                    raise
                time.sleep(0.05)


def endure(chaos: Chaos, home: Path, server: Server | None, seed: int) -> Seen:
    """Submit all jobs, let everything be killed at random moments, and count what came of it."""
    began, rng = time.monotonic(), random.Random(seed)
    for name in ("gpus", "shared", "done"):
        (home / name).mkdir()
    (home / "job.py").write_text(JOB, encoding="utf-8")
    url = None if server is None else server.url("public")
    served = Served(home, url)
    served.start()
    store = url or f"sqlite:///{home / 'state' / 'longshore.db'}"
    wanted = submit_all(chaos, served, store, home, rng)
    victims: set[str] = set()
    killed = kill_at_random(chaos, served, server, store, rng, victims)
    wait_for_all(store)
    time.sleep(2.0)  # what was left would still be there; and the last attempts are closed
    orphans = sum(MARK in environment(process, MARK) for process in living())
    served.kill()
    return Seen(*judged(store, wanted, home, victims), orphans, *killed, time.monotonic() - began)


def submit_all(chaos: Chaos, served: Served, url: str, home: Path, rng: random.Random) -> dict[str, JobState]:
    """Submit all jobs at once, poison among them; return how each has to end."""
    wanted, poisons = dict[str, JobState](), 0
    for number in range(chaos.jobs):
        code = 3 if rng.random() < FAILS else 0
        spec = {
            "name": f"chaos-{number}", "gpus": rng.choice([1, 1, 1, 2, 3, 4]), "estimate_s": LONGEST_S,
            "command": [sys.executable, "-S", str(home / "job.py"), str(rng.uniform(0.1, LONGEST_S)), str(code)],
            "environment": {"CHAOS": str(home)}, "grace_s": 1.0,
            "retry": {"ambiguous": 1000, "infra": 1000, "no_progress": 1000},  # some are killed again and again
        }  # fmt: skip
        ends = JobState.FAILED if code else JobState.SUCCEEDED
        if number % round(1.0 / SHARE) == 0:
            poison, poisons = poison_of(poisons), poisons + 1
            ends = ends if poison.ends is JobState.SUCCEEDED else poison.ends
            spec |= {**poison.spec, "name": f"poison-{number}"}
            if poison.row is not None:
                wanted[written(url, spec, poison.row)] = ends
                continue
        # By a key: a request that was answered too late, and is sent again, must not become a second job.
        key = f"chaos-{number}"
        found = served.call(lambda client, spec=spec, key=key: client.submit(spec, key)["id"])  # type: ignore[misc]
        wanted[str(found)] = ends
    progress(f"{chaos.jobs} jobs submitted, {poisons} of them poison")
    return wanted


def written(url: str, spec: Mapping[str, object], row: Mapping[str, object]) -> str:
    """Write a job into the store behind the scheduler's back, and return its id."""
    store = open_store(url)
    try:
        return put(store, spec, row)
    finally:
        store.close()


def kill_at_random(
    chaos: Chaos, served: Served, server: Server | None, store: str, rng: random.Random, victims: set[str]
) -> tuple[int, int, int]:
    """Kill in random order while jobs are left, note whose processes; return how often what was killed or restarted."""
    todo = ["scheduler"] * chaos.scheduler_kills + ["job"] * chaos.job_kills
    todo += ["store"] * chaos.store_restarts
    rng.shuffle(todo)
    done: Counter[str] = Counter()
    for number, what in enumerate(todo):
        if number % 20 == 0:
            progress(f"{number} of {len(todo)} done, {open_jobs(store)} jobs left")
        if what == "scheduler":
            # From its first moments on to the midst of its work.
            time.sleep(rng.choice([rng.uniform(0.0, 2.0), rng.uniform(1.5, 5.0)]))
            served.kill()
            served.start()
            done[what] += 1
        elif what == "store" and server is not None:
            server.stop("immediate")
            time.sleep(rng.uniform(0.0, 1.0))
            server.start()
            done[what] += 1
        else:
            done[what] += kill_a_rank(rng, victims)
    return done["scheduler"], done["job"], done["store"]


def kill_a_rank(rng: random.Random, victims: set[str]) -> int:
    """Kill a rank of a job, and note its attempt; return 1, or 0 if there is none for long."""
    time.sleep(rng.uniform(0.0, 0.5))
    give_up = time.monotonic() + RANK_S
    while not (found := [process for process in living() if MARK in environment(process, MARK)]):
        if time.monotonic() > give_up:
            return 0
        time.sleep(0.05)
    chosen = rng.choice(found)
    victims.add(environment(chosen, ATTEMPT).get(ATTEMPT, b"").decode())
    with contextlib.suppress(ProcessLookupError):
        os.kill(chosen.pid, signal.SIGKILL)
    return 1


def open_jobs(url: str) -> int:
    """Return how many jobs have not ended and are not held for what they are, by the store."""
    store = open_store(url)
    try:
        with store.read() as tx:
            return len(list_jobs(tx, limit=1 << 30, states=set(JobState) - FINAL - {JobState.HELD}))
    finally:
        store.close()


def wait_for_all(url: str) -> None:
    """Wait until all jobs have ended."""
    give_up = time.monotonic() + PATIENCE_S
    while open_jobs(url) and time.monotonic() < give_up:
        time.sleep(0.5)


def judged(url: str, wanted: dict[str, JobState], home: Path, victims: set[str]) -> tuple[int, int, int]:
    """Return how many jobs ended wrongly and how many twice, and on how many GPUs two met.

    An attempt that was killed between its last mark and its end is rightly tried again: there is no record of its end.
    """
    store = open_store(url)
    with store.read() as tx:
        jobs = {row.id: row for row in list_jobs(tx, limit=1 << 30)}
        events = events_after(tx, 0, 1 << 30)
    store.close()
    amiss = [job for job in wanted.keys() | jobs.keys() if job not in jobs or jobs[job].state is not wanted.get(job)]
    for job in amiss:
        progress(f"{job} was to end as {wanted.get(job, 'nothing: it was not submitted')}")
        for it in events:
            if it.job_id == job:
                progress(f"  {it.at_s:.3f} {it.kind} {it.number} {it.was} {it.now} {it.cause} {it.data or ''}")
    ends = Counter(it.job_id for it in events if it.kind == CHANGE and it.now in FINAL)
    complete: dict[str, set[str]] = {}
    done = Counter(path.name.rpartition("-")[0] for path in (home / "done").iterdir())
    for attempt, ranks in done.items():
        job = attempt.split("-")[1]  # ls-JOB-NUMBER
        if ranks == jobs[job].gpus and jobs[job].state is JobState.SUCCEEDED and attempt not in victims:
            complete.setdefault(job, set()).add(attempt)
    again = {job: sorted(attempts) for job, attempts in complete.items() if len(attempts) > 1}
    for job, attempts in again.items():
        progress(f"{job} was done by {attempts}")
    twice = sum(count > 1 for count in ends.values()) + len(again)
    return len(amiss), twice, len(list((home / "shared").iterdir()))


def rows(name: str, chaos: Chaos, seen: Seen) -> Iterator[Row]:
    """Yield what was seen, with its bars."""
    progress(f"{name}: {json.dumps(seen._asdict())}")
    yield Row(f"{name}: kills of the scheduler", seen.scheduler_kills, "kills", least=chaos.scheduler_kills)
    yield Row(f"{name}: kills of jobs' processes", seen.job_kills, "kills", least=chaos.job_kills)
    yield Row(f"{name}: restarts of the store", seen.store_restarts, "restarts", least=chaos.store_restarts)
    yield Row(f"{name}: jobs that ended otherwise than they had to", seen.wrong, "jobs", most=0)
    yield Row(f"{name}: jobs that ended twice", seen.twice, "jobs", most=0)
    yield Row(f"{name}: GPUs on which two jobs met", seen.shared, "GPUs", most=0)
    yield Row(f"{name}: processes left", seen.orphans, "processes", most=0)


def measure() -> Iterator[Row]:
    """Endure it on SQLite, and on PostgreSQL with restarts."""
    with TemporaryDirectory() as folder:
        alone = FULL._replace(store_restarts=0)  # SQLite is part of the scheduler's process
        yield from rows("SQLite", alone, endure(alone, Path(folder), None, seed=1))
    try:
        server = Server()
    except NoServerError as error:
        progress(f"not on PostgreSQL: {error}")
        return
    with TemporaryDirectory() as folder:
        yield from rows("PostgreSQL", FULL, endure(FULL, Path(folder), server, seed=2))
    server.remove()


if __name__ == "__main__":
    main(measure)
