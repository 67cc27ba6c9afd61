"""`make demo-failover`: a job of four processes loses one to `kill -9` and another to a broken GPU, and continues.

It starts a scheduler in a folder of its own, runs the job undisturbed, runs it again with two faults, and compares.
Everything on the screen was measured in this run.
"""

import math
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from longshore.cluster.files.errors import LongshoreError
from longshore.cluster.files.processes import free_port
from longshore.scheduler.client import Client

HERE = Path(__file__).absolute().parent
LONGSHORE = [sys.executable, "-m", "longshore"]
SEATS, SPARES = 4, 1
KILLED_SEAT, KILLED_AT = 2, 100  # steps are counted from 0
BROKEN_SEAT, BROKEN_AT = 1, 200
WITHIN_S = 120.0
BARS = "▁▂▃▄▅▆▇█"


class Scheduler:
    """A scheduler on this machine.

    Args:
        folder: Of its own.
    """

    def __init__(self, folder: Path) -> None:
        port = free_port()
        self._url, self._port, self._folder = f"http://127.0.0.1:{port}", port, folder
        self._environment = {**os.environ, "XDG_STATE_HOME": str(folder / "state"), "LONGSHORE_URL": self._url}
        token = folder / "state" / "longshore" / f"token-{port}"
        self.client = Client(self._url, lambda: token.read_text().strip() if token.exists() else None)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Let it run meanwhile."""
        options = ["--port", str(self._port), "--cluster", str(HERE / "cluster.yaml"), "--policy", "pack"]
        options += ["--as-root"] if os.geteuid() == 0 else []
        line = [*LONGSHORE, "serve", *options]
        with (self._folder / "serve.log").open("wb") as log:
            process = subprocess.Popen(line, cwd=self._folder, env=self._environment, stdout=log, stderr=log)
        try:
            _until(lambda: process.poll() is not None or self._answers(), "the scheduler to answer")
            if process.poll() is not None:
                raise SystemExit(f"the scheduler ended: {(self._folder / 'serve.log').read_text()}")
            yield
        finally:
            process.send_signal(signal.SIGINT)
            process.wait()

    def _answers(self) -> bool:
        with socket.socket() as tried:
            if tried.connect_ex(("127.0.0.1", self._port)) != 0:
                return False
        try:
            return bool(self.client.nodes())
        except LongshoreError:
            return False

    def submit(self) -> str:
        """Submit the job, and return its id."""
        job = {
            "name": "ring", "gpus": SEATS, "spares": SPARES, "failover": "switch", "folder": str(self._folder),
            "command": [sys.executable, str(HERE / "train.py")],
            "environment": {"OMP_NUM_THREADS": "1", "PATH": os.environ["PATH"]},
        }  # fmt: skip
        return str(self.client.submit(job)["id"])

    def status(self, job: str) -> str:
        """Return what `longshore status` prints of a job."""
        line = [*LONGSHORE, "status", job]
        return subprocess.run(line, env=self._environment, capture_output=True, text=True, check=True).stdout

    def lines(self, job: str) -> list[list[str]]:
        """Return what all ranks of a job have printed, word by word."""
        ranks = sum(len(share["gpus"]) for share in self.client.job(job)["attempts"][-1]["placement"])
        logs = (self.client.logs(job, str(rank), 0)[0].decode() for rank in range(ranks))
        return [line.split() for text in logs for line in text.splitlines()]

    def step(self, job: str) -> int:
        """Return how many steps the ring of a job has done; -1 while it has none."""
        ring = self.client.ring(job)
        return -1 if ring is None or ring["phase"] != "running" else int(ring["step"])

    def report_broken(self, node: str) -> None:
        """Tell of a GPU as the agent of its node would: twice, as one report may be a mistake."""
        for _ in range(2):
            gpu = {"index": 0, "healthy": False, "utilisation": 0.0, "free_bytes": 0}
            self.client.report(node, {"gpus": [gpu]})

    def ended(self, job: str) -> None:
        """Wait until a job has succeeded."""
        _until(lambda: self.client.job(job)["state"] in ("succeeded", "failed", "cancelled"), "the job to end")
        if (found := self.client.job(job))["state"] != "succeeded":
            raise SystemExit(f"the job is {found['state']}: {found['cause']}")


def _until(is_so: Callable[[], object], what: str) -> None:
    give_up_s = time.monotonic() + WITHIN_S
    while not is_so():
        if time.monotonic() > give_up_s:
            raise SystemExit(f"waited {WITHIN_S:.0f} s for {what} in vain")
        time.sleep(0.05)


def _losses(lines: list[list[str]]) -> dict[int, str]:
    return {int(words[1]): words[2] for words in lines if words[0] == "loss"}


def _curve(losses: dict[int, str]) -> str:
    """Return a curve of 60 letters, of the logarithm."""
    steps = sorted(losses)
    shown = [math.log(float(losses[steps[at * len(steps) // 60]])) for at in range(60)]
    least, most = min(shown), max(shown)
    return "".join(BARS[round((it - least) / (most - least) * (len(BARS) - 1))] for it in shown)


def _members(scheduler: Scheduler, job: str) -> dict[int, tuple[int, str]]:
    """Return process and node of each member in the log."""
    lines = [line for line in scheduler.lines(job) if line[0] == "member"]
    return {int(line[1]): (int(line[3]), line[5]) for line in lines}


def _disturb(scheduler: Scheduler, job: str) -> float:
    """Kill one process of a job, and break the GPUs of another and of the spare; return when it was killed."""
    client = scheduler.client
    _until(lambda: scheduler.step(job) >= KILLED_AT, f"step {KILLED_AT}")
    ring, members = client.ring(job) or {}, _members(scheduler, job)
    pid, spare_node = members[ring["order"][KILLED_SEAT]]  # there the next spare is started
    os.kill(pid, signal.SIGKILL)
    killed_s = time.time()
    print(f"killed process {pid} on {spare_node}", flush=True)
    _until(lambda: scheduler.step(job) >= BROKEN_AT and (client.ring(job) or {})["spares"], f"step {BROKEN_AT}")
    broken_node = members[ring["order"][BROKEN_SEAT]][1]
    print(f"broken: the GPUs of {spare_node}, where the new spare waits, and of {broken_node}", flush=True)
    for node in (spare_node, broken_node):
        scheduler.report_broken(node)
    _until(lambda: (client.ring(job) or {"replacements": [0]})["replacements"], "another GPU")
    _until(lambda: scheduler.step(job) > BROKEN_AT, "the ring to go on")
    return killed_s


def _next_s(lines: list[list[str]], after_s: float) -> float:
    """Return how long after a moment the first step was done that began after it."""
    return min(float(words[3]) for words in lines if words[0] == "loss" and float(words[3]) > after_s) - after_s


def main() -> None:
    """Show it."""
    with tempfile.TemporaryDirectory(prefix="longshore-failover-") as folder:
        scheduler = Scheduler(Path(folder))
        with scheduler.running():
            print(f"{SEATS} processes on {SEATS} nodes train a model, a spare waits. First undisturbed ...", flush=True)
            first = scheduler.submit()
            scheduler.ended(first)
            before = scheduler.lines(first)
            print(f"And again. After step {KILLED_AT}: `kill -9` to the process on seat {KILLED_SEAT}.")
            print(f"After step {BROKEN_AT}: the GPUs of seat {BROKEN_SEAT} and of the spare are broken.\n", flush=True)
            second = scheduler.submit()
            killed_s = _disturb(scheduler, second)
            print(scheduler.status(second), flush=True)
            scheduler.ended(second)
            after = scheduler.lines(second)
            attempts = scheduler.client.job(second)["attempts"]
        one, other = _losses(before), _losses(after)
        same = sum(one[step] == other.get(step) for step in one)
        digests = [{words[1] for words in lines if words[0] == "sha256"} for lines in (before, after)]
        print(f"next step {_next_s(after, killed_s):.2f} s after the kill; attempts of the job: {len(attempts)}")
        print(f"loss, undisturbed   {_curve(one)}")
        print(f"loss, two faults    {_curve(other)}")
        print(f"{same} of {len(one)} losses are equal to the last digit; parameters", end=" ")
        print("equal, bit for bit" if digests[0] == digests[1] and len(digests[0]) == 1 else "NOT equal")


if __name__ == "__main__":
    main()
