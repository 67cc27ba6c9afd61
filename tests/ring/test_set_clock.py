"""A ring while the wall clock of all its processes is set by an hour: whatever lasts goes by another clock."""

import ast
import asyncio
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import longshore
from longshore.ring.membership import RingLimits
from tests.scheduler.set_clock import SetClock
from tests.support import processes

from .trial import Outcome, Trial, assert_as_undisturbed, run_ring, warm_process

HOUR_S = 3600
SILENCE_S = 3.0  # until a silent member is declared gone


@pytest.fixture
def clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SetClock:
    """The clock of all processes that are started from here on."""
    (tmp_path / "clock").mkdir()
    it = SetClock(tmp_path / "clock")
    for name, value in it.environment.items():
        monkeypatch.setenv(name, value)
    return it


@pytest.fixture
def warm_and_set(clock: SetClock) -> Iterator[Path]:
    with warm_process() as path:
        yield path


def test_the_clock_that_is_set_is_that_of_other_processes(clock: SetClock) -> None:
    clock.set(HOUR_S)
    clocks = processes.run([sys.executable, "-c", "import time; print(time.time(), time.monotonic())"],
                          env=dict(os.environ), capture_output=True, check=True)  # fmt: skip
    wall_s, passed_s = map(float, clocks.stdout.split())
    assert HOUR_S - 60.0 < wall_s - time.time() < HOUR_S + 60.0
    assert abs(passed_s - time.monotonic()) < 60.0


@pytest.mark.full
@pytest.mark.parametrize("set_s", [HOUR_S, -HOUR_S])
def test_a_wall_clock_that_is_set_is_no_fault_and_hides_none(
    clock: SetClock, warm_and_set: Path, undisturbed: Outcome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    set_s: int,
) -> None:  # fmt: skip
    real, seen = time.time, dict[str, object]()

    async def set_it(trial: Trial) -> None:
        await trial.reached(5)
        clock.set(set_s)
        monkeypatch.setattr(time, "time", lambda: real() + set_s)  # this process launches the members
        until_s = time.monotonic() + 2 * SILENCE_S
        while time.monotonic() < until_s:
            await asyncio.sleep(0.1)
        seen["before"] = await trial.report()
        trial.send(1, signal.SIGSTOP)

    found = run_ring(
        tmp_path, warm_and_set, spares=1, steps=30, pause_s=0.4, during=set_it, limits=RingLimits(silence_s=SILENCE_S)
    )
    assert_as_undisturbed(found, undisturbed)
    assert getattr(seen["before"], "generation", 0) == 1  # for twice as long as a member may be silent
    assert (list(found.declared), found.generation()) == ([1], 2)
    told_s = [line["at"] for line in found.of("step")]
    assert max(told_s) - min(told_s) > HOUR_S / 2  # the members saw another clock


PACKAGE = Path(longshore.__file__).parent
BY_NO_WALL_CLOCK = [*(PACKAGE / "ring").rglob("*.py"), PACKAGE / "scheduler" / "health" / "monitor.py"]


@pytest.mark.parametrize("path", BY_NO_WALL_CLOCK, ids=lambda it: str(it.relative_to(PACKAGE)))
def test_nothing_of_a_ring_and_of_leases_reads_the_wall_clock(path: Path) -> None:
    tree = ast.parse(path.read_text())
    read = {ast.unparse(it) for it in ast.walk(tree) if isinstance(it, ast.Attribute)}
    imported = {name.name for it in ast.walk(tree) if isinstance(it, ast.Import | ast.ImportFrom) for name in it.names}
    of_time = {it for it in read if it.startswith("time.")}
    assert of_time <= {"time.monotonic", "time.sleep"}
    assert not imported & {"datetime", "monotonic", "localtime", "gmtime"}
