"""Requests that schemathesis makes up from the API's own description: whether any gets an answer that is not in it.

The scheduler of the application does not tick, so that no made-up job is ever started.
"""

import json
import shutil
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import uvicorn

from longshore.scheduler.access.tokens import Role, add_token, new_token
from longshore.scheduler.serve.app import create_app
from longshore.scheduler.service.service import Service
from longshore.scheduler.settings import SchedulerSettings, ServeOptions, UserLimits
from tests.support import processes

from .harness import Row, main

SECONDS = 300
LOGS = "/v1/jobs/{job}/logs"
# Streams have no end; no scheduler leads, so readyz is right to answer 503.
NOT_ASKED = ("/v1/events", "/readyz")
# A description cannot say that a job is too large for a cluster, or that a cursor was never given; and a cancelled job
# stays to be read.
CHECKS = ("--exclude-checks", "positive_data_acceptance,use_after_free")


class Found(NamedTuple):
    """What a run of schemathesis found."""

    cases: int
    failures: int
    reported: str


def schemathesis() -> str | None:
    """Return the path of its command, None if it is not installed."""
    return shutil.which("st", path=str(Path(sys.executable).parent))


def fuzz(command: str, *options: str) -> Found:
    """Ask an application made-up requests."""
    with TemporaryDirectory() as folder, _asked(Path(folder) / "served") as (url, secret):
        report = Path(folder) / "report.json"
        line = [
            command, "run", f"{url}/openapi.json", "--header", f"Authorization: Bearer {secret}", *CHECKS, *options,
            "--no-color", "--generation-database", "none",
            "--report", "json", "--report-json-path", str(report),
        ]  # fmt: skip
        done = processes.run(line, cwd=folder, capture_output=True, check=False)
        if not report.exists():
            raise RuntimeError(f"{done.stdout}{done.stderr}"[-2000:])
        cases = json.loads(report.read_text())["test_cases"]
        return Found(cases["generated"], cases["unique_failures"] + cases["errored"], done.stdout)


def jobs(command: str, *options: str) -> Found:
    """Ask for all but streams: those of logs would wait for the ends of jobs."""
    excluded = [word for path in (*NOT_ASKED, LOGS) for word in ("--exclude-path", path)]
    return fuzz(command, *excluded, *options)


def logs(command: str, *options: str) -> Found:
    """Ask for logs of jobs that are not there."""
    return fuzz(command, "--include-path", LOGS, *options)


@contextmanager
def _asked(folder: Path) -> Iterator[tuple[str, str]]:
    """Serve an application without the lifespan that starts the scheduler; give its URL, and an operator's token."""
    service = Service(ServeOptions(SchedulerSettings(folder=folder, open=True, limits=UserLimits(queued_jobs=200))))
    made = new_token("fuzz", "fuzz", Role.OPERATOR, service.now_s(), None)
    service.store.write(lambda tx: add_token(tx, made.row))
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(create_app(service), log_level="critical", lifespan="off"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", made.secret
    finally:
        service.ends.set()
        server.should_exit = True
        thread.join()
        service.close()


def measure() -> Iterator[Row]:
    """Yield how many requests were made up, and how many answers were not as described."""
    command = schemathesis()
    if command is None:
        raise SystemExit("schemathesis is not installed: pip install -e '.[dev]'")
    found = (
        jobs(command, "--max-time", str(SECONDS)),
        logs(command, "--phases", "coverage,fuzzing", "--max-time", str(SECONDS // 10)),
    )
    yield Row("made-up requests", sum(it.cases for it in found), "requests")
    yield Row("answers from 500 on, or not as described", sum(it.failures for it in found), "answers", most=0)


if __name__ == "__main__":
    main(measure)
