"""The command line as a user calls it, against a real scheduler on a port of the loopback interface."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

PATIENCE_S = 120.0  # far more than anything here takes
LONGSHORE = [sys.executable, "-m", "longshore"]


class Served:
    """A scheduler in a process of its own, and the command line that talks to it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = int(free.getsockname()[1])
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with (self.folder / "serve.log").open("ab") as log:
            process = self.process = subprocess.Popen(
                [*LONGSHORE, "serve", "--port", str(self.port)], cwd=self.folder, stdout=log, stderr=log
            )  # fmt: skip
        until(lambda: process.poll() is not None or self.call("nodes", check=False).returncode == 0)
        assert process.poll() is None, (self.folder / "serve.log").read_text()

    def end(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)
        self.process.wait()

    def call(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "LONGSHORE_URL": f"http://127.0.0.1:{self.port}"}
        line = [*LONGSHORE, *arguments]
        return subprocess.run(line, cwd=self.folder, env=environment, capture_output=True, text=True, check=check)

    def submit(self, *arguments: str) -> str:
        return self.call("submit", *arguments).stdout.strip()

    def state(self, job: str) -> str:
        return self.call("status", job).stdout.split()[2]

    def ended(self, job: str) -> str:
        until(lambda: self.state(job) in ("succeeded", "failed", "cancelled"))
        return self.call("status", job).stdout


def until(is_so: Callable[[], bool]) -> None:
    give_up = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < give_up
        time.sleep(0.1)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    it = Served(tmp_path)
    it.start()
    yield it
    for job in it.call("queue").stdout.split("\n"):
        if job and job != "no jobs":
            it.call("cancel", job.split()[0])
    until(lambda: "no jobs" in it.call("queue").stdout)
    it.end(signal.SIGINT)


def test_a_command_runs_once_on_each_gpu_that_it_was_given(served: Served) -> None:
    job = served.submit("--gpus", "2", "--", "sh", "-c", "echo rank $RANK of $WORLD_SIZE on gpu $CUDA_VISIBLE_DEVICES")

    told = served.ended(job)

    assert "succeeded" in told
    assert "rack0-node0:0,1" in told
    assert served.call("logs", job).stdout == "rank 0 of 2 on gpu 0\n"
    assert served.call("logs", job, "--rank", "1").stdout == "rank 1 of 2 on gpu 1\n"


def test_a_placement_is_explained(served: Served) -> None:
    job = served.submit("--gpus", "2", "--", "true")
    served.ended(job)

    told = served.call("explain", job).stdout

    assert "rack0-node0:0,1  chosen by patient" in told
    assert "the heuristic: rack0-node0:0,1" in told


def test_a_job_that_fails_says_why(served: Served) -> None:
    assert "failed  rank 0 ended with exit code 3" in served.ended(served.submit("--", "sh", "-c", "exit 3"))


def test_a_program_that_is_not_there_is_refused_by_name(served: Served) -> None:
    told = served.ended(served.submit("--", "no-such-program"))

    assert "failed" in told
    assert "no-such-program" in told


def test_a_job_is_cancelled_while_it_runs_and_its_gpus_are_free_again(served: Served) -> None:
    job = served.submit("--gpus", "16", "--", "sleep", "1000")
    until(lambda: served.state(job) == "running")

    served.call("cancel", job)

    assert "cancelled" in served.ended(job)
    assert served.call("nodes").stdout.count("4 of 4 slots free") == 4


def test_jobs_outlive_a_scheduler_that_is_killed_and_the_next_one_goes_on_with_them(served: Served) -> None:
    ends = served.submit("--", "sh", "-c", "while [ ! -e go ]; do sleep 0.05; done; echo done")
    waits = served.submit("--gpus", "16", "--", "true")
    until(lambda: served.state(ends) == "running")

    served.end(signal.SIGKILL)
    (served.folder / "go").touch()
    served.start()

    assert "attempt 1  closed" in served.ended(ends)
    assert "attempt 2" not in served.call("status", ends).stdout
    assert "succeeded" in served.ended(waits)


def test_a_policy_that_cannot_be_loaded_is_one_line_and_nothing_is_served(tmp_path: Path) -> None:
    (tmp_path / "torn.zip").write_bytes(b"PK")

    line = [*LONGSHORE, "serve", "--policy", "torn.zip"]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert done.returncode == 2
    assert done.stderr.strip().startswith("longshore: policy 'torn.zip' cannot be loaded: torn.zip")
    assert "\n" not in done.stderr.strip()


def test_what_cannot_be_asked_for_is_one_line(served: Served) -> None:
    too_large = served.call("submit", "--gpus", "17", "--", "true", check=False)
    unknown = served.call("status", "nobody", check=False)

    assert (too_large.returncode, too_large.stderr.strip()) == (
        2, "longshore: the job asks for 17 GPUs, the cluster has 16",
    )  # fmt: skip
    assert (unknown.returncode, unknown.stderr.strip()) == (2, "longshore: there is no job 'nobody'")
