"""The tests themselves: how long both lanes take in a fresh clone, failures in stressed runs, seeded faults found.

`PARTS=times,stress,faults` chooses among the three. All of it takes hours; the faults go on where they were stopped.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from . import mutation
from .harness import ROOT, Row, main, progress

PARTS = os.environ.get("PARTS", "times,stress,faults").split(",")
LANES = {"test": 9.0, "test-full": 25.0}  # minutes on two idle cores
# Five whole runs of `make test`; tests/support/anywhere.py explains each way.
STRESSED = (
    ("background", "closed-umask", "no-language"),
    ("nohup", "no-home", "no-terminal"),
    ("copy", "nobody"),
    ("in-order", "busy"),
    ("signals-blocked", "no-name", "copy", "busy"),
)
MOST_S = 7200.0  # of one run


class Outcome(NamedTuple):
    """What a run of the tests came to."""

    minutes: float
    passed: int
    failed: int  # 1 where it broke off without a count


def fresh_clone(folder: Path) -> Path:
    """Return a clone of the checkout's commit, installed, with the data that tests read beside it if they are here."""
    clone = folder / "longshore"
    subprocess.run(["git", "clone", "-q", ROOT, clone], check=True, timeout=600)
    if (ROOT.parent / "shared").exists():
        (folder / "shared").symlink_to(ROOT.parent / "shared")
    progress("installing a fresh clone")
    subprocess.run(["make", ".venv/.stamp"], cwd=clone, check=True, timeout=MOST_S)
    return clone


def run_lane(clone: Path, lane: str, ways: Sequence[str] = ()) -> Outcome:
    """Run one lane of the tests of a clone, in the ways in which people start them."""
    line = ["make", lane]
    if ways:
        line = [".venv/bin/python", "-m", "tests.support.anywhere", ",".join(ways), *line]
    log = clone.parent / f"{lane}-{'-'.join(ways)}.log"
    progress(f"make {lane} {' '.join(ways)}, into {log}")
    began_s = time.monotonic()
    with log.open("w") as written:
        status = subprocess.run(line, cwd=clone, stdout=written, stderr=written, check=False, timeout=MOST_S).returncode
    minutes = (time.monotonic() - began_s) / 60.0
    counts = {
        word: int(number) for number, word in re.findall(r"(\d+) (passed|failed|errors?)", log.read_text()[-2000:])
    }
    failed = counts.get("failed", 0) + counts.get("error", 0) + counts.get("errors", 0)
    if status and not failed:
        failed = 1
    if failed:
        shutil.copy(log, Path(tempfile.gettempdir()) / f"longshore-suite-{log.name}")
    return Outcome(minutes, counts.get("passed", 0), failed)


def measure() -> Iterator[Row]:
    """Yield the rows of the parts that are asked for."""
    if unknown := set(PARTS) - {"times", "stress", "faults"}:
        sys.exit(f"PARTS has {', '.join(sorted(unknown))}; it should be some of times, stress and faults")
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        Path(folder).chmod(0o755)  # other users run what is in it
        clone = fresh_clone(Path(folder)) if {"times", "stress"} & set(PARTS) else Path()
        if "times" in PARTS:
            for lane, most in LANES.items():
                done = run_lane(clone, lane)
                yield Row(f"make {lane}, fresh clone, install aside", done.minutes, "min", most=most)
                yield Row(f"make {lane}: tests passed", done.passed, "tests")
                yield Row(f"make {lane}: tests failed", done.failed, "tests", most=0.0)
        if "stress" in PARTS:
            for ways in STRESSED:
                done = run_lane(clone, "test", ways)
                yield Row(f"failures, {', '.join(ways)}", done.failed, "tests", most=0.0)
                yield Row(f"minutes, {', '.join(ways)}", done.minutes, "min")
    if "faults" in PARTS:
        yield from mutation.measure()


if __name__ == "__main__":
    main(measure)
