"""Which members are gone, which are slow and get relief, and which member takes which empty seat.

Who is to be declared gone, and why: those that say nothing, and pairs between which exchanges fail again and again.

The process that coordinates imports this module: standard library only.

Who computes for far longer than others that wait for it.

Who waits says little: in a ring all wait but the slow one. So computing times are compared, without what a member waits
for others. A link that is slow makes all wait alike, and nobody is slow. Source: SPEC F3, P3.

The process that coordinates imports this module: standard library only.

Who takes which empty seat, and who is waited for.

At the start the member of number k has seat k, as long as it may come; later the spare of the smallest number is first.

The process that coordinates imports this module: standard library only.

When a slow member is relieved of its work, and when it has it back.

A member that all others wait for is *relieved*: a member without a seat, its *backup*, takes its seat. The slow one
stays, and now and then computes a shard for nothing. Once it is well, it has its seat again and the backup may go. It
all happens between two steps, by a round as at a fault. Source: SPEC P3.

The process that coordinates imports this module: standard library only.
"""

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from ..cluster.files.processes import last_error
from .standing import NOBODY, Durable, Limits, Member, Phase
from .warm import UNKNOWN_STATUS
from .wire import GONE_STATUS, RESTART_STATUS, Fault, Hello, Message, Relieved

SUSPECT: Final = 0.3  # of the silence at which a member is declared gone
BLAMED: Final = 3  # faults of one pair of members, after which one of them is replaced
UNLIKE_S: Final = 5.0  # that members wait for one that is done
BLAME_S: Final = 600.0  # for so long a fault of a pair counts


class Suspect(NamedTuple):
    """A member to be declared gone."""

    member: int
    reason: str


def silent(members: Iterable[Member], limits: Limits, now_s: float) -> Iterator[Suspect]:
    """Yield members that said nothing for too long.

    Where that is more than half of them, our own link is likelier to be cut: then nobody is, until all of them have
    ended themselves, as they hear nothing either. Source: SPEC F1.
    """
    everybody = list(members)
    limit_s = limits.frozen_s if are_most_silent(everybody, limits, now_s) else limits.silence_s
    for it in everybody:
        if now_s - it.heard_s > limit_s:
            yield Suspect(it.number, f"it said nothing for {now_s - it.heard_s:.0f} s")


def are_most_silent(members: Collection[Member], limits: Limits, now_s: float) -> bool:
    """Say whether more than half of the members are suspect: they fall silent within a beat of each other."""
    suspect_s = SUSPECT * limits.silence_s
    return 2 * sum(now_s - it.heard_s > suspect_s for it in members) > len(members)


def unstopped(seated: Iterable[Member], limits: Limits, now_s: float) -> Iterator[Suspect]:
    """Yield members that were told to stop and did not, or whose script does not come to the end of its step."""
    for it in seated:
        if it.asked_s is None or it.here:
            continue
        asked_s = now_s - it.asked_s
        if not it.stopped and asked_s > limits.stop_s:
            yield Suspect(it.number, f"it did not stop within {limits.stop_s:.0f} s")
        elif asked_s > limits.arrive_s:
            yield Suspect(it.number, f"its script did not end its step within {limits.arrive_s:.0f} s")


def unlike_ends(seated: Collection[Member], quiet_s: float) -> str:
    """Return why a ring will never be done, "" if nothing says so: some members are, and others wait for them.

    One that waits for the last step of all is a step behind, and is no case of this.

    Args:
        seated: Members on seats.
        quiet_s: For how long no member has moved that is not done.
    """
    done = [it for it in seated if it.done]
    ahead = [it for it in seated if done and not it.done and it.waiting and it.step >= max(one.step for one in done)]
    if not ahead or quiet_s <= UNLIKE_S:
        return ""
    first, other = done[0], ahead[0]
    return (
        f"member {first.number} is done after {first.step} steps, and member {other.number} goes on: all have to name "
        "the same `until`"
    )


def worn(seated: Collection[Member], limits: Limits) -> int | None:
    """Return the member whose process has formed so many groups that it is to be started anew, None if none has."""
    found = [it for it in seated if it.groups >= limits.groups and not it.done]
    return max(found, key=lambda it: it.groups).number if found and len(seated) > 1 else None


class Hints:
    """What may be wrong although nobody is to blame yet; each is told once, as long as it lasts."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._present: dict[str, str] = {}  # words by their kind

    def present(self) -> list[str]:
        """Return what was told and still lasts."""
        return list(self._present.values())

    def look(
        self, members: Collection[Member], wordless: Collection[int], seated: Iterable[Member], runs_s: float,
        now_s: float,
    ) -> list[str]:  # fmt: skip
        """Return lines for people, of what was not true before.

        Args:
            members: All that are connected.
            wordless: Those that were started long ago and never said a word.
            seated: Members on seats.
            runs_s: For how long the ring has run since it was formed.
            now_s: The time.
        """
        found, limit_s = {}, self._limits.hint_s
        if are_most_silent(members, self._limits, now_s):
            found["alarm"] = "most members are silent, so likelier this coordinator is cut off"
        if wordless:
            found["hint"] = (
                f"{_named(wordless)} said nothing for {limit_s:.0f} s: does the script come to `with Ring(...)`? "
                f"Who never says a word is ended, at the start after {self._limits.gather_s:.0f} s"
            )
        elif idle := [it.number for it in seated if runs_s > limit_s and not it.ran]:
            found["hint"] = (
                f"{_named(idle)} ended no step for {limit_s:.0f} s, and the GPUs are held all the same: does the "
                "script call `ring.step()`?"
            )
        new = [f"{kind}: {words}" for kind, words in found.items() if kind not in self._present]
        # The words stay those that were told: who is meant changes by and by.
        self._present = {kind: self._present.get(kind, words) for kind, words in found.items()}
        return new


def _named(members: Collection[int]) -> str:
    shown = ", ".join(map(str, sorted(members)[:8])) + (", ..." if len(members) > 8 else "")
    return f"member{'s' if len(members) > 1 else ''} {shown}"


class Blames:
    """Faults of exchanges between two members that both live. Source: SPEC F5."""

    def __init__(self) -> None:
        self._pairs: list[tuple[float, frozenset[int]]] = []
        self._noted: dict[frozenset[int], int] = {}  # the last generation in which a pair had a fault

    def hear(self, fault: Fault, seated: Collection[Member], now_s: float) -> None:
        """Note which two members an exchange failed between, if that is known."""
        others = (it for it in seated if it.number != fault.member)
        accused = next((it.number for it in others if fault.peer and fault.peer in (it.store, *it.ends)), None)
        if accused is not None:
            self.add(fault.member, accused, fault.generation, now_s)

    def add(self, one: int, other: int, generation: int, now_s: float) -> None:
        """Note a fault; of a pair, each generation has at most one."""
        pair = frozenset((one, other))
        if generation > self._noted.get(pair, 0):
            self._noted[pair] = generation
            self._pairs.append((now_s, pair))

    def worst(self, order: Sequence[int], now_s: float) -> Suspect | None:
        """Return which member is to be replaced: of the worst pair the one that most faults have to do with.

        Args:
            order: Members by seat; of two that are equal the later one is replaced.
            now_s: The time.
        """
        self._pairs = [it for it in self._pairs if now_s - it[0] < BLAME_S and it[1] <= set(order)]
        if not self._pairs or len(order) < 2:
            return None
        pair, times = Counter(pair for _, pair in self._pairs).most_common(1)[0]
        if times < BLAMED:
            return None
        accused = Counter(number for _, it in self._pairs for number in it)
        number = max(pair, key=lambda it: (accused[it], order.index(it)))
        return Suspect(number, f"exchanges between members {sorted(pair)} failed {times} times")


FAR: Final = 3.0  # times the median of the others: twice as long computes who has two shards in a ring that has shrunk
LEAST_S: Final = 0.01  # by which it computes longer: less is what a busy machine does


class Longer(NamedTuple):
    """Somebody who computes for far longer than the others."""

    number: int
    compute_s: float
    others_s: float  # median of the others


def far_longer(compute_s: Mapping[int, float]) -> list[Longer]:
    """Return those who compute for far longer than the others.

    Args:
        compute_s: How long each computes.
    """
    ordered = sorted(compute_s.values())
    if len(ordered) < 2:
        return []
    found = (Longer(number, time_s, _median_without(ordered, time_s)) for number, time_s in compute_s.items())
    return [it for it in found if it.compute_s > FAR * it.others_s and it.compute_s - it.others_s > LEAST_S]


def median(ordered: Sequence[float]) -> float:
    """Return the median of numbers that are in order."""
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2.0


def _median_without(ordered: Sequence[float], one: float) -> float:
    """Return the median of numbers that are in order, one of which is left out."""
    at, others = bisect_left(ordered, one), len(ordered) - 1
    low, high = (others - 1) // 2, others // 2
    return (ordered[low + (low >= at)] + ordered[high + (high >= at)]) / 2.0


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


def end_words(status: int, error: str) -> str:
    """Return how a process ended, for people.

    Args:
        status: Minus the signal's number if one ended it.
        error: From its log, "" if that has none.
    """
    how = "an unknown status" if status == UNKNOWN_STATUS else f"status {status}"
    return f"ended with {how}" + (f": {error}" if error else "")


class Logs:
    """Where the output of each member begins in its log, which others had before it."""

    def __init__(self) -> None:
        self._since: dict[int, int] = {}

    def begin(self, member: int, log: Path) -> None:
        """Take note of the log of a member that is about to be started; it need not be there yet."""
        self._since[member] = log.stat().st_size if log.is_file() else 0

    def error_of(self, member: int, log: Path | None, status: int) -> str:
        """Return the error by which a member says why it ended; "" of one that ended as it was told to."""
        if log is None or member not in self._since or status in (0, GONE_STATUS, RESTART_STATUS):
            return ""
        return last_error(str(log), since=self._since[member])
