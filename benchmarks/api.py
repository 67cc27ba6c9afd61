"""How fast jobs can be submitted to a real scheduler by 50 clients, and whether any is lost when it is killed.

A job that fills the cluster runs first, so that what is measured is the API, the store and a growing queue, and not
the processes of jobs. Each client submits by the clock, not when the last answer comes; a time counts from the moment
at which the request was due.
"""

import http.client
import json
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np

from longshore.scheduler.backends.local.backend import LocalBackend
from longshore.scheduler.client import Client

from .harness import Row, main, progress
from .served import Served

CLIENTS = 50
PER_S = 200.0  # submissions of all clients
STEADY_S, KILLED_S = 20.0, 10.0
WARM = 100  # submissions before anything counts
LEAST_PER_S, MOST_MS = 195.0, 100.0  # the clients themselves are some milliseconds late
SPEC = json.dumps({"name": "measured", "command": ["true"], "gpus": 2})
FILLER: dict[str, object] = {"name": "filler", "command": ["sleep", "3600"], "gpus": 16, "grace_s": 0}
AGAIN_S = 0.05


class Answered(NamedTuple):
    """A submission."""

    job: str
    due_s: float  # of `time.monotonic`
    took_s: float  # from then to the answer
    done_s: float


class Submitter:
    """A client with a connection that it keeps, and that it opens again when it breaks."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30.0)

    def submit(self, due_s: float) -> Answered:
        """Submit a job, as often as it takes to be answered, always with the same key."""
        headers = {"Content-Type": "application/json", "Idempotency-Key": uuid.uuid4().hex}
        while True:
            try:
                self._connection.request("POST", "/v1/jobs", SPEC, headers)
                answer = self._connection.getresponse()
                content = answer.read()
                if answer.status == http.HTTPStatus.CREATED:
                    done_s = time.monotonic()
                    return Answered(json.loads(content)["id"], due_s, done_s - due_s, done_s)
                if answer.status not in (http.HTTPStatus.CONFLICT, http.HTTPStatus.SERVICE_UNAVAILABLE):
                    raise RuntimeError(f"{answer.status}: {content!r}")
            except (OSError, http.client.HTTPException):
                self._connection.close()
            time.sleep(AGAIN_S)


def stream(port: int, seconds: float) -> list[Answered]:
    """Let all clients submit by the clock for so long, and return what they were answered."""
    begin_s, each_s = time.monotonic() + 0.5, CLIENTS / PER_S

    def client(number: int) -> list[Answered]:
        submitter, answered = Submitter(port), []
        for turn in range(int(seconds / each_s)):
            due_s = begin_s + turn * each_s + number / PER_S
            time.sleep(max(0.0, due_s - time.monotonic()))
            answered.append(submitter.submit(due_s))
        return answered

    with ThreadPoolExecutor(CLIENTS) as pool:
        return [answer for answers in pool.map(client, range(CLIENTS)) for answer in answers]


class Follower(threading.Thread):
    """Follows all events from the first on, over the scheduler's death."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self._url = url
        self.seen: list[int] = []

    def run(self) -> None:
        """Write down the numbers of the events."""
        for event in Client(self._url).follow_events(0):
            self.seen.append(int(event["seq"]))


def measure() -> Iterator[Row]:
    """Yield the rate and the times of submissions, and what was lost or doubled when the scheduler was killed."""
    with TemporaryDirectory() as folder:
        served = Served(Path(folder))
        try:
            yield from _measured(served)
        finally:
            served.end()
            _end_jobs(Path(folder))


def _end_jobs(folder: Path) -> None:
    """Stop what runs, after the scheduler: that would start those of the queue."""
    backend = LocalBackend(folder / ".longshore", {})
    for path in (folder / ".longshore" / "attempts").iterdir():
        backend.cancel(path.name, "cancelled")
        while not backend.is_proven_gone(path.name):
            time.sleep(0.05)


def _measured(served: Served) -> Iterator[Row]:
    url = f"http://127.0.0.1:{served.port}"
    served.wait_until_ready()
    client = Client(url)
    filler = client.submit(FILLER)["id"]
    while client.job(filler)["state"] != "running":
        time.sleep(0.1)
    follower = Follower(url)
    follower.start()
    warm = Submitter(served.port)
    first = [warm.submit(time.monotonic()) for _ in range(WARM)]

    progress("clients submit")
    before_s = served.cpu_s()
    steady = stream(served.port, STEADY_S)
    cpu_s = served.cpu_s() - before_s
    took_ms = 1e3 * np.array([answer.took_s for answer in steady])
    span_s = max(answer.done_s for answer in steady) - min(answer.due_s for answer in steady)
    yield Row(f"submissions by {CLIENTS} clients", len(steady) / span_s, "1/s", least=LEAST_PER_S)
    yield Row("the median of their times", float(np.percentile(took_ms, 50)), "ms")
    yield Row("the 99th percentile of their times", float(np.percentile(took_ms, 99)), "ms", most=MOST_MS)
    yield Row("the longest", float(took_ms.max()), "ms")
    yield Row("CPU of the scheduler's process", 100.0 * cpu_s / span_s, "% of a core")

    progress("the scheduler is killed while they submit")
    threading.Timer(KILLED_S / 2, served.kill_and_start).start()
    answered = [*first, *steady, *stream(served.port, KILLED_S)]
    yield from _kept(client, filler, answered, follower)


def _kept(client: Client, filler: str, answered: list[Answered], follower: Follower) -> Iterator[Row]:
    """Compare answers with the scheduler's jobs, and followed events with all events."""
    there = [job["id"] for job in client.jobs({}) if job["id"] != filler]
    reported = {answer.job for answer in answered}
    yield Row("submissions in all", len(answered), "jobs")
    yield Row("lost, or reported to two clients", len(answered) - len(reported & set(there)), "jobs", most=0)
    yield Row("doubled", len(there) - len(reported), "jobs", most=0)
    happened = _seqs(client)
    give_up = time.monotonic() + 30.0
    while len(follower.seen) < len(happened) and time.monotonic() < give_up:
        time.sleep(0.1)
    seen = follower.seen[: len(happened)]
    wrong = len(set(happened) ^ set(seen)) + len(seen) - len(set(seen))
    yield Row("events that a follower missed or saw twice", wrong, "events", most=0)
    yield Row("events that it saw", len(seen), "events")


def _seqs(client: Client) -> list[int]:
    """Return the numbers of all events up to one that has just been made."""
    marker = str(client.submit({"command": ["true"], "gpus": 16})["id"])
    seqs = []
    for event in client.follow_events(0):
        seqs.append(int(event["seq"]))
        if event["job"] == marker:
            return seqs
    raise AssertionError("a stream of events has no end")


if __name__ == "__main__":
    main(measure)
