"""How fast a store with a long history answers: 100,000 jobs, all of one owner, with their events and decisions."""

import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from sqlalchemy import Connection, insert

from longshore.cluster.model.placement import Share
from longshore.scheduler.model.states import FINAL, AttemptState, Contact, Desired, JobState
from longshore.scheduler.service.retention import Horizon, prune
from longshore.scheduler.store import schema
from longshore.scheduler.store.attempts import count_unknown, draining_attempts, unclosed_attempts
from longshore.scheduler.store.database import Store, open_store
from longshore.scheduler.store.events import events_after, last_events, last_seq, owners_events_after
from longshore.scheduler.store.jobs import (
    count_jobs,
    count_queued,
    list_jobs,
    longest_wait_since,
    open_jobs,
    sum_of_estimates,
    waiting_jobs,
)

from .harness import Row, main, progress

JOBS, WAITING, PART = 100_000, 300, 5000
EVENTS = 8  # of each job
ROUNDS = 5
MOST_MS, MOST_START_MS, MOST_COMMIT_MS = 50, 500, 250
OWNER = "ada"
AT_FIRST = dict.fromkeys(
    ("not_before_s", "stops_infra", "stops_resource", "stops_user", "stops_again", "stops_ambiguous", "no_progress",
     "saved_s", "wait_s", "priority"), 0,
)  # fmt: skip
SPEC = {"command": ["python", "train.py"], "environment": {"PATH": "/usr/bin:/bin" * 20}, "gpus": 1}


def fill(tx: Connection, first: int, last: int) -> None:
    """Write jobs that have ended, but for the last ones, as the scheduler would."""
    ended = [number < JOBS - WAITING for number in range(first, last)]
    jobs = range(first, last)
    tx.execute(insert(schema.job), [_job(number, over) for number, over in zip(jobs, ended, strict=True)])
    over = [number for number, is_over in zip(jobs, ended, strict=True) if is_over]
    if over:
        tx.execute(insert(schema.attempt), [_attempt(number) for number in over])
        tx.execute(insert(schema.decision), [_decision(number) for number in over])
    tx.execute(insert(schema.event), [_event(number, turn) for number in jobs for turn in range(EVENTS)])


def _job(number: int, is_over: bool) -> dict[str, object]:  # noqa: FBT001
    return {
        **AT_FIRST, "id": f"{number:026}", "name": "measured", "owner": OWNER, "spec": SPEC, "desired": Desired.RUN,
        "state": JobState.SUCCEEDED if is_over else JobState.QUEUED, "gpus": 1, "estimate_s": 60.0, "guess_s": 60.0,
        "submitted_s": float(number), "entered_s": float(number), "attempt": int(is_over), "version": 5,
        "after_stop": None, "cause_class": "", "cause": "", "ended_s": number + 60.0 if is_over else None,
    }  # fmt: skip


def _attempt(number: int) -> dict[str, object]:
    return {
        "job_id": f"{number:026}", "number": 1, "state": AttemptState.CLOSED, "version": 6, "backend": "local",
        "placement": (Share("n", (0,)),), "slowdown": 1.0, "overhead_s": 0.0, "opened_s": float(number),
        "contact": Contact.OK, "contact_since_s": 0.0, "outcome": "success", "cause": "", "ends": (),
        "cleanup_error": "",
    }  # fmt: skip


def _decision(number: int) -> dict[str, object]:
    return {
        "job_id": f"{number:026}", "number": 1, "at_s": float(number), "policy": "patient", "policy_version": "1",
        "mode": "active", "explanation": {}, "past": bytes(300), "took_s": 0.001, "outcome": "success",
    }  # fmt: skip


def _event(number: int, turn: int) -> dict[str, object]:
    return {
        "job_id": f"{number:026}", "version": turn + 1, "kind": "job", "was": "running", "now": "stopping",
        "writer": "scheduler", "cause": "measured", "at_s": float(number + turn),
    }  # fmt: skip


def reads() -> dict[str, Callable[[Connection], object]]:
    """Return what pages, commands, metrics and followers read again and again, by name."""
    running = [JobState.RUNNING]
    return {
        "jobs of an owner": lambda tx: list_jobs(tx, limit=100, owner=OWNER),
        "open jobs of an owner": lambda tx: list_jobs(tx, limit=100, owner=OWNER, states=sorted(set(JobState) - FINAL)),
        "running jobs of an owner": lambda tx: list_jobs(tx, limit=100, owner=OWNER, states=running),
        "ended jobs": lambda tx: list_jobs(tx, limit=100, states=sorted(FINAL)),
        "jobs by state": count_jobs,
        "the longest wait": longest_wait_since,
        "attempts that cannot be reached": count_unknown,
        "attempts on their way out": draining_attempts,
        "the last events": lambda tx: last_events(tx, 50),
        "events of a job": lambda tx: events_after(tx, 0, 200, f"{JOBS // 2:026}"),
        "a follower with nothing new": lambda tx: owners_events_after(tx, last_seq(tx) - 5, 500, "bob", 20_000),
        "a follower of another": lambda tx: owners_events_after(tx, 0, 500, "bob", 20_000),
        "the waiting jobs, in whose order a place is": lambda tx: waiting_jobs(tx, 1e12),
        "queued jobs of an owner": lambda tx: count_queued(tx, OWNER),
    }


def took_ms(store: Store, read: Callable[[Connection], object]) -> float:
    """Return how long a read takes, the middle one of a few."""
    taken_s = []
    for _ in range(ROUNDS):
        with store.read() as tx:
            begin_s = time.perf_counter()
            read(tx)
            taken_s.append(time.perf_counter() - begin_s)
    return 1e3 * statistics.median(taken_s)


def at_start(tx: Connection) -> None:
    """Read what a scheduler begins with."""
    open_jobs(tx)
    unclosed_attempts(tx)
    sum_of_estimates(tx)


def measure() -> Iterator[Row]:
    """Yield the slowest read, what a scheduler begins with, and the longest transaction while half is pruned."""
    with TemporaryDirectory() as folder:
        store = open_store(f"sqlite:///{Path(folder) / 'store.db'}")
        progress(f"writing {JOBS} jobs")
        for first in range(0, JOBS, PART):
            store.write(partial(fill, first=first, last=first + PART))
        taken_ms = {name: took_ms(store, read) for name, read in reads().items()}
        slowest = max(taken_ms, key=lambda name: taken_ms[name])
        yield Row(f"the slowest of {len(taken_ms)} reads of 100,000 jobs", taken_ms[slowest], "ms", most=MOST_MS)
        progress(f"that was {slowest}")
        yield Row("what a scheduler begins with", took_ms(store, at_start), "ms", most=MOST_START_MS)
        commits_s: list[float] = []
        store.watch_commits(commits_s.append)
        progress("pruning 10,000 jobs")
        prune(store, Path(folder), Horizon(10_060.0, 20_000.0, 20_000.0))
        yield Row("the longest transaction of a prune", 1e3 * max(commits_s), "ms", most=MOST_COMMIT_MS)
        store.close()


if __name__ == "__main__":
    main(measure)
