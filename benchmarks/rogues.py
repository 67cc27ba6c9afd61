"""Policies that do what no policy should, found by name once `install` has registered them.

Each places jobs of one GPU as it should.
"""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from longshore.agents.protocol import DecisionRecord
from longshore.cluster.placing import take_gpu
from longshore.cluster.state.state import Simulation

LEAVES = "LONGSHORE_ROGUE_FILE"  # environment variable: file that `fork` writes once its child runs
VERSION = "longshore-rogues 1.2"


class Rogue:
    """Misbehaves in one way.

    Args:
        name: Of the way.
        misbehave: What it does at the decision about a job of several GPUs, before it picks them if it still has to.
    """

    about, waits = "does what no policy should", False

    def __init__(self, name: str, misbehave: Callable[[Simulation], None]) -> None:
        self.name, self.misbehave = name, misbehave

    def place(self, sim: Simulation, row: int) -> bool:
        """Pick the first free GPUs, or misbehave."""
        need = int(sim.state.need[row])
        if need > 1:
            self.misbehave(sim)
        if sim.state.need[row] == need:
            free = np.flatnonzero((sim.state.gpu_job[row] < 0) & (sim.state.gpu_down[row] == 0))
            for gpu in free[:need]:
                take_gpu(sim, row, int(gpu))
        return True

    def run(self, sim: Simulation, scenarios: NDArray[np.int64]) -> None:
        """Do nothing."""


def _send(data: bytes) -> None:
    """Write to the scheduler as a policy's process does."""
    os.write(int(sys.argv[1]), len(data).to_bytes(8) + data)


def _hang(sim: Simulation) -> None:
    time.sleep(1000.0)


def _fork(sim: Simulation) -> NoReturn:
    """Leave a child behind that holds the connection open."""
    if os.fork() == 0:
        time.sleep(1000.0)
    if LEAVES in os.environ:
        Path(os.environ[LEAVES]).write_text("forked", encoding="ascii")
    while True:
        time.sleep(1000.0)


def _die(sim: Simulation) -> None:
    os.kill(os.getpid(), 9)


def _raise_error(sim: Simulation) -> None:
    raise RuntimeError("no idea\n\x1b[31m" * 100_000)


def _take_too_few(sim: Simulation) -> None:
    take_gpu(sim, 0, int(np.flatnonzero(sim.state.gpu_job[0] < 0)[0]))


def _take_busy(sim: Simulation) -> None:
    """Take what serves another job; the policy's own picture of the cluster is wrong from then on."""
    busy = sim.state.gpu_job[0] >= 0
    sim.state.gpu_job[0, busy] = -1
    for gpu in np.argsort(~busy, kind="stable")[: sim.state.need[0]]:
        take_gpu(sim, 0, int(gpu))


def _forge(sim: Simulation) -> None:
    """Answer by itself, to the second question: the first message is the cluster."""
    _send(b'{"kind":"choice","number":3,"job":"nobody","gpus":[0,1]}')


def _babble(sim: Simulation) -> None:
    _send(b"\x80\x04not JSON")


def _chat(sim: Simulation) -> None:
    """Write where the scheduler writes."""
    print("chat " * 10, flush=True)
    os.write(1, b"chat")


def _eat(sim: Simulation) -> NoReturn:
    kept = []
    while True:
        kept.append(np.zeros(1 << 28))


def _blur(sim: Simulation) -> None:
    """Go on; what it sees then is no number."""


class Mixed(Rogue):
    """Misbehaves in a way that depends on the number of requested GPUs, from 2 to 6."""

    WAYS = (_blur, _raise_error, _take_too_few, _chat, _eat)

    def __init__(self) -> None:
        super().__init__("mixed", self._by_gpus)
        self.gpus = 0

    def place(self, sim: Simulation, row: int) -> bool:
        """Pick the first free GPUs, or misbehave."""
        self.gpus = int(sim.state.need[row])
        return super().place(sim, row)

    def _by_gpus(self, sim: Simulation) -> None:
        self.WAYS[min(self.gpus - 2, len(self.WAYS) - 1)](sim)

    def last_decision(self) -> DecisionRecord:
        """Return an impossible observation, or a plain one."""
        ones = np.ones((1, 2), dtype=np.float32)
        seen = ones * np.float32(np.nan) if self.gpus == 2 else ones
        return DecisionRecord(seen, ones > 0, np.log(ones / 2), np.zeros(1, dtype=np.int32))


HANG, FORK, DIE = Rogue("hang", _hang), Rogue("fork", _fork), Rogue("die", _die)
RAISE, BUSY = Rogue("raise", _raise_error), Rogue("busy", _take_busy)
FORGE, BABBLE, MIXED = Rogue("forge", _forge), Rogue("babble", _babble), Mixed()
NAMES = ("hang", "fork", "die", "raise", "busy", "forge", "babble", "mixed")


def install(folder: Path) -> None:
    """Write a folder that registers the policies, as `rogue-NAME`, for processes that have it on the path."""
    information = folder / "longshore_rogues-1.2.dist-info"
    information.mkdir()
    name, version = VERSION.split()
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    points = [f"rogue-{name} = benchmarks.rogues:{name.upper()}" for name in NAMES]
    points.append("rogue-none = benchmarks.rogues:NAMES")
    (information / "entry_points.txt").write_text("\n".join(["[longshore.policies]", *points, ""]))
