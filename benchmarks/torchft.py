"""The same kill under torchft and in a ring of Longshore: how long until the next finished step, and the ratio.

Model, machine and kill are the same. torchft has its defaults, and an environment of its own, which is made here once
(a minute, 10 MB); PyTorch is that of this environment. Where it cannot be installed, nothing is measured.
"""

import os
import signal
import statistics
import subprocess
import sysconfig
import tempfile
import time
import venv
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

from .harness import ROOT, Row, main, progress
from .rings import KILLED_AT, PAUSE_S, RUNS, SEATS, run_all, warm_process

VERSION = "torchft-nightly==2026.10.26"
PORT = 29_573  # of the lighthouse
STEPS = 40
LIMIT_S = 600.0  # a busy machine imports PyTorch for minutes
BAR = 0.2


def environment_of(folder: Path) -> str:
    """Make an environment with torchft; return why that is impossible, "" if it is there."""
    python = folder / "bin" / "python"
    venv.create(folder, with_pip=True)
    (beside,) = folder.glob("lib/python*/site-packages")
    (beside / "ours.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", VERSION]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stderr.strip().splitlines()[-1] if done.returncode else ""


def outage_s(programs: Path, folder: Path) -> float:
    """Kill one of as many replicas as a ring has seats; return the seconds until another one finished a step."""
    variables = {
        **os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
        "TORCHFT_LIGHTHOUSE": f"http://127.0.0.1:{PORT}",
    }  # fmt: skip
    with ExitStack() as stack:
        start = Replicas(stack, folder, variables)
        start(programs / "torchft_lighthouse", "--bind", f"127.0.0.1:{PORT}", "--min_replicas", "1")
        trainer = (programs / "python", "-m", "benchmarks.torchft_trainer")
        replicas = [start(*trainer, number, STEPS, PAUSE_S) for number in range(SEATS)]
        whole = _wait_for(folder, lambda step, members: step >= KILLED_AT and members == SEATS, 0.0)
        progress(f"torchft: all take part since {whole:.1f}")
        at_s = time.time()
        replicas[-1].send_signal(signal.SIGKILL)
        return _wait_for(folder, lambda _step, members: members < SEATS, at_s) - at_s


class Replicas:
    """Starts processes with a log each, which end with a stack."""

    def __init__(self, stack: ExitStack, folder: Path, variables: dict[str, str]) -> None:
        self._stack, self._folder, self._variables, self._started = stack, folder, variables, 0

    def __call__(self, *command: object) -> subprocess.Popen[bytes]:
        """Start a process."""
        log = self._stack.enter_context((self._folder / f"log-{self._started}").open("wb"))
        self._started += 1
        process = subprocess.Popen([str(it) for it in command], env=self._variables, cwd=ROOT, stdout=log, stderr=log)
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)
        return process


def _wait_for(folder: Path, is_it: Callable[[int, int], bool], after_s: float) -> float:
    """Return when the first step of a kind was finished, by the log of any replica."""
    until_s = time.monotonic() + LIMIT_S
    while time.monotonic() < until_s:
        lines = [line.split() for path in folder.glob("log-*") for line in path.read_text().splitlines()]
        steps = [(float(it[1]), int(it[2]), int(it[3])) for it in lines if it[:1] == ["step"] and len(it) == 4]
        found = [at_s for at_s, step, members in steps if at_s > after_s and is_it(step, members)]
        if found:
            return min(found)
        time.sleep(0.005)
    logs = [path.read_text()[-1000:] for path in folder.glob("log-*")]
    raise TimeoutError("torchft made no such step: " + "\n".join(logs))


def measure() -> Iterator[Row]:
    """Kill a member under both, and yield the ratio."""
    runs = max(RUNS // 10, 1)
    with tempfile.TemporaryDirectory(prefix="torchft-") as name:
        if why := environment_of(Path(name) / "venv"):
            progress(f"torchft is skipped, as it cannot be installed: {why}")
            return
        theirs, ours = [], []
        with warm_process() as warm:
            for run in range(runs):
                folder = Path(name) / str(run)
                folder.mkdir()
                theirs.append(outage_s(Path(name) / "venv" / "bin", folder))
                ours.append(run_all(warm, "warm", signal.SIGKILL, 1, 1)[0].outage_s)
    yield Row("torchft, defaults: seconds to the next step, median", statistics.median(theirs), "s")
    yield Row("a ring with a warm spare: seconds to the next step, median", statistics.median(ours), "s")
    yield Row("ratio of the two medians", statistics.median(ours) / statistics.median(theirs), "", most=BAR)


if __name__ == "__main__":
    main(measure)
