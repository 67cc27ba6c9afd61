"""A scheduler in a process of its own, and the command line that talks to it."""

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from longshore.cluster.files.processes import free_port
from tests.support import processes
from tests.support.warm import Forked, Warm

PATIENCE_S = 240.0  # far more than anything here takes
LONGSHORE = [sys.executable, "-m", "longshore"]
# What a start imports, and does once: a scheduler is forked from a process that has done it.
WARM = Warm(
    "longshore.cli", "longshore.scheduler.serve.app", "longshore.scheduler.serve.server",
    "longshore.scheduler.mirror.rehearsal:rehearse_mirror_calls",
)  # fmt: skip
SERVE = ["serve", *(["--as-root"] if os.geteuid() == 0 else [])]


class Served:
    """A scheduler in a folder.

    Args:
        folder: Where it is started.
        options: Of `longshore serve`.
    """

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder, self.options = folder, options
        self.environment = {"XDG_STATE_HOME": str(folder / "state")}  # nothing is left in the home of who tests
        self.port = free_port()
        self.process: processes.Process[bytes] | Forked | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def token(self) -> str:
        """The token of who started it."""
        link = Path(self.environment["XDG_STATE_HOME"]) / "longshore" / f"token-{self.port}"
        return self.environment.get("LONGSHORE_TOKEN") or link.read_text().strip()

    @property
    def headers(self) -> dict[str, str]:
        """Headers by which it knows who started it; none where it is open."""
        return {} if "--open" in self.options else {"Authorization": f"Bearer {self.token}"}

    def ask(self, path: str) -> Any:
        """Return what the API answers. To wait by commands, each a new process, would take more than all the rest."""
        # Nor are certificates loaded for each of so many questions.
        answer = httpx.get(self.url + path, headers=self.headers, timeout=PATIENCE_S, trust_env=False, verify=False)
        return answer.raise_for_status().json()

    def tell(self, method: str, path: str, **content: Any) -> Any:
        """Return what the API answers where something is changed."""
        # Here, too, a process for each change would take more than all the rest.
        answer = httpx.request(
            method, self.url + path, json=content, headers=self.headers, timeout=PATIENCE_S, trust_env=False,
            verify=False,
        )  # fmt: skip
        return answer.raise_for_status().json() if answer.content else None

    def add(self, *command: str, **spec: Any) -> str:
        """Return a job of a command, which `submit` would make of it with more ado."""
        environment = {"PATH": os.environ["PATH"]}
        job = {"command": command, "folder": str(self.folder), "environment": environment, **spec}
        return str(self.tell("POST", "/v1/jobs", **job)["id"])

    def cancel(self, job: str) -> None:
        self.tell("DELETE", f"/v1/jobs/{job}")

    def answers(self) -> bool:
        """Say whether it answers yet."""
        try:
            self.ask("/v1/nodes")
        except (httpx.HTTPError, OSError):
            return False
        return True

    def start(self) -> None:
        line = [*LONGSHORE, *SERVE, "--port", str(self.port), *self.options]
        environment = {**os.environ, **self.environment}
        with (self.folder / "serve.log").open("ab") as log:
            # Other libraries or sources show in a process that really begins.
            begins = not {"LD_PRELOAD", "PYTHONPATH"}.isdisjoint(self.environment)
            start: Callable[..., Any] = processes.start if begins else WARM.Popen
            process = self.process = start(line, cwd=self.folder, env=environment, stdout=log, stderr=log)
        try:
            until(lambda: process.poll() is not None or self.answers())
        except AssertionError:
            process.kill()  # else it would outlive the tests
            process.wait()
            raise
        assert process.poll() is None, (self.folder / "serve.log").read_text()

    def end(self, number: int = signal.SIGINT) -> None:
        assert self.process is not None
        self.process.send_signal(number)
        self.process.wait()
        self.process = None

    def cancel_all(self) -> None:
        """Cancel all jobs, and wait for their ends."""
        for job in self.ask("/v1/queue")["jobs"]:
            self.cancel(job["id"])
        until(lambda: self.ask("/v1/queue")["jobs"] == [])

    def call(self, *arguments: str, check: bool = True) -> processes.CompletedProcess[str]:
        line = [*LONGSHORE, *arguments]
        return processes.run(
            line, cwd=self.folder, env=self.for_commands(), capture_output=True, check=check
        )  # fmt: skip

    def for_commands(self) -> dict[str, str]:
        """Return the environment of a command that talks to it."""
        return {**os.environ, "LONGSHORE_URL": self.url, **self.environment}

    def told(self, *arguments: str) -> Any:
        """Return what a command tells programs."""
        return json.loads(self.call(*arguments, "--json").stdout)

    def submit(self, *arguments: str) -> str:
        return self.call("submit", *arguments).stdout.strip()

    def state(self, job: str) -> str:
        return str(self.ask(f"/v1/jobs/{job}")["state"])

    def ended(self, job: str) -> str:
        """Return the state in which a job has ended."""
        until(lambda: self.state(job) in ("succeeded", "failed", "cancelled"))
        return self.state(job)


def until(is_so: Callable[[], bool]) -> None:
    give_up = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < give_up
        time.sleep(0.1)
