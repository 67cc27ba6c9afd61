"""Offers members from a pool to a ring, or reports that there are none, as a scheduler does."""

import asyncio
from collections.abc import Callable

from longshore.ring.ring_client import RingClient
from longshore.ring.wire import MemberOffer, NoMemberOffer, SeatRequest

from .trial import Trial


async def offer_members(trial: Trial, most: int, may_start: Callable[[], bool] = lambda: True) -> None:
    """Fill the empty seats of a ring from a pool of at most `most` GPUs, until the ring is over.

    A GPU that was offered stays offered after a restart of the coordinator: a member is started once for each.
    """
    scheduler = RingClient(trial.folder, lambda: None)
    answered: SeatRequest | None = None
    offered = started = 0
    while not trial.launcher.is_over:
        want = scheduler.seat_request
        if want is not None and want.empty and want is not answered:
            missing = len(want.empty) - len(on_their_way(trial, want)) - (offered - started)
            if offered and missing < len(want.empty):  # a restarted coordinator does not know
                for rank in range(started, offered):
                    scheduler.send(MemberOffer(rank))
            for _ in range(min(missing, most - offered)):
                scheduler.send(MemberOffer(offered))
                offered += 1
                missing -= 1
            if missing > 0:
                scheduler.send(NoMemberOffer("no GPU is free"))
            answered = want
        while started < offered and may_start():
            trial.start(started)
            started += 1
        await asyncio.sleep(0.02)
    scheduler.close()


def on_their_way(trial: Trial, want: SeatRequest) -> set[int]:
    """Return the members that live and have no seat."""
    return {it for it in range(trial.next) if it not in want.order and it not in trial.launcher.exits}
