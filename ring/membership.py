"""What a coordinator knows of its ring and its members, and which of these have failed or are slow.

*Failed* are members that are silent, that do not stop, and one of a pair between which exchanges keep failing.

*Slow* is a member that computes far longer than the others. In a ring all members but the slow one wait, so computing
times are compared, without the time that a member waits for others. A slow link makes all wait alike: then no member is
slow. A slow member can be *relieved*: a member without a seat, its *backup*, takes its seat. The slow one stays, and
now and then computes a shard only to measure itself. Once it is fast again it gets its seat back, and the backup may
leave. Both happen between two steps, by a recovery as after a fault. Source: SPEC F1, F3, F5, P3.

The coordinator's process imports this module: standard library only.
"""

import math
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

from .wire import SILENCE_S, ExchangeFailed, Heartbeat, Message, Recovery, Relieved

NO_MEMBER = -1
START: Final = "start"  # reason of the first generation
RESTARTED: Final = "the coordinator was restarted"
MAX_GONE_REASONS: Final = 64  # of members that are gone, the newest ones: a report has to fit into a line


class Phase(StrEnum):
    """What the ring is doing."""

    STOPPING = "stopping"  # members stop, seats are filled
    FORMING = "forming"  # groups are formed, state is copied
    RUNNING = "running"
    DONE = "done"
    LOST = "lost"

    @property
    def is_over(self) -> bool:
        """Whether nothing follows."""
        return self in (Phase.DONE, Phase.LOST)


@dataclass(slots=True)
class CoordinatorState:
    """What is in the state file. It changes by its methods only, each of which counts the change."""

    holders: list[int]  # member on each seat
    generation: int = 0
    phase: Phase = Phase.STOPPING
    has_run: bool = False  # so that a fresh member's state is not the ring's
    tokens: dict[str, str] = field(default_factory=dict)  # of members that have a seat, or are relieved
    gone: dict[str, str] = field(default_factory=dict)  # why each member was declared gone
    outcome: str = ""
    changes: int = 0
    relieved: dict[str, int] = field(default_factory=dict)  # the seat of each slow member that has a backup
    slow: dict[str, float] = field(default_factory=dict)  # of slow seated members: times the others' computing time
    cost_s: float = 0.0  # the longest time to form the ring and copy its state; 0 before the first
    lost: list[int] = field(default_factory=list)  # members that are gone with the launcher that started them
    epoch: int = 0  # of the coordinator: each that was appointed has a later one

    def has_seat(self, member: int) -> bool:
        """Return whether a member has a seat."""
        return str(member) in self.tokens and str(member) not in self.relieved

    def give_seat(self, seat: int, member: int, token: str) -> None:
        """Give a seat to a member."""
        self.changes += 1
        self.holders[seat], self.tokens[str(member)] = member, token

    def remove_member(self, member: int, reason: str) -> bool:
        """Count a member as gone for good; return whether it had a seat."""
        self.changes += 1
        self.gone[str(member)] = reason
        if len(self.gone) > MAX_GONE_REASONS:
            self.gone[list(self.gone)[-MAX_GONE_REASONS - 1]] = "gone long ago"
        self.tokens.pop(str(member), None)
        self.relieved.pop(str(member), None)
        if member not in self.holders:
            return False
        self.holders[self.holders.index(member)] = NO_MEMBER
        return True

    def set_lost(self, member: int, *, is_lost: bool) -> None:
        """Note that a member is gone with its launcher, or that the launcher is back."""
        if is_lost != (member in self.lost):
            self.changes += 1
            others = [each for each in self.lost if each != member]
            self.lost = [*others, *[member] * is_lost]

    def relieve(self, member: int) -> int:
        """Take the seat from a slow member until it is fast again; return the seat."""
        self.changes += 1
        seat = self.holders.index(member)
        self.holders[seat], self.relieved[str(member)] = NO_MEMBER, seat
        return seat

    def reinstate(self, member: int) -> int:
        """Let a relieved member have a seat again; return which one it had."""
        self.changes += 1
        del self.tokens[str(member)]
        return self.relieved.pop(str(member))

    def with_last_gone_reason(self, problem: str) -> str:
        """Return a problem with the reason of the member that was declared gone last."""
        last = next(reversed(self.gone), None)
        return problem if last is None else f"{problem}; the last: member {last}: {self.gone[last]}"

    def begin_epoch(self, epoch: int) -> None:
        """Begin the epoch of another coordinator."""
        self.changes += 1
        self.epoch = epoch

    def begin_generation(self) -> None:
        """Begin a generation."""
        self.changes += 1
        self.generation, self.phase = self.generation + 1, Phase.STOPPING

    def begin_forming(self, slow: Mapping[int, float]) -> None:
        """Begin to form the ring with the seated members; how slow some of them are decides on the shards."""
        self.enter_phase(Phase.FORMING)
        self.slow = {str(member): slow[member] for member in self.holders if member in slow}

    def begin_running(self, cost_s: float) -> None:
        """Let the ring run, and keep how long it took to form it and copy its state; 0 if nothing was copied."""
        self.enter_phase(Phase.RUNNING)
        self.cost_s = max(self.cost_s, cost_s)

    def enter_phase(self, phase: Phase, outcome: str = "") -> None:
        """Change the phase."""
        self.changes += 1
        self.phase, self.outcome = phase, outcome
        self.has_run = self.has_run or phase is Phase.RUNNING


@dataclass(slots=True)
class MemberState:
    """What a member that is not gone has reported.

    | in its life it                             | `fresh` | `is_trying` | `ready` | `ran` |
    | ------------------------------------------ | ------- | ----------- | ------- | ----- |
    | is a spare                                 | yes     | no          | no      | no    |
    | has a seat in a recovery: a new member     | yes     | no          | no      | no    |
    | has a seat in a recovery: one that stays   | no      | no          | no      | no    |
    | has the ring's state, and awaits `Resume`  | no      | no          | yes     | no    |
    | has done a step of this generation         | no      | no          | yes     | yes   |
    | is relieved, and measures itself           | yes     | yes         | any     | any   |
    | is fast again, until it has a seat         | yes     | yes         | any     | any   |

    A restarted coordinator takes it that the members of its state file have done a step.
    """

    number: int
    token: str
    last_message_s: float
    connected: bool = False
    fresh: bool = True  # its state is not the ring's
    step: int = 0
    stopped: bool = False  # in this generation
    awaits_layout: bool = False
    ready: bool = False
    ran: bool = False  # it has done a step of this generation
    done: bool = False
    aborted_s: float | None = None  # when it was sent `Abort`
    groups: int = 0
    moved: int = -1
    waiting: bool = False
    store: str = ""
    node: str = ""
    endpoints: frozenset[str] = frozenset()
    until: int = 0  # the first step that it will not take; 0 if unknown
    relieved_step: int = -1  # of the ring, when this member was relieved; -1 if unknown
    is_trying: bool = False  # its main thread may compute though it has no seat
    compute_s: deque[float] = field(default_factory=lambda: deque(maxlen=32))
    step_s: deque[float] = field(default_factory=lambda: deque(maxlen=32))

    def begin_generation(self) -> None:
        """Forget what it reported in the generation before."""
        self.stopped = self.awaits_layout = self.ready = self.ran = self.done = self.waiting = False
        self.aborted_s = None

    def exclude_gap(self, gap_s: float, now_s: float) -> None:
        """Do not count a time in which no message could be received."""
        self.last_message_s = min(self.last_message_s + gap_s, max(now_s, self.last_message_s))
        self.aborted_s = None if self.aborted_s is None else min(self.aborted_s + gap_s, now_s)

    def relieve(self, step: int) -> None:
        """Begin to measure how fast it is without a seat."""
        self.relieved_step, self.is_trying, self.fresh = step, True, True
        self.compute_s.clear()
        self.step_s.clear()

    def record_heartbeat(self, beat: Heartbeat, shards: int) -> None:
        """Keep what a heartbeat reports.

        Args:
            beat: The heartbeat.
            shards: That the member computes in the present generation; 0 if the heartbeat is of another one.
        """
        if shards and beat.step != self.step and beat.step_s > 0.0 and self.ran:
            self.compute_s.append(beat.compute_s / shards)
            self.step_s.append(beat.step_s)
        self.moved, self.waiting, self.until = beat.moved, beat.waiting, beat.until

    def shows_progress(self, moved: int, *, is_waiting: bool) -> bool:
        """Return whether a heartbeat shows progress: an exchange has ended, or the member waits for none."""
        return not self.done and (moved != self.moved or not is_waiting)


def returning_members(state: CoordinatorState, last_message_s: float) -> dict[int, MemberState]:
    """Return the members that a restarted coordinator waits for, as if each had just sent a message at a time."""
    found = {}
    for name, token in state.tokens.items():
        is_relieved = name in state.relieved
        member = MemberState(int(name), token, last_message_s, fresh=is_relieved, ran=True, is_trying=is_relieved)
        found[int(name)] = member
    return found


def connected_spares(state: CoordinatorState, members: Mapping[int, MemberState]) -> list[int]:
    """Return the spares that are connected: members without a seat that may take one, so none that is relieved."""
    free = (member for member in members.values() if str(member.number) not in state.tokens)
    return sorted(member.number for member in free if member.connected)


@dataclass(slots=True)
class RecoveryTimer:
    """When a recovery reached which phase, by the coordinator's clock; -1 where it has not."""

    generation: int
    reason: str
    sign_s: float  # the first sign of the fault
    began_s: float
    stopped_s: float = -1.0
    formed_s: float = -1.0
    copy_s: float = 0.0
    ready_s: float = -1.0
    ran_s: float = -1.0
    members: int = 0

    def __str__(self) -> str:
        took = self.phase_durations()
        return (
            f"seconds to detect {took.detect_s:.3f}, stop {took.stop_s:.3f}, choose {took.choose_s:.3f}, "
            f"form {took.form_s:.3f}, copy {took.copy_s:.3f}, first step {took.first_step_s:.3f}"
        )

    def set_gone_reason(self, why: str) -> None:
        """Set the reason to a member that is gone, if so far only what others noticed of it is known."""
        if why and " is gone: " not in self.reason and self.reason != START:
            self.reason = why

    def running_s(self, now_s: float) -> float:
        """Return for how long the ring has run in this generation, 0 before."""
        return now_s - self.ready_s if self.ready_s >= 0.0 else 0.0

    def cost_s(self) -> float:
        """Return how long it took to form the ring and copy its state, 0 if nothing was copied."""
        return self.ready_s - self.formed_s if self.copy_s > 0.0 else 0.0

    def phase_durations(self) -> Recovery:
        """Return how long each phase took, -1 for one that has not ended."""

        def between(start_s: float, end_s: float) -> float:
            return round(end_s - start_s, 4) if start_s >= 0.0 and end_s >= 0.0 else -1.0

        ready = between(self.formed_s, self.ready_s)
        return Recovery(
            generation=self.generation,
            reason=self.reason,
            members=self.members,
            detect_s=between(self.sign_s, self.began_s),
            stop_s=between(self.began_s, self.stopped_s),
            choose_s=between(self.stopped_s, self.formed_s),
            form_s=max(ready - self.copy_s, 0.0) if ready >= 0.0 else -1.0,
            copy_s=self.copy_s if ready >= 0.0 else -1.0,
            first_step_s=between(self.ready_s, self.ran_s),
        )


@dataclass(frozen=True, slots=True)
class RingLimits:
    """How long the coordinator waits for what; all in seconds but the last four."""

    silence_s: float = SILENCE_S  # without a message, after which a member is declared gone
    broken_s: float = 0.5  # without a connection, after which it is if its launcher has none either
    meet_s: float = 15.0  # for members to return to a restarted coordinator
    stop_s: float = 5.0  # for a member that receives `Abort` to stop
    arrive_s: float = 600.0  # for the script of a member that has stopped to reach the end of its step
    patience_s: float = 2.0  # for the scheduler to offer a member
    coming_s: float = 30.0  # for an offered member to connect
    gather_s: float = 300.0  # for all members to connect at the start
    hint_s: float = 60.0  # without a connection or a step of a member, until the log has a hint
    stall_s: float = 60.0  # without progress while all wait for each other
    frozen_s: float = 60.0  # until even most of the members are declared gone, which take no step by then
    groups: int = 20  # that a process forms before it is restarted: each keeps some descriptors and threads
    slow_steps: int = 5  # in a row for which a member computes far longer than the others, before it is relieved
    well_steps: int = 10  # in a row for which it does not, before it has its seat again
    hold_steps: int = 100  # that its backup takes at least


QUIET: Final = 0.3  # of the silence after which a member is declared gone
MAX_PAIR_FAILURES: Final = 3  # of one pair of members, after which one of them is replaced
FAILURE_COUNTS_S: Final = 600.0  # for which a failure of a pair counts
MISMATCHED_UNTIL_S: Final = 5.0  # that members wait for one that is done


def silent_members(members: Iterable[MemberState], limits: RingLimits, now_s: float) -> Iterator[tuple[int, str]]:
    """Yield members that have sent no message for too long, and the reason to declare each gone.

    If that is more than half of them, the coordinator's own link is probably cut. Then none is silent before all of
    them have ended themselves, as they receive nothing either. Source: SPEC F1.
    """
    members = list(members)
    limit_s = limits.frozen_s if most_are_quiet(members, limits, now_s) else limits.silence_s
    for member in members:
        if now_s - member.last_message_s > limit_s:
            yield member.number, f"it sent nothing for {now_s - member.last_message_s:.0f} s"


def vanished_members(
    members: Mapping[int, MemberState], disconnected_s: Mapping[int, float], orphaned_s: Mapping[int, float],
    limits: RingLimits, now_s: float,
) -> Iterator[tuple[int, str]]:  # fmt: skip
    """Yield members whose connection has ended, and that of their launcher, and the reason to declare each gone.

    So it is where all processes of a machine are killed; a machine without power is found by its silence. If more than
    half of the members have no connection, the coordinator is probably the one that was cut off.

    Args:
        members: All that are not gone.
        disconnected_s: When the connections of members ended that have no other since.
        orphaned_s: The same of their launchers.
        limits: How long to wait.
        now_s: The time.
    """
    ended_s = {
        number: max(disconnected_s[number], orphaned_s[number]) for number in members
        if number in disconnected_s and number in orphaned_s
    }  # fmt: skip
    for number, at_s in ended_s.items() if 2 * len(ended_s) <= len(members) else ():
        if now_s - at_s > limits.broken_s:
            yield number, "its connection ended, and that of its launcher"


def most_are_quiet(members: Collection[MemberState], limits: RingLimits, now_s: float) -> bool:
    """Return whether more than half of the members are quiet: they fall silent within a heartbeat of each other."""
    quiet_s = QUIET * limits.silence_s
    return 2 * sum(now_s - member.last_message_s > quiet_s for member in members) > len(members)


def unstopped_members(seated: Iterable[MemberState], limits: RingLimits, now_s: float) -> Iterator[tuple[int, str]]:
    """Yield members that do not stop after `Abort`, or whose script does not end its step, each with the reason."""
    for member in seated:
        if member.aborted_s is None or member.awaits_layout:
            continue
        took_s = now_s - member.aborted_s
        if not member.stopped and took_s > limits.stop_s:
            yield member.number, f"it did not stop within {limits.stop_s:.0f} s"
        elif took_s > limits.arrive_s:
            yield member.number, f"its script did not end its step within {limits.arrive_s:.0f} s"


def until_mismatch(seated: Collection[MemberState], quiet_s: float) -> str:
    """Return why a ring can never be done, "" if it can: some members are done, and others wait for them.

    A member that waits for the last step of all is a step behind, and does not count.

    Args:
        seated: Members on seats.
        quiet_s: For how long no member has moved that is not done.
    """
    done = [member for member in seated if member.done]
    last = max((member.step for member in done), default=0)
    ahead = [member for member in seated if done and not member.done and member.waiting and member.step >= last]
    if not ahead or quiet_s <= MISMATCHED_UNTIL_S:
        return ""
    first, other = done[0], ahead[0]
    return (
        f"member {first.number} is done after {first.step} steps, and member {other.number} continues: all have to "
        "name the same `until`"
    )


def worn_out_member(seated: Collection[MemberState], limits: RingLimits) -> int | None:
    """Return the member whose process has formed the most groups that it may, and needs a restart; None if none has."""
    found = [member for member in seated if member.groups >= limits.groups and not member.done]
    return max(found, key=lambda member: member.groups).number if found and len(seated) > 1 else None


class Hints:
    """Possible problems of the script or the network; each is logged once, as long as it lasts."""

    def __init__(self, limits: RingLimits) -> None:
        self._limits = limits
        self._present: dict[str, str] = {}  # hints by their kind

    def current(self) -> list[str]:
        """Return the hints that were logged and still hold."""
        return list(self._present.values())

    def update(
        self, members: Collection[MemberState], unconnected: Collection[int], seated: Iterable[MemberState],
        running_s: float, now_s: float,
    ) -> list[str]:  # fmt: skip
        """Return lines for the log, of hints that did not hold before.

        Args:
            members: All that are connected.
            unconnected: Those that were started long ago and have not connected.
            seated: Members on seats.
            running_s: For how long the ring has run since it was formed.
            now_s: The time.
        """
        found, limit_s = {}, self._limits.hint_s
        if most_are_quiet(members, self._limits, now_s):
            found["alarm"] = "most members are silent: this coordinator is probably cut off"
        if unconnected:
            found["hint"] = (
                f"{_members_text(unconnected)} sent nothing for {limit_s:.0f} s: "
                "does the script reach `with Ring(...)`? "
                f"A member that never connects is ended, at the start after {self._limits.gather_s:.0f} s"
            )
        elif idle := [member.number for member in seated if running_s > limit_s and not member.ran]:
            found["hint"] = (
                f"{_members_text(idle)} ended no step for {limit_s:.0f} s, and the GPUs are held all the same: does "
                "the script call `ring.step()`?"
            )
        new = [f"{kind}: {hint}" for kind, hint in found.items() if kind not in self._present]
        # A hint stays as it was logged: the members that it concerns change gradually.
        self._present = {kind: self._present.get(kind, hint) for kind, hint in found.items()}
        return new


def _members_text(members: Collection[int]) -> str:
    shown = ", ".join(map(str, sorted(members)[:8])) + (", ..." if len(members) > 8 else "")
    return f"member{'s' if len(members) > 1 else ''} {shown}"


class Accusations:
    """Exchanges that failed between two living members. Source: SPEC F5."""

    def __init__(self) -> None:
        self._pairs: list[tuple[float, frozenset[int]]] = []
        self._noted: dict[frozenset[int], int] = {}  # the last generation in which exchanges of a pair failed

    def add_failure(self, failure: ExchangeFailed, seated: Collection[MemberState], now_s: float) -> None:
        """Count a failed exchange for its two members, if the other one is known."""
        others = (member for member in seated if member.number != failure.member)
        peer = failure.peer
        accused = next((other.number for other in others if peer and peer in (other.store, *other.endpoints)), None)
        if accused is not None:
            self.add_pair(failure.member, accused, failure.generation, now_s)

    def add_pair(self, member: int, peer: int, generation: int, now_s: float) -> None:
        """Count a failure; of a pair, each generation has at most one."""
        pair = frozenset((member, peer))
        if generation > self._noted.get(pair, 0):
            self._noted[pair] = generation
            self._pairs.append((now_s, pair))

    def worst_member(self, order: Sequence[int], now_s: float) -> tuple[int, str] | None:
        """Return the member to replace, and why: of the worst pair the one with more failures. None if none is so bad.

        Args:
            order: Members by seat; of two that are equal the later one is replaced.
            now_s: The time.
        """
        self._pairs = [
            (at_s, pair) for at_s, pair in self._pairs if now_s - at_s < FAILURE_COUNTS_S and pair <= set(order)
        ]
        if not self._pairs or len(order) < 2:
            return None
        worst, times = Counter(pair for _, pair in self._pairs).most_common(1)[0]
        if times < MAX_PAIR_FAILURES:
            return None
        failures = Counter(number for _, pair in self._pairs for number in pair)
        number = max(worst, key=lambda number: (failures[number], order.index(number)))
        return number, f"exchanges between members {sorted(worst)} failed {times} times"


SLOW_RATIO: Final = 3.0  # times the others' median: in a ring that has shrunk, members with two shards take twice it
MIN_EXCESS_S: Final = 0.01  # by which a slow member computes longer: a busy machine causes less
WELL_RATIO: Final = 1.5  # times the others' median: a member that computes no longer is fast again
UNKNOWN_COST_S: Final = 60.0  # of a recovery, until one was measured
UPDATE_S: Final = 1.0  # between two updates: members send heartbeats as often


class SlowMember(NamedTuple):
    """A member that computes far longer than the others."""

    number: int
    compute_s: float
    others_s: float  # median of the others


def slow_members(compute_s: Mapping[int, float]) -> list[SlowMember]:
    """Return those that compute far longer than the others.

    Args:
        compute_s: How long each computes.
    """
    ordered = sorted(compute_s.values())
    if len(ordered) < 2:
        return []
    found = (SlowMember(number, time_s, _median_without(ordered, time_s)) for number, time_s in compute_s.items())
    return [
        slow for slow in found
        if slow.compute_s > SLOW_RATIO * slow.others_s and slow.compute_s - slow.others_s > MIN_EXCESS_S
    ]  # fmt: skip


def median(ordered: Sequence[float]) -> float:
    """Return the median of sorted numbers."""
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2.0


def _median_without(ordered: Sequence[float], left_out: float) -> float:
    """Return the median of sorted numbers without one of them."""
    at, others = bisect_left(ordered, left_out), len(ordered) - 1
    low, high = (others - 1) // 2, others // 2
    return (ordered[low + (low >= at)] + ordered[high + (high >= at)]) / 2.0


class SeatChange(NamedTuple):
    """A seat has another member, or a member leaves."""

    reason: str
    begins: bool  # a recovery
    gone: int = NO_MEMBER  # a member to declare gone, for the same reason
    outbox: tuple[tuple[int, Message], ...] = ()  # receivers and messages


class Backups:
    """Decides once a second which members are slow, and which relieved ones are fast again.

    Args:
        limits: How many steps count.
        backups: Members that may be relieved at the same time.
        spares: Members beside the seats at the ring's start: they stay.
    """

    def __init__(self, limits: RingLimits, *, backups: int = 0, spares: int = 0) -> None:
        self._limits, self._backups, self._spares = limits, backups, spares
        self.ratios: dict[int, float] = {}  # of slow members: their computing time by that of the others
        self.slow: list[SlowMember] = []  # seated members whose backup gains more than a recovery costs, slowest first
        self._well: list[int] = []  # relieved members that are fast again
        self._updated_s, self._idle_since_s = -math.inf, math.inf  # inf until the first update

    def update(self, state: CoordinatorState, members: Mapping[int, MemberState], now_s: float) -> None:
        """Judge all members again, if the last time is long enough ago."""
        if now_s - self._updated_s < UPDATE_S:
            return
        self._updated_s, self._idle_since_s = now_s, min(self._idle_since_s, now_s)
        self.slow, self._well = [], []
        seated = [members[number] for number in state.holders if number != NO_MEMBER]
        if state.phase is not Phase.RUNNING or not all(member.ran and not member.done for member in seated):
            self._idle_since_s = now_s
            return
        usual_s = {
            member.number: time_s for member in seated
            if (time_s := shortest_recent_compute_s(member, self._limits.slow_steps)) is not None
        }  # fmt: skip
        step, cost_s = max(member.step for member in seated), state.cost_s or UNKNOWN_COST_S
        longer = sorted(slow_members(usual_s), key=lambda slow: -slow.compute_s)
        self.ratios = {slow.number: slow.compute_s / slow.others_s for slow in longer if slow.others_s > 0.0}
        left = max(max(member.until for member in seated) - step, 0)
        may_be = max(self._backups - len(state.relieved), 0)
        rest_s = max((slow.compute_s for slow in longer[may_be:]), default=0.0)  # the slowest without a backup
        self.slow = [
            slow for slow in longer[:may_be] if (slow.compute_s - max(slow.others_s, rest_s)) * left > cost_s
        ]  # fmt: skip
        others_s = median(sorted(usual_s.values())) if usual_s else 0.0
        if others_s * left > cost_s:  # else the ring is done sooner
            self._well = [
                number for number in map(int, state.relieved) if self._is_fast_again(members[number], others_s, step)
            ]
        if self.slow or NO_MEMBER in state.holders or len(members) <= self._needed_members(state):
            self._idle_since_s = now_s

    def change_seats(
        self, state: CoordinatorState, members: Mapping[int, MemberState], now_s: float
    ) -> SeatChange | None:  # fmt: skip
        """Change who has which seat in a ring that runs, if that is due; return the change."""
        if not self._backups:
            return None
        for number in self._well:
            if str(number) in state.relieved and members[number].connected:
                return self._reinstate(state, members, number)
        spares = connected_spares(state, members)
        for slow in self.slow:
            if spares and state.has_seat(slow.number):
                return _relieve_member(state, members, slow, spares[0])
        if spares and now_s - self._idle_since_s > self._limits.coming_s:
            self._idle_since_s = now_s
            return SeatChange("no backup is needed any more", begins=False, gone=spares[-1])
        return None

    def slow_without_backup(self, state: CoordinatorState, members: Mapping[int, MemberState]) -> list[int]:
        """Return slow seated members that need a backup, while there is no spare that could be it."""
        slow = [slow.number for slow in self.slow if state.has_seat(slow.number)]
        return [] if not slow or connected_spares(state, members) else slow

    def _reinstate(self, state: CoordinatorState, members: Mapping[int, MemberState], number: int) -> SeatChange:
        stays = len(members) < self._needed_members(state)
        seat = state.reinstate(number)
        backup, member = state.holders[seat], members[number]
        member.compute_s.clear()
        if backup == NO_MEMBER or stays:
            return SeatChange(f"member {number} is fast again, and waits for a seat", begins=False)
        state.give_seat(seat, number, member.token)
        reason = f"member {number} is fast again and has its seat back; its backup, member {backup}, is not needed"
        return SeatChange(reason, begins=True, gone=backup)

    def _needed_members(self, state: CoordinatorState) -> int:
        """Return how many members the ring needs, the relieved ones included."""
        return len(state.holders) + self._spares + len(state.relieved)

    def _is_fast_again(self, member: MemberState, others_s: float, step: int) -> bool:
        last = list(member.compute_s)[-self._limits.well_steps :]
        member.relieved_step = step if member.relieved_step < 0 else member.relieved_step
        held = step - member.relieved_step >= self._limits.hold_steps
        return held and len(last) >= self._limits.well_steps and max(last) <= WELL_RATIO * others_s


def _relieve_member(
    state: CoordinatorState, members: Mapping[int, MemberState], slow: SlowMember, backup: int
) -> SeatChange:  # fmt: skip
    step = max(members[number].step for number in state.holders if number != NO_MEMBER)
    state.give_seat(state.relieve(slow.number), backup, members[backup].token)
    members[slow.number].relieve(step)
    reason = (
        f"member {backup} takes the seat of member {slow.number}, which computes for {slow.compute_s:.3g} s in each "
        f"step, and the others for {slow.others_s:.3g} s"
    )
    return SeatChange(reason, begins=True, outbox=((slow.number, Relieved(state.generation + 1)),))


def shortest_recent_compute_s(member: MemberState, steps: int) -> float | None:
    """Return the shortest computing time of a member's last steps, None if it has reported fewer."""
    last = list(member.compute_s)[-steps:]
    return min(last) if len(last) >= steps else None
