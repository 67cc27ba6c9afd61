"""The driver that starts attempts on a Ray cluster and holds their GPUs there. Standard library and Ray only.

One runs for each scheduler, as a job of Ray. It keeps nothing to itself: a new one goes on where another was killed,
and if there are two of them for a while, the claim of each attempt lets one start it.
"""

import os
import time
import traceback
from pathlib import Path

from .cluster import RayCluster
from .holding import Holding
from .names import ALIVE, QUEUE

_LOOK_AGAIN_S = 0.1
_REST_S = 5.0  # after something went wrong with an attempt


def launch_all(folder: str) -> int:
    """Start the attempts that a scheduler wants, for as long as Ray lives.

    Args:
        folder: Of the scheduler.

    Raises:
        OSError: If it cannot be used.
    """
    cluster = RayCluster()
    held: dict[str, Holding] = {}
    rest_until_s: dict[str, float] = {}
    while True:
        os.utime(f"{folder}/{ALIVE}")
        # Of those that are held some may have left the queue: another launcher has seen their ends first.
        for name in held.keys() | os.listdir(f"{folder}/{QUEUE}"):  # noqa: PTH208 - names are wanted
            # What begins with a dot is about to get its name.
            if name.startswith(".") or time.monotonic() < rest_until_s.get(name, 0.0):
                continue
            try:
                _tend(cluster, folder, name, held)
            except Exception:  # Nothing about one attempt is a reason to leave the others alone.
                print(f"{name}: {traceback.format_exc()}", flush=True)  # noqa: T201 - to the log of Ray's job
                rest_until_s[name] = time.monotonic() + _REST_S
        time.sleep(_LOOK_AGAIN_S)


def _tend(cluster: RayCluster, folder: str, name: str, held: dict[str, Holding]) -> None:
    wanted, path = Path(folder, QUEUE, name), Path(folder, "attempts", name)
    if name not in held:
        if not (path / "spec.json").exists():  # It is over and was forgotten.
            wanted.unlink(missing_ok=True)
            return
        held[name] = Holding(cluster, str(path))
    # It is forgotten only when Ray has what it gave: whatever goes wrong before is tried again.
    if held[name].tend() and held[name].free():
        del held[name]
        wanted.unlink(missing_ok=True)
