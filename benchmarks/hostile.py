"""A million made-up inputs over all that comes from outside: whether any crashes, hangs, or disturbs other jobs.

Job files, cluster files, traces, checkpoints and answers of policies are fed to what reads them, in processes that are
watched; requests go to a real scheduler on which other jobs run. `INPUTS` (1, a share of the full number) makes it
shorter, `SEED` (0) makes other inputs. A fault is shown with the seed that repeats it:
`python -m benchmarks.hostile 'job files' 1234` feeds that input alone.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import NamedTuple

from .harness import Row, main, progress
from .hostile_api import ask

COUNTS = {  # inputs of each kind, by how long one takes
    "job files": 480_000, "policy answers": 300_000, "traces": 110_000, "cluster files": 60_000, "checkpoints": 10_000,
}  # fmt: skip
REQUESTS = 40_000
AT_ONCE = 2
MOST_S = 2.0  # that one input may take
POLL_S = 0.05
START_S = 300.0  # in which a worker is to begin: kernels may have to be compiled


class Tally(NamedTuple):
    """What came of the inputs of one kind."""

    fed: int = 0
    used: int = 0  # that were of use: the others were refused
    faults: int = 0
    hangs: int = 0
    crashes: int = 0

    def __add__(self, other: object) -> "Tally":
        assert isinstance(other, Tally)
        return Tally(*(a + b for a, b in zip(self[:], other[:], strict=True)))


class Worker:
    """A process that feeds a range of seeds, and is followed by another one when it hangs or dies.

    Args:
        name: Of the target.
        first: First seed.
        count: Seeds.
        folder: For its notes.
    """

    def __init__(self, name: str, first: int, count: int, folder: Path) -> None:
        self.name, self.next, self.end = name, first, first + count
        self.notes, self.log = folder / f"{first}.notes", folder / f"{first}.log"
        self.tally = Tally()
        self.process: subprocess.Popen[bytes] | None = None
        self._began_s = 0.0
        self._read = 0
        self._start()

    def _start(self) -> None:
        from .hostile_worker import NOTE

        self.notes.write_bytes(NOTE.pack(self.next, 0, 0, 0.0))
        line = [sys.executable, "-m", "benchmarks.hostile_worker", self.name, str(self.next),
                str(self.end - self.next), str(self.notes)]  # fmt: skip
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(line, stdout=log, stderr=log)
        self._began_s = time.monotonic()

    def check(self) -> bool:
        """Return whether it continues; show faults, and skip an input that hangs or kills."""
        from .hostile_worker import read_note

        assert self.process is not None
        seed, used, faults, at_s = read_note(self.notes)
        self._show_faults()
        if self.process.poll() is None:
            starts = at_s == 0.0 and time.monotonic() - self._began_s < START_S
            if starts or time.monotonic() - at_s < MOST_S:
                return True
            self.process.kill()
            self.process.wait()
            hung = is_slow_alone(self.name, seed)
            words = "hangs" if hung else "was late only once"
        else:
            hung, words = False, f"killed its process ({self.process.returncode})"
        done = seed - self.next
        self.tally += Tally(done, used, faults)
        if seed >= self.end and self.process.returncode == 0:
            return False
        progress(f"{self.name} {seed}: {words}")
        self.tally += Tally(1, 0, 0, int(hung), int(words.startswith("killed")))
        self.next = seed + 1
        if self.next >= self.end:
            return False
        self._start()
        return True

    def _show_faults(self) -> None:
        """Show the faults that it has written since the last check."""
        text = self.log.read_text(encoding="utf-8", errors="replace")
        whole = text[: text.rfind("\n") + 1]
        for line in whole[self._read :].splitlines():
            if line.startswith('{"seed"'):
                found = json.loads(line)
                progress(f"{self.name} {found['seed']}: {found['fault']}")
            else:
                progress(line)
        self._read = len(whole)


def is_slow_alone(name: str, seed: int) -> bool:
    """Feed one input in a process of its own; return whether it takes too long there too."""
    from .hostile_worker import NOTE, read_note

    with TemporaryDirectory() as folder:
        notes = Path(folder) / "notes"
        notes.write_bytes(NOTE.pack(seed, 0, 0, 0.0))
        line = [sys.executable, "-m", "benchmarks.hostile_worker", name, str(seed), "1", str(notes)]
        with subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            try:
                while process.poll() is None:
                    at_s = read_note(notes)[3]
                    if at_s and time.monotonic() - at_s > MOST_S:
                        return True
                    time.sleep(POLL_S)
                return False
            finally:
                process.kill()


def fed(name: str, first: int, count: int) -> Tally:
    """Feed seeds to a target in processes side by side."""
    share = -(-count // AT_ONCE)
    with TemporaryDirectory() as folder:
        workers = [Worker(name, first + at, min(share, count - at), Path(folder)) for at in range(0, count, share)]
        try:
            going = list(workers)
            while going:
                time.sleep(POLL_S)
                going = [worker for worker in going if worker.check()]
        finally:
            for worker in workers:
                if worker.process is not None:
                    worker.process.kill()
                    worker.process.wait()
        return sum((worker.tally for worker in workers), Tally())


def rows_of(name: str, found: Tally) -> Iterator[Row]:
    """Yield what came of one kind of input."""
    yield Row(f"{name}: fed", found.fed, "inputs")
    yield Row(f"{name}: accepted", found.used, "inputs", least=1)
    yield Row(f"{name}: tracebacks and wrong results", found.faults, "inputs", most=0)
    yield Row(f"{name}: over {MOST_S:g} s", found.hangs, "inputs", most=0)
    yield Row(f"{name}: killed the process", found.crashes, "inputs", most=0)


def measure() -> Iterator[Row]:
    """Feed all inputs, and yield what came of them."""
    share, seed = float(os.environ.get("INPUTS", "1")), int(os.environ.get("SEED", "0"))
    total = 0
    for name, count in COUNTS.items():
        first = seed * 10_000_000
        progress(f"{name}: seeds {first} to {first + round(share * count) - 1}")
        found = fed(name, first, round(share * count))
        total += found.fed
        yield from rows_of(name, found)
    progress(f"requests: seed {seed}")
    asked = ask(round(share * REQUESTS), seed)
    yield from asked.rows()
    yield Row("all inputs", total + asked.sent, "inputs", least=share * (sum(COUNTS.values()) + REQUESTS))


def feed_one(name: str, seed: int) -> None:
    """Feed the input of one seed, and show it and what comes of it."""
    from .hostile_targets import TARGETS
    from .hostile_worker import feed

    with TemporaryDirectory() as folder:
        print(TARGETS[name].make(Random(f"{name} {seed}"))[:4000])
        print(*feed(TARGETS[name], seed, Path(folder)))


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] in COUNTS:
        feed_one(sys.argv[1], int(sys.argv[2]))
    else:
        main(measure)
