"""`make demo-failover`: a job of four processes loses one to `kill -9`, and goes on with its spare.

It starts a scheduler in a folder of its own, runs the job undisturbed, runs it again and kills one of its processes,
and compares. Everything on the screen was measured in this run.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).absolute().parent
LONGSHORE = [sys.executable, "-m", "longshore"]
SEATS, SPARES, KILLED_SEAT, KILLED_AT = 4, 1, 2, 100
WITHIN_S = 300.0
BARS = "▁▂▃▄▅▆▇█"


class Scheduler:
    """A scheduler on this machine.

    Args:
        folder: Of its own.
    """

    def __init__(self, folder: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = int(free.getsockname()[1])
        state = {"XDG_STATE_HOME": str(folder / "state"), "LONGSHORE_URL": f"http://127.0.0.1:{self._port}"}
        self._environment, self._folder = {**os.environ, **state}, folder

    @contextmanager
    def running(self) -> Iterator[None]:
        """Let it run meanwhile."""
        options = ["--port", str(self._port), "--cluster", str(HERE / "cluster.yaml"), "--policy", "pack"]
        options += ["--as-root"] if os.geteuid() == 0 else []
        with (self._folder / "serve.log").open("wb") as log:
            process = subprocess.Popen(
                [*LONGSHORE, "serve", *options], cwd=self._folder, env=self._environment, stdout=log, stderr=log
            )
        try:
            _until(lambda: process.poll() is not None or self.call("nodes") is not None, "the scheduler to answer")
            if process.poll() is not None:
                raise SystemExit(f"the scheduler ended: {(self._folder / 'serve.log').read_text()}")
            yield
        finally:
            process.send_signal(signal.SIGINT)
            process.wait()

    def call(self, *arguments: str) -> str | None:
        """Return what a command says, None if it fails."""
        done = subprocess.run(
            [*LONGSHORE, *arguments],
            cwd=self._folder,
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
        )
        return done.stdout if done.returncode == 0 else None

    def submit(self) -> str:
        """Submit the job, and return its id."""
        job = {
            "name": "ring", "gpus": SEATS, "spares": SPARES, "failover": "switch", "folder": str(self._folder),
            "command": [sys.executable, str(HERE / "train.py")],
            "environment": {"OMP_NUM_THREADS": "1", "PATH": os.environ["PATH"]},
        }  # fmt: skip
        path = self._folder / "job.json"
        path.write_text(json.dumps(job))
        return (self.call("submit", str(path)) or "").strip()

    def lines(self, job: str) -> list[list[str]]:
        """Return what all ranks of a job have printed, word by word."""
        said = "".join(self.call("logs", job, "--rank", str(rank)) or "" for rank in range(SEATS + SPARES))
        return [line.split() for line in said.splitlines()]

    def state(self, job: str) -> dict[str, Any]:
        """Return what is known of a job."""
        found: dict[str, Any] = json.loads(self.call("status", job, "--json") or "{}")
        return found


def _until(is_so: Any, what: str) -> None:
    give_up_s = time.monotonic() + WITHIN_S
    while not is_so():
        if time.monotonic() > give_up_s:
            raise SystemExit(f"waited {WITHIN_S:.0f} s for {what} in vain")
        time.sleep(0.1)


def _losses(lines: list[list[str]]) -> dict[int, str]:
    return {int(words[1]): words[2] for words in lines if words[0] == "loss"}


def _curve(losses: dict[int, str]) -> str:
    """Return a curve of 60 letters."""
    steps = sorted(losses)
    shown = [float(losses[steps[at * len(steps) // 60]]) for at in range(60)]
    most = max(shown)
    return "".join(BARS[min(int(it / most * len(BARS)), len(BARS) - 1)] for it in shown)


def _ended(scheduler: Scheduler, job: str) -> None:
    _until(lambda: scheduler.state(job).get("state") in ("succeeded", "failed", "cancelled"), "the job to end")
    if (found := scheduler.state(job))["state"] != "succeeded":
        raise SystemExit(f"the job is {found['state']}: {found['cause']}")


def _kill(scheduler: Scheduler, job: str) -> float:
    """Kill the process on a seat once training is under way; return when."""
    _until(lambda: max(_losses(scheduler.lines(job)), default=0) >= KILLED_AT, "the first steps")
    pid = next(int(words[1]) for words in scheduler.lines(job) if words[0] == "pid" and int(words[3]) == KILLED_SEAT)
    os.kill(pid, signal.SIGKILL)
    return time.time()


def main() -> None:
    """Show it."""
    with tempfile.TemporaryDirectory(prefix="longshore-failover-") as folder:
        scheduler = Scheduler(Path(folder))
        with scheduler.running():
            print(f"{SEATS} processes train one model on four nodes, a fifth waits. First undisturbed ...", flush=True)
            first = scheduler.submit()
            _ended(scheduler, first)
            before = scheduler.lines(first)
            print(f"and again: `kill -9` to the process on seat {KILLED_SEAT} after step {KILLED_AT} ...\n", flush=True)
            second = scheduler.submit()
            killed_s = _kill(scheduler, second)
            time.sleep(1.0)
            print(scheduler.call("status", second))
            _ended(scheduler, second)
            after = scheduler.lines(second)
            attempts = scheduler.state(second)["attempts"]
        next_s = min(float(words[3]) for words in after if words[0] == "loss" and float(words[3]) > killed_s)
        one, other = _losses(before), _losses(after)
        same = sum(one[step] == other.get(step) for step in one)
        digests = [{words[1] for words in lines if words[0] == "sha256"} for lines in (before, after)]
        print(f"first new step {next_s - killed_s:.2f} s after the kill; attempts of the job: {len(attempts)}")
        print(f"loss, undisturbed   {_curve(one)}")
        print(f"loss, one killed    {_curve(other)}")
        print(f"{same} of {len(one)} losses are equal to the last digit; parameters", end=" ")
        print("equal, bit for bit" if digests[0] == digests[1] and len(digests[0]) == 1 else "NOT equal")


if __name__ == "__main__":
    main()
