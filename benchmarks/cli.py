"""How soon the command line answers, how long a first use compiles, and how soon a second `make demo` is at work."""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from .harness import ROOT, Row, main, medians, progress, seconds

HELP_RUNS = 5
SIMULATION_STARTED = "(1 of "  # in the output of `longshore evaluate` as it runs the first pair of order and policy
FIRST_USE_LIMIT_S, DEMO_LIMIT_S = 600.0, 900.0


def show_help() -> None:
    """Run `longshore --help` in a process of its own."""
    subprocess.run([sys.executable, "-m", "longshore", "--help"], cwd=ROOT, capture_output=True, check=True)


class FirstUse(NamedTuple):
    """A first `longshore evaluate` after an install."""

    taken_s: float  # until its simulation starts
    silence_s: float  # the longest until then


def first_use() -> FirstUse:
    """Evaluate where nothing is compiled yet; what follows the start of the simulation is cut off.

    Raises:
        RuntimeError: If it ends without reporting that it starts.
    """
    line = [sys.executable, "-m", "longshore", "evaluate", "--cluster", "examples/hetero64.yaml", "--workloads", "1"]
    begin_s = last_s = time.perf_counter()
    silence_s, lines = 0.0, []
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "XDG_CACHE_HOME": folder}
        environment.pop("NUMBA_CACHE_DIR", None)  # it would go before
        with subprocess.Popen(
            line, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            start_new_session=True,
        ) as running:  # fmt: skip
            assert running.stderr is not None
            late = threading.Timer(FIRST_USE_LIMIT_S, os.killpg, (running.pid, signal.SIGKILL))
            late.start()
            try:
                for text in running.stderr:
                    now_s = time.perf_counter()
                    silence_s, last_s = max(silence_s, now_s - last_s), now_s
                    lines.append(text)
                    if SIMULATION_STARTED in text:
                        return FirstUse(now_s - begin_s, silence_s)
            finally:
                late.cancel()
                with suppress(ProcessLookupError):
                    os.killpg(running.pid, signal.SIGKILL)
    raise RuntimeError(f"longshore evaluate printed no {SIMULATION_STARTED!r}; its last lines:\n{''.join(lines[-5:])}")


def demo_start_s() -> float:
    """Return how long `make demo` takes until its simulation starts; what follows is cut off.

    Raises:
        RuntimeError: If it ends without reporting that.
    """
    begin_s = time.perf_counter()
    lines = []
    with subprocess.Popen(
        ["make", "demo"], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    ) as demo:
        assert demo.stdout is not None
        for line in demo.stdout:
            lines.append(line)
            if SIMULATION_STARTED in line:
                taken_s = time.perf_counter() - begin_s
                os.killpg(demo.pid, signal.SIGTERM)
                return taken_s
    raise RuntimeError(f"make demo printed no {SIMULATION_STARTED!r}; its last lines:\n{''.join(lines[-5:])}")


def measure() -> Iterator[Row]:
    """Yield the time of `longshore --help`, what a first use takes, and the start of a second `make demo`."""
    taken_s = medians({"help": lambda: seconds(show_help)}, HELP_RUNS)
    yield Row("longshore --help", taken_s["help"], "s", most=0.5)
    progress("longshore evaluate, with nothing compiled")
    first = first_use()
    yield Row("a first longshore evaluate, until its simulation starts", first.taken_s, "s", most=60)
    yield Row("a first longshore evaluate, its longest silence", first.silence_s, "s", most=2)
    progress("make demo, the first time")
    subprocess.run(["make", "demo"], cwd=ROOT, stdout=sys.stderr, check=True, timeout=DEMO_LIMIT_S)
    progress("make demo, the second time")
    yield Row("a second make demo, until its simulation starts", demo_start_s(), "s", most=10)


if __name__ == "__main__":
    main(measure)
