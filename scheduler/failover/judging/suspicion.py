"""Who is to be declared gone, and why: those that say nothing, and pairs between which exchanges fail again and again.

The process that coordinates imports this module: standard library only.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from ..settings import Limits
from ..standing import Member
from ..wire import Fault

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
