"""What all benchmarks share: rows with bars, the table, the JSON and the exit status."""

import argparse
import inspect
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).absolute().parent.parent
RESULTS = Path(__file__).absolute().parent / "results.json"
TIMES = {"s", "ms", "us", "min", "core-min"}
_LINE = "{:<58} {:>12} {:<12} {:<16} {}"


@dataclass(frozen=True, slots=True)
class Row:
    """One measured figure.

    Args:
        name: What was measured.
        value: The figure.
        unit: Its unit.
        least: It should be this or more; no such bar if left out.
        most: It should be this or less; no such bar if left out.
        timed: Whether the figure hangs on how fast the machine is; by its unit if left out.
    """

    name: str
    value: float
    unit: str
    least: float | None = None
    most: float | None = None
    timed: bool | None = None

    @property
    def is_timed(self) -> bool:
        """Whether the bar, if there is one, is that of a machine."""
        by_unit = self.unit.endswith("/s") or self.unit.partition("/")[0] in TIMES
        return bool(self.bar) and (by_unit if self.timed is None else self.timed)

    @property
    def bar(self) -> str:
        """The bar as text; empty for a figure that is shown for information."""
        if self.least is not None and self.most is not None:
            return f"{self.least:.4g} to {self.most:.4g}"
        if self.least is not None:
            return f">= {self.least:.10g}"
        return "" if self.most is None else f"<= {self.most:.10g}"

    @property
    def ok(self) -> bool:
        """Whether no bar is missed; a figure that is not a number misses every bar."""
        return self.is_met()

    def is_met(self, speed: float = 1.0) -> bool:
        """Say whether no bar is missed on a machine of a speed, of which 1 is the reference's.

        A machine of half the speed may take twice as long, and do half as much in a second.
        """
        share = speed if self.is_timed else 1.0
        above = self.least is None or self.value >= self.least * share
        return above and (self.most is None or self.value <= self.most / share)


Measure = Callable[[], Iterable[Row]]


class Calibration(NamedTuple):
    """How fast a machine does one thing, in millions a second."""

    what: str
    unit: str
    here: float
    reference: float  # of the machine whose bars of time ours are

    @property
    def row(self) -> Row:
        """The figure for the table."""
        return Row(f"calibration: {self.what}, reference {self.reference:.4g}", self.here, self.unit)


def calibration() -> list[Calibration]:
    """Return how fast the machine is at present."""
    from .calibration import REFERENCE, machine_speed  # compiled code, which few benchmarks have themselves

    speed = machine_speed()
    return [
        Calibration("compute-bound", "M steps/s", speed.steps_per_s / 1e6, REFERENCE.steps_per_s / 1e6),
        Calibration("memory-bound", "M reads/s", speed.reads_per_s / 1e6, REFERENCE.reads_per_s / 1e6),
    ]


def main(
    measure: Measure, arguments: Sequence[str] | None = None, calibrate: Callable[[], list[Calibration]] = calibration
) -> None:
    """Run a benchmark: print its rows as they come, write them where asked, and exit 1 if a bar is missed.

    The machine is calibrated just before the benchmark and, where a row has a bar of time, after it. By the means of
    the two, bars of time are scaled on a machine that is slower than the reference.

    Args:
        measure: Yields the rows.
        arguments: Of the command line; those of the process if left out.
        calibrate: Measures how fast the machine is.

    Raises:
        SystemExit: 0 if all bars are met, 1 if one is missed, 2 for wrong arguments.
    """
    parser = argparse.ArgumentParser(description=inspect.getdoc(inspect.getmodule(measure)))
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there as well")
    target: Path | None = parser.parse_args(arguments).json
    stamp = stamp_of_run()
    print(_LINE.format("name", "value", "unit", "bar", "ok"), flush=True)
    rows: list[Row] = []
    before = calibrate()
    for row in measure():
        rows.append(row)
        _print(row)
    speeds: list[Calibration] = []
    if any(row.is_timed for row in rows):
        speeds = [then._replace(here=(then.here + now.here) / 2) for then, now in zip(before, calibrate(), strict=True)]
    for speed in speeds:
        _print(speed.row)
    if target is not None:
        name = Path(inspect.getfile(measure)).stem
        write_results(target, stamp, {name: [_as_json(row) for row in (*rows, *(speed.row for speed in speeds))]})
    sys.exit(exit_status(rows, min((1.0, *(speed.here / speed.reference for speed in speeds)))))


def exit_status(rows: Sequence[Row], speed: float) -> int:
    """Return 1 if a bar is missed on a machine of a speed, of which 1 is the reference's."""
    excused = [row for row in rows if not row.ok and row.is_met(speed)]
    if excused:
        names = ", ".join(row.name for row in excused)
        progress(
            f"this machine has {speed:.0%} of the reference's speed at present, at which these bars are met: {names}"
        )
    return 0 if all(row.is_met(speed) for row in rows) else 1


def _print(row: Row) -> None:
    print(_LINE.format(row.name, f"{row.value:.6g}", row.unit, row.bar, row.ok if row.bar else ""), flush=True)


def stamp_of_run() -> dict[str, object]:
    """Return date, commit and machine of a run."""
    return {"date": datetime.now(UTC).isoformat(timespec="seconds"), "git": _commit(), "machine": _machine()}


def write_results(path: Path, stamp: Mapping[str, object], results: Mapping[str, object]) -> None:
    """Write a results file: the stamp of the run and the rows of each benchmark."""
    path.write_text(json.dumps({**stamp, "results": results}, indent=2) + "\n", encoding="utf-8")


def medians(parts: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, float]:
    """Return the median of what each part gives, the parts taking turns; a first call of each is not counted.

    Args:
        parts: Each call measures once and returns the figure.
        rounds: Calls of each part that count.
    """
    given: dict[str, list[float]] = {name: [] for name in parts}
    for counted in range(-1, rounds):
        progress("warming up" if counted < 0 else f"round {counted + 1} of {rounds}")
        for name, part in parts.items():
            value = part()
            if counted >= 0:
                given[name].append(value)
    return {name: statistics.median(values) for name, values in given.items()}


def seconds(call: Callable[[], object]) -> float:
    """Return how long a call takes."""
    begin_s = time.perf_counter()
    call()
    return time.perf_counter() - begin_s


def call_longshore(line: str, folder: Path, log: Path) -> tuple[float, float]:
    """Run `longshore` in a folder; return the wall time and the CPU time that it took, in seconds.

    What it writes goes to a log.

    Raises:
        RuntimeError: If it fails, with the end of what it wrote.
    """
    began = time.perf_counter()
    with log.open("wb") as written:
        process = subprocess.Popen(
            [sys.executable, "-m", "longshore", *line.split()], cwd=folder, stdout=written, stderr=written
        )
        _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)  # it is waited for already
    if process.returncode != 0:
        raise RuntimeError(f"longshore {line}: exit status {process.returncode}: {log.read_text()[-2000:]}")
    return time.perf_counter() - began, usage.ru_utime + usage.ru_stime


def progress(text: str) -> None:
    """Say on standard error what a long benchmark is at."""
    print(text, file=sys.stderr, flush=True)


def _as_json(row: Row) -> dict[str, object]:
    return {"name": row.name, "value": row.value, "unit": row.unit, "bar": row.bar, "ok": row.ok}


def _commit() -> str:
    """Return the short hash of the checkout, with `-dirty` if sources differ from it."""
    commit = _git("rev-parse", "--short", "HEAD")
    # What benchmarks store, and what is written about it, is no source.
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", "*.py", "pyproject.toml", "constraints.txt")
    return commit + ("-dirty" if changed else "") if commit else "unknown"


def _git(*arguments: str) -> str:
    """Return what git prints, nothing if there is no git or no repository."""
    try:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return ""
    return done.stdout.strip()


def _machine() -> dict[str, object]:
    return {
        "cpu": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "python": platform.python_version(),
    }


def _processor() -> str:
    """Return the processor's name, which Python itself does not know on Linux."""
    information = Path("/proc/cpuinfo")
    lines = information.read_text(encoding="utf-8").splitlines() if information.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
