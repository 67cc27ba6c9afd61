"""What a coordinator knows of its ring: the state that outlives it, what members reported, and the ring's folder.

Files in the folder of a ring:

ring.json        the secret and the limits, written by the process that makes the ring; only its user can read it
state.json       written by the coordinator before it sends any message that depends on it; has its port
recoveries.json  the last recoveries with the seconds of each phase, for people

The coordinator's process imports this module: standard library only.
"""

import json
import os
import secrets
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final

from ..cluster.files.durable import open_folder, write_whole
from .wire import SILENCE_S, Heartbeat, Recovery

RING, STATE, RECOVERIES = "ring.json", "state.json", "recoveries.json"
NO_MEMBER = -1
START: Final = "start"  # reason of the first generation
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

    def has_seat(self, number: int) -> bool:
        """Return whether a member has a seat."""
        return str(number) in self.tokens and str(number) not in self.relieved

    def take_seat(self, seat: int, number: int, token: str) -> None:
        """Give a seat to a member."""
        self.changes += 1
        self.holders[seat], self.tokens[str(number)] = number, token

    def lose(self, number: int, reason: str) -> bool:
        """Count a member as gone for good; return whether it had a seat."""
        self.changes += 1
        self.gone[str(number)] = reason
        if len(self.gone) > MAX_GONE_REASONS:
            self.gone[list(self.gone)[-MAX_GONE_REASONS - 1]] = "gone long ago"
        self.tokens.pop(str(number), None)
        self.relieved.pop(str(number), None)
        if number not in self.holders:
            return False
        self.holders[self.holders.index(number)] = NO_MEMBER
        return True

    def relieve(self, number: int) -> int:
        """Take the seat from a slow member until it is fast again; return the seat."""
        self.changes += 1
        seat = self.holders.index(number)
        self.holders[seat], self.relieved[str(number)] = NO_MEMBER, seat
        return seat

    def reinstate(self, number: int) -> int:
        """Let a relieved member have a seat again; return which one it had."""
        self.changes += 1
        del self.tokens[str(number)]
        return self.relieved.pop(str(number))

    def with_last_gone(self, problem: str) -> str:
        """Return a problem with the reason of the member that was declared gone last."""
        last = next(reversed(self.gone), None)
        return problem if last is None else f"{problem}; the last: member {last}: {self.gone[last]}"

    def begin(self) -> None:
        """Begin a generation."""
        self.changes += 1
        self.generation, self.phase = self.generation + 1, Phase.STOPPING

    def form(self, slow: Mapping[int, float]) -> None:
        """Begin to form the ring with the seated members; how slow some of them are decides on the shards."""
        self.enter(Phase.FORMING)
        self.slow = {str(member): slow[member] for member in self.holders if member in slow}

    def run(self, cost_s: float) -> None:
        """Let the ring run, and keep how long it took to form it and copy its state; 0 if nothing was copied."""
        self.enter(Phase.RUNNING)
        self.cost_s = max(self.cost_s, cost_s)

    def enter(self, phase: Phase, outcome: str = "") -> None:
        """Change the phase."""
        self.changes += 1
        self.phase, self.outcome = phase, outcome
        self.has_run = self.has_run or phase is Phase.RUNNING


@dataclass(slots=True)
class MemberState:
    """What a member that is not gone has reported."""

    number: int
    token: str
    last_message_s: float
    connected: bool = False
    fresh: bool = True
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
    ends: frozenset[str] = frozenset()
    until: int = 0  # the first step that it will not take; 0 if unknown
    relieved_step: int = -1  # of the ring, when this member was relieved; -1 if unknown
    is_trying: bool = False  # its main thread may compute though it has no seat
    compute_s: deque[float] = field(default_factory=lambda: deque(maxlen=32))
    step_s: deque[float] = field(default_factory=lambda: deque(maxlen=32))

    def begin_generation(self) -> None:
        """Forget what it reported in the generation before."""
        self.stopped = self.awaits_layout = self.ready = self.ran = self.done = self.waiting = False
        self.aborted_s = None

    def forgive(self, gap_s: float, now_s: float) -> None:
        """Do not count a time in which no message could be received."""
        self.last_message_s = min(self.last_message_s + gap_s, max(now_s, self.last_message_s))
        self.aborted_s = None if self.aborted_s is None else min(self.aborted_s + gap_s, now_s)

    def relieve(self, step: int) -> None:
        """Begin to measure how fast it is without a seat."""
        self.relieved_step, self.is_trying, self.fresh = step, True, True
        self.compute_s.clear()
        self.step_s.clear()

    def heartbeat(self, beat: Heartbeat, shards: int) -> None:
        """Keep what a heartbeat reports.

        Args:
            beat: The heartbeat.
            shards: That the member computes in the present generation; 0 if the heartbeat is of another one.
        """
        if shards and beat.step != self.step and beat.step_s > 0.0 and self.ran:
            self.compute_s.append(beat.compute_s / shards)
            self.step_s.append(beat.step_s)
        self.moved, self.waiting, self.until = beat.moved, beat.waiting, beat.until

    def moves(self, moved: int, *, is_waiting: bool) -> bool:
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


def waiting_members(state: CoordinatorState, members: Mapping[int, MemberState]) -> list[int]:
    """Return the connected members that may take a seat. Those that are relieved as slow may not."""
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
        took = self.seconds()
        return (
            f"seconds to detect {took.detect_s:.3f}, stop {took.stop_s:.3f}, choose {took.choose_s:.3f}, "
            f"form {took.form_s:.3f}, copy {took.copy_s:.3f}, first step {took.first_step_s:.3f}"
        )

    def explain(self, why: str) -> None:
        """Set the reason to a member that is gone, if so far only what others noticed of it is known."""
        if why and " is gone: " not in self.reason and self.reason != START:
            self.reason = why

    def runs_s(self, now_s: float) -> float:
        """Return for how long the ring has run in this generation, 0 before."""
        return now_s - self.ready_s if self.ready_s >= 0.0 else 0.0

    def cost_s(self) -> float:
        """Return how long it took to form the ring and copy its state, 0 if nothing was copied."""
        return self.ready_s - self.formed_s if self.copy_s > 0.0 else 0.0

    def seconds(self) -> Recovery:
        """Return how long each phase took, -1 for one that has not ended."""

        def between(start_s: float, end_s: float) -> float:
            return round(end_s - start_s, 4) if end_s >= 0.0 else -1.0

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
    meet_s: float = 15.0  # for members to return to a restarted coordinator
    stop_s: float = 5.0  # for a member that receives `Abort` to stop
    arrive_s: float = 600.0  # for the script of a member that has stopped to reach the end of its step
    patience_s: float = 2.0  # for the scheduler to offer a member
    coming_s: float = 30.0  # for an offered member to connect
    gather_s: float = 300.0  # for all members to connect at the start
    hint_s: float = 60.0  # without a connection or a step of a member, until the log has a hint
    stall_s: float = 60.0  # without progress while all wait for each other
    frozen_s: float = 60.0  # until even most of the members are declared gone, which have ended themselves by then
    groups: int = 20  # that a process forms before it is restarted: each keeps some descriptors and threads
    slow_steps: int = 5  # in a row for which a member computes far longer than the others, before it is relieved
    well_steps: int = 10  # in a row for which it does not, before it has its seat again
    hold_steps: int = 100  # that its backup takes at least


@dataclass(frozen=True, slots=True)
class RingSettings:
    """What a coordinator needs to know at its start."""

    seats: int
    secret: str
    host: str = "127.0.0.1"
    limits: RingLimits = field(default_factory=RingLimits)
    spares: int = 0  # members beside the seats at the start
    backups: int = 0  # slow members that may have backups at the same time


def make_ring(
    folder: Path, seats: int, host: str = "127.0.0.1", limits: RingLimits | None = None, *,
    spares: int = 0, backups: int = 0,
) -> RingSettings:  # fmt: skip
    """Make the folder of a ring, unless it exists.

    Args:
        folder: Of this ring alone.
        seats: In the ring.
        host: Address at which members reach the coordinator.
        limits: The usual ones by default.
        spares: Members beside the seats at the start.
        backups: Slow members that may have backups at the same time.

    Returns:
        The settings of the coordinator, with a secret that was drawn for this ring.

    Raises:
        OSError: If the folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if (folder / RING).exists():
        return read_settings(folder)
    settings = RingSettings(seats, secrets.token_hex(16), host, limits or RingLimits(), spares, backups)
    write_file(folder, RING, asdict(settings))
    return settings


def read_settings(folder: Path) -> RingSettings:
    """Return the settings of a ring's coordinator.

    Raises:
        OSError: If they cannot be read.
        ValueError: If they are damaged.
    """
    content = json.loads((folder / RING).read_bytes())
    try:
        return RingSettings(**{**content, "limits": RingLimits(**content["limits"])})
    except (TypeError, KeyError) as error:
        raise ValueError(f"{folder / RING}: {error}") from error


def write_file(folder: Path, name: str, content: object) -> None:
    """Write a file of the ring's folder, whole or not at all.

    Raises:
        OSError: If it cannot be written.
    """
    opened = open_folder(str(folder))
    try:
        write_whole(opened, name, json.dumps(content).encode())
    finally:
        os.close(opened)
