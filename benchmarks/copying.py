"""A state of 100 MB that is copied to a member which joins, over a link of a known rate: the share of it that is used.

Members are on nodes in network namespaces of their own (`namespaces.py`); what leaves a node is shaped by `tc tbf`.
"""

import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from .harness import ROOT, Row, progress
from .namespaces import MANAGER, NAMESPACES, VARIABLE, Network, why_not
from .rings import RUNS, SEATS, Trial, warm_process

STATE_BYTES = 100e6
BYTES_PER_S = 50e6  # of each node's link, headers among them
STEPS = 16
BAR = 0.8


def measure_copies() -> Iterator[Row]:
    """Copy, and yield which share of the link's rate was used."""
    if why := why_not():
        progress(f"the copy of 100 MB over a link of a known rate is skipped: {why}")
        return
    runs = max(RUNS // 10, 1)
    command = [*NAMESPACES, sys.executable, "-m", "benchmarks.copying", str(runs)]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    seconds = json.loads(done.stdout.splitlines()[-1])
    took_s = statistics.median(seconds)
    share = STATE_BYTES / took_s / BYTES_PER_S
    yield Row("100 MB of state over a link of 50 MB/s: seconds, median", took_s, "s")
    yield Row("100 MB of state: share of the link's rate", share, "", least=BAR)


class Apart(Trial):
    """A ring whose members are on nodes of their own."""

    def environment(self, member: int) -> dict[str, str]:
        """Return the environment of a member: its node, and a model whose state with Adam's is 100 MB."""
        return super().environment(member) | {VARIABLE: Network.name(member), "STATE_BYTES": str(int(STATE_BYTES))}


async def copy_s(folder: Path, warm: Path) -> float:
    """Kill a member of a ring, and return the seconds that the copy to its spare took."""
    trial = Apart(folder, warm, "warm", steps=STEPS, host=MANAGER)
    return (await trial.run(signal.SIGKILL)).phases.copy_s


def main(runs: int) -> None:
    """Measure, in namespaces of this process's own."""
    network = Network(SEATS + 1)
    for node in range(SEATS + 1):
        network.shape(node, BYTES_PER_S)
    found = []
    with warm_process() as warm:
        for _ in range(runs):
            with tempfile.TemporaryDirectory(prefix="ring-") as folder:
                found.append(asyncio.run(copy_s(Path(folder), warm)))
    print(json.dumps(found))


if __name__ == "__main__":
    main(int(sys.argv[1]))
