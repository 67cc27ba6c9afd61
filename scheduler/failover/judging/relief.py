"""When a slow member is relieved of its work, and when it has it back.

A member that all others wait for is *relieved*: a member without a seat, its *backup*, takes its seat. The slow one
stays, and now and then computes a shard for nothing. Once it is well, it has its seat again and the backup may go. It
all happens between two steps, by a round as at a fault. Source: SPEC P3.

The process that coordinates imports this module: standard library only.
"""

import math
from collections.abc import Mapping
from typing import Final, NamedTuple

from ..seating import waiting
from ..settings import Limits
from ..standing import NOBODY, Durable, Member, Phase
from ..wire import Message, Relieved
from .slow import Longer, far_longer, median

WELL: Final = 1.5  # times the median of the others: who computes no longer than that is well again
UNKNOWN_S: Final = 60.0  # that a change costs, until one was seen
BETWEEN_S: Final = 1.0  # two looks: members tell of their steps as often


class Change(NamedTuple):
    """Who sits where has changed."""

    words: str
    begins: bool  # a round
    gone: int = NOBODY  # a member that is to be declared gone, for the same reason
    outbox: tuple[tuple[int, Message], ...] = ()  # what is told to whom


class Relief:
    """Judges how fast members are, once a second.

    Args:
        limits: How many steps count.
        backups: Members that may be relieved at the same time.
        spares: Members that the ring was started with beside its seats: they stay.
    """

    def __init__(self, limits: Limits, *, backups: int = 0, spares: int = 0) -> None:
        self._limits, self._backups, self._spares = limits, backups, spares
        self.ratios: dict[int, float] = {}  # of members that compute far longer: times the others'
        self.slow: list[Longer] = []  # seated members whose backups gain more than a change costs, the slowest first
        self._well: list[int] = []  # relieved members that are so no more
        self._looked_s, self._idle_since_s = -math.inf, math.inf  # inf until the first look

    def look(self, durable: Durable, members: Mapping[int, Member], now_s: float) -> None:
        """Judge all members anew, if the last time is long enough ago."""
        if now_s - self._looked_s < BETWEEN_S:
            return
        self._looked_s, self._idle_since_s = now_s, min(self._idle_since_s, now_s)
        self.slow, self._well = [], []
        seated = [members[it] for it in durable.holders if it != NOBODY]
        if durable.phase is not Phase.RUNNING or not all(it.ran and not it.done for it in seated):
            self._idle_since_s = now_s
            return
        usual_s = {it.number: time_s for it in seated if (time_s := usual(it, self._limits.slow_steps)) is not None}
        step, cost_s = max(it.step for it in seated), durable.cost_s or UNKNOWN_S
        longer = sorted(far_longer(usual_s), key=lambda it: -it.compute_s)
        self.ratios = {it.number: it.compute_s / it.others_s for it in longer if it.others_s > 0.0}
        left = max(max(it.until for it in seated) - step, 0)
        may_be = max(self._backups - len(durable.relieved), 0)
        rest_s = max((it.compute_s for it in longer[may_be:]), default=0.0)  # for whom all wait then
        self.slow = [it for it in longer[:may_be] if (it.compute_s - max(it.others_s, rest_s)) * left > cost_s]
        others_s = median(sorted(usual_s.values())) if usual_s else 0.0
        if others_s * left > cost_s:  # else the ring is done sooner
            self._well = [it for it in map(int, durable.relieved) if self._is_well(members[it], others_s, step)]
        if self.slow or NOBODY in durable.holders or len(members) <= self._wanted(durable):
            self._idle_since_s = now_s

    def change(self, durable: Durable, members: Mapping[int, Member], now_s: float) -> Change | None:
        """Change who sits where in a ring that runs, if that is due, and return what follows of it."""
        if not self._backups:
            return None
        for number in self._well:
            if str(number) in durable.relieved and members[number].connected:
                return self._reinstate(durable, members, number)
        spares = waiting(durable, members)
        for it in self.slow:
            if spares and durable.has_seat(it.number):
                return _relieve(durable, members, it, spares[0])
        if spares and now_s - self._idle_since_s > self._limits.coming_s:
            self._idle_since_s = now_s
            return Change("no backup is needed any more", begins=False, gone=spares[-1])
        return None

    def asks_for(self, durable: Durable, members: Mapping[int, Member]) -> list[int]:
        """Return seated members in whose place somebody else is to compute, while nobody is there who could."""
        slow = [it.number for it in self.slow if durable.has_seat(it.number)]
        return [] if not slow or waiting(durable, members) else slow

    def _reinstate(self, durable: Durable, members: Mapping[int, Member], number: int) -> Change:
        stays = len(members) < self._wanted(durable)
        seat = durable.reinstate(number)
        backup, member = durable.holders[seat], members[number]
        member.compute_s.clear()
        if backup == NOBODY or stays:
            return Change(f"member {number} is well again, and waits for a seat", begins=False)
        durable.take_seat(seat, number, member.token)
        words = f"member {number} is well again and has its seat back; its backup, member {backup}, is not needed"
        return Change(words, begins=True, gone=backup)

    def _wanted(self, durable: Durable) -> int:
        """Return how many members the ring needs, those who are slow beside."""
        return len(durable.holders) + self._spares + len(durable.relieved)

    def _is_well(self, it: Member, others_s: float, step: int) -> bool:
        last = list(it.compute_s)[-self._limits.well_steps :]
        it.relieved_step = step if it.relieved_step < 0 else it.relieved_step
        held = step - it.relieved_step >= self._limits.hold_steps
        return held and len(last) >= self._limits.well_steps and max(last) <= WELL * others_s


def _relieve(durable: Durable, members: Mapping[int, Member], slow: Longer, backup: int) -> Change:
    step = max(members[it].step for it in durable.holders if it != NOBODY)
    durable.take_seat(durable.relieve(slow.number), backup, members[backup].token)
    members[slow.number].relieve(step)
    words = (
        f"member {backup} takes the seat of member {slow.number}, which computes for {slow.compute_s:.3g} s in each "
        f"step, and the others for {slow.others_s:.3g} s"
    )
    return Change(words, begins=True, outbox=((slow.number, Relieved(durable.generation + 1)),))


def usual(it: Member, steps: int) -> float | None:
    """Return what none of a member's last steps fell below, None if it has not told of so many."""
    last = list(it.compute_s)[-steps:]
    return min(last) if len(last) >= steps else None
