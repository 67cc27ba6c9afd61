"""How soon the command line answers, and how soon `make demo` is at work in a checkout that ran it before."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

from .harness import ROOT, Row, main, medians, progress, seconds

HELP_RUNS = 5
SIMULATION_STARTED = "(1 of "  # in what `longshore evaluate` says as it runs the first pair of order and policy
DEMO_LIMIT_S = 900.0


def show_help() -> None:
    """Run `longshore --help` in a process of its own."""
    subprocess.run([sys.executable, "-m", "longshore", "--help"], cwd=ROOT, capture_output=True, check=True)


def demo_start_s() -> float:
    """Return how long `make demo` takes until its simulation starts; what follows is cut off.

    Raises:
        RuntimeError: If it ends without having said so.
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
    raise RuntimeError(f"make demo never said {SIMULATION_STARTED!r}; its last lines:\n{''.join(lines[-5:])}")


def measure() -> Iterator[Row]:
    """Yield the time of `longshore --help` and the start of a second `make demo`."""
    taken_s = medians({"help": lambda: seconds(show_help)}, HELP_RUNS)
    yield Row("longshore --help", taken_s["help"], "s", most=0.5)
    progress("make demo, the first time")
    subprocess.run(["make", "demo"], cwd=ROOT, stdout=sys.stderr, check=True, timeout=DEMO_LIMIT_S)
    progress("make demo, the second time")
    yield Row("a second make demo, until its simulation starts", demo_start_s(), "s", most=10)


if __name__ == "__main__":
    main(measure)
