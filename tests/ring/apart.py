"""A ring whose members are on nodes of their own, in network namespaces, while links are cut: run by test_apart.py.

    unshare --net --mount --pid --fork --mount-proc --kill-child python -m tests.ring.apart CASE FOLDER

The outcome is written to FOLDER/outcome.pickle.
"""

import asyncio
import pickle
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from benchmarks.namespaces import Network
from longshore.ring.membership import RingLimits

from .trial import Outcome, Trial, run_ring, warm_process

SEATS, STEPS, LOST = 4, 400, 2
ALL_NODES = tuple(range(SEATS + 1))


def network_of(trial: Trial) -> Network:
    assert trial.network is not None
    return trial.network


async def start(trial: Trial) -> None:
    """Wait until the ring runs and the spare has connected."""
    await trial.reached(10)
    await trial.spare_joined(SEATS)


async def unplugged(trial: Trial) -> None:
    """A node is cut off from all others; its processes cannot be killed."""
    await start(trial)
    network_of(trial).unplug(LOST)


async def cut_off_from_manager(trial: Trial) -> None:
    """A node is cut off from the manager alone; the ring could continue with it."""
    await start(trial)
    network_of(trial).cut(LOST)


async def cut_pair(trial: Trial) -> None:
    """Two nodes cannot reach each other any more; both reach all others."""
    await start(trial)
    network_of(trial).cut(1, LOST)


def manager_cut_for(seconds: float) -> Callable[[Trial], Awaitable[None]]:
    """The manager is cut off from all nodes for some time."""

    async def play(trial: Trial) -> None:
        await start(trial)
        for node in ALL_NODES:
            network_of(trial).cut(node)
        await asyncio.sleep(seconds)
        for node in ALL_NODES:
            network_of(trial).mend(node)

    return play


CASES: dict[str, Callable[[Trial], Awaitable[None]]] = {
    "unplugged": unplugged,
    "cut off from the manager": cut_off_from_manager,
    "cut pair": cut_pair,
    "manager cut for 5 s": manager_cut_for(5.0),
    "manager cut for 30 s": manager_cut_for(30.0),
}


# The launcher cannot reach these.
AWAY = {"unplugged": [LOST], "cut off from the manager": [LOST], "manager cut for 30 s": ALL_NODES}
LIMITS = RingLimits(stall_s=8.0, frozen_s=40.0)


def main(arguments: Sequence[str]) -> None:
    """Play a case."""
    case, folder = arguments[0], Path(arguments[1])
    network = Network(len(ALL_NODES))
    with warm_process() as warm:
        found: Outcome = run_ring(
            folder, warm, seats=SEATS, spares=1, steps=STEPS, pause_s=0.05, during=CASES[case], network=network,
            checkpoints=folder / "checkpoints", limits=LIMITS,
            away=AWAY.get(case, ()),
        )  # fmt: skip
    (folder / "outcome.pickle").write_bytes(pickle.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1:])
