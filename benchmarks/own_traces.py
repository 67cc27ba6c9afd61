"""What `longshore train --trace T --cluster examples/hetero64.yaml` gives for each real trace, and how long it takes.

Its policy runs the jobs that came later, against `patient` tuned on what was trained on. The runs are kept in `FOLDER`,
and the command goes on where it was stopped. Two train at once, each on one core.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from math import isnan
from pathlib import Path
from typing import NamedTuple

from .harness import ROOT, Row, main, progress
from .real_windows import traces

FOLDER = ROOT / "runs" / "own-traces"
CLUSTER = ROOT / "examples" / "hetero64.yaml"
AT_ONCE = 2
MOST_MINUTES = 15.0


class Trained(NamedTuple):
    """A run that has ended."""

    minutes: float  # of the wall, with another run beside it
    percent: float  # of the mean JCT, against `patient`
    low: float  # of its 95 % interval; not a number with one window
    high: float


def trained_on(name: str, path: Path) -> Trained:
    """Train on one trace as a user does, or go on with that; return what came of it."""
    folder = FOLDER / name
    command = [sys.executable, "-m", "longshore", "train", "--trace", str(path), "--cluster", str(CLUSTER)]
    done = subprocess.run(
        [*command, "--threads", "1", "--logdir", str(folder)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{name}: {done.stderr[-1000:]}")
    (run,) = (it.parent for it in folder.glob("*/later.json"))
    last = json.loads((run / "later.json").read_text())[-1]
    ends = (float("nan") if last[end] is None else float(last[end]) for end in ("low", "high"))
    progress(f"{name}: {done.stdout.strip().splitlines()[-1]}")
    return Trained(json.loads((run / "spent.json").read_text())["wall_s"] / 60.0, float(last["percent"]), *ends)


def measure() -> Iterator[Row]:
    """Train what is not there, and yield each comparison."""
    if not traces():
        progress("the real traces are not there: nothing to measure")
        return
    with ThreadPoolExecutor(AT_ONCE) as pool:
        found = dict(zip(traces(), pool.map(trained_on, traces(), traces().values()), strict=True))
    for name, it in found.items():
        yield Row(f"{name}: training", it.minutes, "min", most=MOST_MINUTES)
        yield Row(f"{name}: mean JCT of later jobs against `patient`", it.percent, "%")
        yield Row(f"{name}: mean JCT, lower end", it.low, "%", most=None if isnan(it.low) else 0.0)
        yield Row(f"{name}: mean JCT, upper end", it.high, "%")


if __name__ == "__main__":
    main(measure)
