"""Who takes which empty seat, and who is waited for.

At the start the member of number k has seat k, as long as it may come; later the spare of the smallest number is first.

The process that coordinates imports this module: standard library only.
"""

import math
from collections.abc import Mapping

from .settings import Limits
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
    if NOBODY not in holders:
        return
    spares = waiting(durable, members)
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
            durable.take_seat(seat, taker, members[taker].token)


def waiting(durable: Durable, members: Mapping[int, Member]) -> list[int]:
    """Return the members that are connected and may take a seat: those that were relieved as slow may not."""
    return sorted(it.number for it in members.values() if it.connected and str(it.number) not in durable.tokens)


def refusal_of(hello: Hello, durable: Durable, members: Mapping[int, Member]) -> str:
    """Return why a process is no member of the ring, "" if it is one."""
    member = members.get(hello.member)
    if hello.member < 0:
        return f"{hello.member} is no number of a member"
    if str(hello.member) in durable.gone:
        return durable.gone[str(hello.member)] or "it is gone"
    if durable.phase.is_over:
        return durable.outcome
    if member is None:
        return "" if hello.fresh else "it comes from another ring"
    return "" if member.token == hello.token else "another process is that member"


def _awaited(durable: Durable, *, gathers: bool) -> bool:
    """Say whether an empty seat waits for the member of its number."""
    empty = [seat for seat, holder in enumerate(durable.holders) if holder == NOBODY]
    return any(_own_may_come(durable, seat, gathers=gathers) for seat in empty)


def _own_may_come(durable: Durable, seat: int, *, gathers: bool) -> bool:
    return gathers and not durable.has_seat(seat) and str(seat) not in durable.gone


class Expected:
    """Members that were promised or started and have not said a word yet.

    The ring waits for one that has just been started or promised. One that is still silent long after its start hangs:
    before it has connected nobody else would ever notice.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._awaited: dict[int, float] = {}  # until when the ring waits for each
        self._started: dict[int, float] = {}  # when a launcher first said that it starts each
        self._slowest_s: float | None = None  # of those that came
        self.has_desk = self.none_coming = False  # somebody brings members; and has said that nobody comes
        self.awaits_until_s = -math.inf  # for so long somebody is waited for of whom nobody has said that they come

    def promise(self, number: int, now_s: float) -> None:
        """Somebody comes; NOBODY is one whose number its launcher will say."""
        self._awaited[number] = now_s + self._limits.coming_s

    def start(self, number: int, now_s: float) -> None:
        """A launcher starts a member; it says so again whenever it connects."""
        self.promise(number, now_s)
        self._started.setdefault(number, now_s)

    def came(self, number: int, now_s: float) -> None:
        """A member is there."""
        if number in self._started:
            self._slowest_s = max(self._slowest_s or 0.0, now_s - self._started[number])
            self.drop(NOBODY)  # a promise that was repeated once its launcher had spoken
        self.drop(number)

    def drop(self, number: int) -> None:
        """A member will not come any more."""
        self._awaited.pop(number, None)
        self._started.pop(number, None)

    def delay(self, seconds: float) -> None:
        """Nobody could be heard for some time."""
        self._started = {number: at_s + seconds for number, at_s in self._started.items()}

    def may_come(self, durable: Durable, now_s: float, since_s: float) -> bool:
        """Say whether to wait for somebody who takes an empty seat.

        Args:
            durable: Holds the seats.
            now_s: The time.
            since_s: How long the round has lasted.
        """
        if now_s < self.awaits_until_s or any(until_s > now_s for until_s in self._awaited.values()):
            return True
        if not durable.has_run and _awaited(durable, gathers=since_s <= self._limits.gather_s):
            return True
        return self.has_desk and not self.none_coming and since_s <= self._limits.patience_s

    def started(self) -> list[int]:
        """Return members that were started and said nothing."""
        return list(self._started)

    def wordless(self, now_s: float) -> list[int]:
        """Return members that were started and said nothing, if it is time to tell people so."""
        is_time = any(now_s - at_s > self._limits.hint_s for at_s in self._started.values())
        return self.started() if is_time else []

    def overdue(self, now_s: float, *, has_run: bool) -> list[int]:
        """Return members that were started and said nothing for so long that they never will.

        A script may read its data for minutes before it says a word, so it is judged by how long others took.
        """
        limit_s = self._limits.gather_s
        if has_run and self._slowest_s is not None:
            limit_s = min(limit_s, max(2 * self._limits.coming_s, 3 * self._slowest_s))
        return [number for number, at_s in self._started.items() if now_s - at_s > limit_s]
