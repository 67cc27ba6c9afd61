"""Who takes which empty seat.

At the start the member of number k has seat k, as long as it may come; later the spare of the smallest number is first.

The process that coordinates imports this module: standard library only.
"""

from collections.abc import Mapping

from .standing import NOBODY, Durable, Member
from .wire import Hello


def fill(durable: Durable, members: Mapping[int, Member], *, gathers: bool) -> None:
    """Give empty seats to members that are connected and have none.

    Args:
        durable: Holds the seats.
        members: All that are not gone.
        gathers: Whether members may still come that the ring was made for.
    """
    holders = durable.holders
    spares = sorted(it.number for it in members.values() if it.connected and it.number not in holders)
    for seat in [it for it, holder in enumerate(holders) if holder == NOBODY]:
        if durable.has_run:
            taker = spares[0] if spares else NOBODY
        elif seat in spares:
            taker = seat
        elif _own_may_come(durable, seat, gathers=gathers):
            taker = NOBODY
        else:  # one whose own seat is not waiting for it
            taker = next((it for it in spares if it >= len(holders) or holders[it] != NOBODY), NOBODY)
        if taker != NOBODY:
            spares.remove(taker)
            holders[seat] = taker
            durable.tokens[str(taker)] = members[taker].token


def refusal_of(hello: Hello, durable: Durable, members: Mapping[int, Member]) -> str:
    """Return why a process is no member of the ring, "" if it is one."""
    member = members.get(hello.member)
    if hello.member < 0:
        return f"{hello.member} is no number of a member"
    if reason := durable.gone.get(str(hello.member), ""):
        return reason
    if durable.phase.is_over:
        return durable.outcome
    if member is None:
        return "" if hello.fresh else "it comes from another ring"
    return "" if member.token == hello.token else "another process is that member"


def awaited(durable: Durable, *, gathers: bool) -> bool:
    """Say whether an empty seat waits for the member of its number."""
    empty = [seat for seat, holder in enumerate(durable.holders) if holder == NOBODY]
    return any(_own_may_come(durable, seat, gathers=gathers) for seat in empty)


def _own_may_come(durable: Durable, seat: int, *, gathers: bool) -> bool:
    return gathers and seat not in durable.holders and str(seat) not in durable.gone
