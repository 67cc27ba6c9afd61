"""`python -m longshore.ring` that gets Ctrl-C or a signal: all processes end at any moment, with one line."""

import os
import random
import signal
import sys
import time
from pathlib import Path

import pytest

from tests.support import processes
from tests.support.processes import PYTHON_PATH

from .tiny import tiny

PATIENCE_S = 25.0  # less than the grace of members that ignore a signal
SLOW = tiny("torch.manual_seed(0)", until="10**9")
IGNORES_SIGTERM = """
import pathlib, signal, time
signal.signal(signal.SIGTERM, lambda *_: None)
pathlib.Path(f"ignores-{time.time_ns()}").touch()
time.sleep(1000)
"""


def begun(folder: Path, script: str, *options: str) -> processes.Process[str]:
    """Start a ring, and return it once signals do not meet the bare interpreter any more."""
    (folder / "train.py").write_text(script)
    variables = {"PYTHONPATH": PYTHON_PATH, "OMP_NUM_THREADS": "1", "MARK": str(folder)}
    command = [
        sys.executable,
        "-m",
        "longshore.ring",
        "--seats",
        "3",
        "--spares",
        "1",
        *options,
        "--",
        "python",
        "train.py",
    ]
    run = processes.start(
        command, cwd=folder, env=os.environ | variables, text=True, stdout=processes.PIPE, stderr=processes.PIPE
    )
    while not _catches(run.pid, signal.SIGTERM):
        assert run.poll() is None
        time.sleep(0.001)
    return run


def _catches(pid: int, number: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    caught = next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught, 16) >> (number - 1) & 1)


def alive(folder: Path) -> list[str]:
    """Return the command lines of all processes that come from a run in this folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if f"\0MARK={folder}\0".encode() in b"\0" + (process / "environ").read_bytes():
                found.append((process / "cmdline").read_text())
        except OSError:
            continue
    return found


def check(run: processes.Process[str], folder: Path, number: int) -> None:
    """All processes have ended, and the log has one line."""
    _, log = run.communicate(timeout=PATIENCE_S)
    assert run.returncode == 128 + number
    name = signal.Signals(number).name
    other = [line for line in log.splitlines() if not line.startswith("longshore.ring: generation 1")]
    assert other == [f"longshore.ring: {name}: all members are ended"]
    assert alive(folder) == []


@pytest.mark.full
@pytest.mark.parametrize(
    ("number", "options"),
    [
        (signal.SIGINT, ()),
        pytest.param(signal.SIGTERM, (), marks=pytest.mark.full),
        pytest.param(signal.SIGINT, ("--no-warm",), marks=pytest.mark.full),
        pytest.param(signal.SIGTERM, ("--no-warm",), marks=pytest.mark.full),
    ],
    ids=["ctrl-c", "sigterm", "ctrl-c, cold", "sigterm, cold"],
)
def test_a_ring_ends_at_any_moment(tmp_path: Path, number: int, options: tuple[str, ...]) -> None:
    draw = random.Random(number)
    for at in range(8):
        folder = tmp_path / str(at)
        folder.mkdir()
        run = begun(folder, SLOW, *options)
        time.sleep(draw.uniform(0.0, 0.5 if at % 2 else 5.0))
        run.send_signal(number)
        check(run, folder, number)


@pytest.mark.full
@pytest.mark.parametrize("options", [(), ("--no-warm",)], ids=["warm", "cold"])
def test_members_that_take_their_time_to_end_are_killed_by_the_second_signal(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    run = begun(tmp_path, IGNORES_SIGTERM, *options)
    while len(list(tmp_path.glob("ignores-*"))) < 4:
        assert run.poll() is None
        time.sleep(0.05)
    run.send_signal(signal.SIGINT)
    time.sleep(0.5)
    assert run.poll() is None  # they may have something to save
    run.send_signal(signal.SIGINT)
    check(run, tmp_path, signal.SIGINT)
