"""A desk of a ring that brings members from a pool, or says that there are none, as a scheduler does."""

import asyncio
from collections.abc import Callable

from longshore.ring.ring_client import RingClient
from longshore.ring.wire import MemberOffer, NoMemberOffer, SeatRequest

from .trial import Trial


async def bring(trial: Trial, most: int, may_start: Callable[[], bool] = lambda: True) -> None:
    """Fill the empty seats of a ring from a pool of so many GPUs, until the ring is over.

    A GPU that was promised stays promised, whoever coordinates: so a member is started once for each.
    """
    desk = RingClient(trial.folder, lambda: None, trial.folder / "nothing")
    answered: SeatRequest | None = None
    promised = started = 0
    while not trial.launcher.is_over:
        want = desk.want
        if want is not None and want.empty and want is not answered:
            missing = len(want.empty) - len(on_their_way(trial, want)) - (promised - started)
            if promised and missing < len(want.empty):  # a coordinator that has been started again does not know
                desk.send(MemberOffer(-1, "pool", promised - 1))
            for _ in range(min(missing, most - promised)):
                desk.send(MemberOffer(-1, "pool", promised))
                promised += 1
                missing -= 1
            if missing > 0:
                desk.send(NoMemberOffer("no GPU is free"))
            answered = want
        while started < promised and may_start():
            trial.start()
            started += 1
        await asyncio.sleep(0.02)
    desk.close()


def on_their_way(trial: Trial, want: SeatRequest) -> set[int]:
    """Return the members that live and have no seat."""
    return {it for it in range(trial.next) if it not in want.order and it not in trial.launcher.exits}
