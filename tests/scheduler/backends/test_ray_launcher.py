"""How the launcher is found among the jobs of a Ray; only its dashboard is a stand-in here."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from longshore.scheduler.backends.ray.backend import LauncherJob, RayApi
from longshore.scheduler.backends.ray.launcher import ALIVE


class Dashboard(ThreadingHTTPServer):
    """Knows jobs, and takes more."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Jobs)
        self.jobs: list[dict[str, object]] = []


class Jobs(BaseHTTPRequestHandler):
    """Answers as Ray does."""

    server: Dashboard

    def do_GET(self) -> None:
        """Tell of all jobs."""
        self._answer(self.server.jobs)

    def do_POST(self) -> None:
        """Take a job."""
        job = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.jobs.append({"submission_id": job["submission_id"], "status": "FAILED"})
        self._answer({})

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def _answer(self, content: object) -> None:
        body = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def dashboard() -> Iterator[Dashboard]:
    with Dashboard() as dashboard:
        threading.Thread(target=dashboard.serve_forever, daemon=True).start()
        yield dashboard
        dashboard.shutdown()


def submitted(dashboard: Dashboard, folder: Path) -> str:
    """Return the name that a new launcher of a scheduler gets."""
    (folder / ALIVE).parent.mkdir(exist_ok=True)
    LauncherJob(RayApi(f"http://127.0.0.1:{dashboard.server_port}", None), folder, packages="/x").ensure_running()
    return str(dashboard.jobs[-1]["submission_id"])


def test_jobs_that_others_named_nearly_like_the_launcher_are_not_counted(dashboard: Dashboard, tmp_path: Path) -> None:
    first = submitted(dashboard, tmp_path)
    for name in (f"{first}-debug", f"{first[:-1]}x", first[:-1], f"{first[:-1]}\u00b2"):
        dashboard.jobs.append({"submission_id": name, "status": "RUNNING"})
    assert submitted(dashboard, tmp_path) == f"{first[:-1]}2"
