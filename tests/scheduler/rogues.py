"""Policies that do what no policy should, as a package that can be installed; each behaves well for jobs of one GPU."""

from pathlib import Path

SOURCE = '''
import os
import sys
import time

import numpy as np

from longshore.agents.seen import Seen
from longshore.cluster.placing import take_gpu


def send(data, size=None):
    """Write to the scheduler as the policy's process does."""
    os.write(int(sys.argv[1]), (len(data) if size is None else size).to_bytes(8) + data)


class Rogue:
    about, waits = "does what no policy should", False

    def __init__(self, name, misbehave):
        self.name, self.misbehave = name, misbehave

    def place(self, sim, row):
        need = int(sim.state.need[row])
        if need > 1:
            self.misbehave(sim)
        if sim.state.need[row] == need:
            free = np.flatnonzero((sim.state.gpu_job[row] < 0) & (sim.state.gpu_down[row] == 0))
            for gpu in free[:need]:
                take_gpu(sim, row, int(gpu))
        return True

    def play(self, sim, scenarios):
        raise NotImplementedError


def hang(sim):
    time.sleep(1000.0)


def fork(sim):
    """Leave a child behind that holds the connection open."""
    if os.fork() == 0:
        time.sleep(1000.0)
    with open(os.environ["ROGUE_FILE"], "w") as file:
        file.write("forked")
    time.sleep(1000.0)


def die(sim):
    os.kill(os.getpid(), 9)


def raise_error(sim):
    raise RuntimeError("no idea\\n" * 100_000)


def take_too_few(sim):
    take_gpu(sim, 0, int(np.flatnonzero(sim.state.gpu_job[0] < 0)[0]))


def take_busy(sim):
    """Take what serves another job; the policy's own picture of the cluster is wrong from then on."""
    busy = sim.state.gpu_job[0] >= 0
    sim.state.gpu_job[0, busy] = -1
    for gpu in np.argsort(~busy, kind="stable")[: sim.state.need[0]]:
        take_gpu(sim, 0, int(gpu))


def forge(sim):
    send(b\'{"kind":"choice","number":1,"job":"nobody","gpus":[0,1]}\')


def babble(sim):
    send(b"\\x80\\x04not JSON")


def chat(sim):
    """Write where the scheduler writes."""
    print("chat " * 1000)
    os.write(1, b"chat")


def eat(sim):
    kept = []
    while True:
        kept.append(np.zeros(1 << 28))


def blur(sim):
    """See what is no number; see `Mixed`."""


class Mixed(Rogue):
    """Misbehaves in the way that the number of GPUs asked for says."""

    def __init__(self):
        super().__init__("mixed", self.by_gpus)

    def by_gpus(self, sim):
        self.blurred = sim.state.need[0] == 2
        (blur, raise_error, take_too_few, chat, eat)[int(sim.state.need[0]) - 2](sim)

    def last_seen(self):
        ones = np.ones((1, 2), dtype=np.float32)
        blurred, self.blurred = getattr(self, "blurred", False), False
        return Seen(ones * (np.nan if blurred else 1.0), ones > 0, ones * -0.7, np.zeros(1, dtype=np.int32))


NAMES = "hang fork die raise_error take_busy forge babble".split()
globals().update({f"POLICY_{name}": Rogue(name, globals()[name]) for name in NAMES})
POLICY_mixed = Mixed()
'''
NAMES = ("hang", "fork", "die", "raise_error", "take_busy", "forge", "babble", "mixed")


def install_rogues(folder: Path) -> None:
    """Write the package into a folder; whoever has that on its path finds the policies `rogue-NAME`."""
    (folder / "rogue_policies.py").write_text(SOURCE, encoding="utf-8")
    information = folder / "rogue_policies-1.2.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: rogue-policies\nVersion: 1.2\n")
    points = [f"rogue-{name} = rogue_policies:POLICY_{name}" for name in NAMES]
    points.append("rogue-none = rogue_policies:NAMES")
    (information / "entry_points.txt").write_text("\n".join(["[longshore.policies]", *points, ""]))
