"""The state of a ring that its coordinator keeps, and the folder with its settings.

What a coordinator knows of its ring: the part that outlives it, and what it heard of each member.

The process that coordinates imports this module: standard library only.

The folder of a ring: what its coordinator is told at its start, and where it keeps its state.

ring.json        the secret and the limits, written by who makes the ring; readable by its user alone
state.json       written by the coordinator before it tells anybody what is in it; has its port
recoveries.json  the last recoveries with the seconds of each phase, for people

The process that coordinates imports this module: standard library only.
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
from .wire import SILENCE_S, Beat, Recovery

NOBODY = -1
START: Final = "start"  # reason of the first generation
REASONS: Final = 64  # of members that are gone, the newest, which are kept: a report has to fit into a line


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
class Durable:
    """What is written before anybody is told of it. It changes by its methods alone, each of which is counted."""

    holders: list[int]  # member on each seat
    generation: int = 0
    phase: Phase = Phase.STOPPING
    has_run: bool = False  # so that a fresh member's state is not the ring's
    tokens: dict[str, str] = field(default_factory=dict)  # of members that have a seat, or were relieved
    gone: dict[str, str] = field(default_factory=dict)  # why each member that was declared gone was
    outcome: str = ""
    changes: int = 0
    relieved: dict[str, int] = field(default_factory=dict)  # the seat of each slow member whose work another one does
    slow: dict[str, float] = field(default_factory=dict)  # times the others' that those seated members compute
    cost_s: float = 0.0  # that forming the ring and copying its state took, the longest time; 0 before the first

    def has_seat(self, number: int) -> bool:
        """Say whether a member has a seat."""
        return str(number) in self.tokens and str(number) not in self.relieved

    def take_seat(self, seat: int, number: int, token: str) -> None:
        """Give a seat to a member."""
        self.changes += 1
        self.holders[seat], self.tokens[str(number)] = number, token

    def lose(self, number: int, reason: str) -> bool:
        """Count a member as gone, for ever; return whether it had a seat."""
        self.changes += 1
        self.gone[str(number)] = reason
        if len(self.gone) > REASONS:
            self.gone[list(self.gone)[-REASONS - 1]] = "gone long ago"
        self.tokens.pop(str(number), None)
        self.relieved.pop(str(number), None)
        if number not in self.holders:
            return False
        self.holders[self.holders.index(number)] = NOBODY
        return True

    def relieve(self, number: int) -> int:
        """Let a member have no seat until it is well again; return which seat is empty now."""
        self.changes += 1
        seat = self.holders.index(number)
        self.holders[seat], self.relieved[str(number)] = NOBODY, seat
        return seat

    def reinstate(self, number: int) -> int:
        """Count a relieved member as one that may have a seat; return which one it had."""
        self.changes += 1
        del self.tokens[str(number)]
        return self.relieved.pop(str(number))

    def with_last(self, words: str) -> str:
        """Return words with what became of the member that was gone last."""
        last = next(reversed(self.gone), None)
        return words if last is None else f"{words}; the last: member {last}: {self.gone[last]}"

    def begin(self) -> None:
        """Begin a generation."""
        self.changes += 1
        self.generation, self.phase = self.generation + 1, Phase.STOPPING

    def form(self, slow: Mapping[int, float]) -> None:
        """Begin to form the ring with those who are seated, some of whom are slow: that decides on the shards."""
        self.enter(Phase.FORMING)
        self.slow = {str(it): slow[it] for it in self.holders if it in slow}

    def run(self, cost_s: float) -> None:
        """Let the ring run, and remember how long it took to form it and to copy its state; 0 if nothing was copied."""
        self.enter(Phase.RUNNING)
        self.cost_s = max(self.cost_s, cost_s)

    def enter(self, phase: Phase, outcome: str = "") -> None:
        """Go on to another phase."""
        self.changes += 1
        self.phase, self.outcome = phase, outcome
        self.has_run = self.has_run or phase is Phase.RUNNING


@dataclass(slots=True)
class Member:
    """What was heard of a member that is not gone."""

    number: int
    token: str
    heard_s: float
    connected: bool = False
    fresh: bool = True
    step: int = 0
    stopped: bool = False  # in this generation
    here: bool = False
    ready: bool = False
    ran: bool = False  # it finished a step of this generation
    done: bool = False
    asked_s: float | None = None  # when it was told to stop
    groups: int = 0
    moved: int = -1
    waiting: bool = False
    store: str = ""
    node: str = ""
    ends: frozenset[str] = frozenset()
    until: int = 0  # the first step that it will not take; 0 if nobody knows
    relieved_step: int = -1  # of the ring, when this member was relieved; -1 if nobody knows
    is_trying: bool = False  # its main thread may compute though it has no seat
    compute_s: deque[float] = field(default_factory=lambda: deque(maxlen=32))
    step_s: deque[float] = field(default_factory=lambda: deque(maxlen=32))

    def begin(self) -> None:
        """Forget what it said in the generation before."""
        self.stopped = self.here = self.ready = self.ran = self.done = self.waiting = False
        self.asked_s = None

    def forgive(self, gap_s: float, now_s: float) -> None:
        """Do not count a time in which nobody could be heard."""
        self.heard_s = min(self.heard_s + gap_s, max(now_s, self.heard_s))
        self.asked_s = None if self.asked_s is None else min(self.asked_s + gap_s, now_s)

    def relieve(self, step: int) -> None:
        """Begin to try how fast it is."""
        self.relieved_step, self.is_trying, self.fresh = step, True, True
        self.compute_s.clear()
        self.step_s.clear()

    def beats(self, beat: Beat, shards: int) -> None:
        """Take note of what it tells of itself.

        Args:
            beat: What it says.
            shards: That it computes in the present generation; 0 if the beat does not tell of a step of that.
        """
        if shards and beat.step != self.step and beat.step_s > 0.0 and self.ran:
            self.compute_s.append(beat.compute_s / shards)
            self.step_s.append(beat.step_s)
        self.moved, self.waiting, self.until = beat.moved, beat.waiting, beat.until

    def moves(self, moved: int, *, is_waiting: bool) -> bool:
        """Say whether a beat is a sign that training goes on: an exchange has ended, or none is waited for."""
        return not self.done and (moved != self.moved or not is_waiting)


def returning(durable: Durable, heard_s: float) -> dict[int, Member]:
    """Return the members that a coordinator which was started again waits for, as if they had been heard at a time."""
    found = {}
    for name, token in durable.tokens.items():
        is_relieved = name in durable.relieved
        found[int(name)] = Member(int(name), token, heard_s, fresh=is_relieved, ran=True, is_trying=is_relieved)
    return found


@dataclass(slots=True)
class Watch:
    """When a recovery got how far, by the coordinator's clock."""

    generation: int
    reason: str
    sign_s: float  # the first that was seen of the fault
    began_s: float
    stopped_s: float = -1.0
    formed_s: float = -1.0
    copy_s: float = 0.0
    ready_s: float = -1.0
    ran_s: float = -1.0
    members: int = 0

    def __str__(self) -> str:
        it = self.seconds()
        return (
            f"seconds to detect {it.detect_s:.3f}, stop {it.stop_s:.3f}, choose {it.choose_s:.3f}, "
            f"form {it.form_s:.3f}, copy {it.copy_s:.3f}, first step {it.first_step_s:.3f}"
        )

    def explain(self, why: str) -> None:
        """Take note of who was gone, if so far only what others saw of that was known."""
        if why and " is gone: " not in self.reason and self.reason != START:
            self.reason = why

    def runs_s(self, now_s: float) -> float:
        """Return for how long the ring has run in this generation, 0 before."""
        return now_s - self.ready_s if self.ready_s >= 0.0 else 0.0

    def cost_s(self) -> float:
        """Return how long it took to form the ring and to copy its state, 0 if nobody copied anything."""
        return self.ready_s - self.formed_s if self.copy_s > 0.0 else 0.0

    def seconds(self) -> Recovery:
        """Return how long each phase took, -1 for what has not ended."""

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


RING, STATE, RECOVERIES = "ring.json", "state.json", "recoveries.json"


@dataclass(frozen=True, slots=True)
class Limits:
    """How long the coordinator waits for what; all in seconds but the last four."""

    silence_s: float = SILENCE_S  # without a word from a member that is declared gone then
    meet_s: float = 15.0  # for members to come back to a coordinator that was started again
    stop_s: float = 5.0  # for a member that hears the coordinator to stop
    arrive_s: float = 600.0  # for the script of a member that has stopped to come to the end of its step
    patience_s: float = 2.0  # for the desk to say who comes
    coming_s: float = 30.0  # for who comes to be there
    gather_s: float = 300.0  # for all to be there at the start
    hint_s: float = 60.0  # without a word or a step of a member, until people are told what may be wrong
    stall_s: float = 60.0  # in which nothing moves although all wait for each other
    frozen_s: float = 60.0  # until even most of the members are declared gone, which have ended themselves by then
    groups: int = 20  # that a process forms before it is started anew: each keeps some descriptors and threads
    slow_steps: int = 5  # in a row for which a member computes far longer than the others, before it is relieved
    well_steps: int = 10  # in a row for which it does not, before it has its seat again
    hold_steps: int = 100  # that its backup takes at least


@dataclass(frozen=True, slots=True)
class Settings:
    """What a coordinator is told at its start."""

    seats: int
    secret: str
    host: str = "127.0.0.1"
    limits: Limits = field(default_factory=Limits)
    spares: int = 0  # members that it is started with beside
    backups: int = 0  # slow members in whose place others may compute at the same time


def make_ring(
    folder: Path, seats: int, host: str = "127.0.0.1", limits: Limits | None = None, *,
    spares: int = 0, backups: int = 0,
) -> Settings:  # fmt: skip
    """Make the folder of a ring, unless it is there already.

    Args:
        folder: Of this ring alone.
        seats: In the ring.
        host: Address at which members reach the coordinator.
        limits: If others than the usual ones.
        spares: Members that it is started with beside.
        backups: Slow members in whose place others may compute at the same time.

    Returns:
        What the coordinator will be told, with a secret that was drawn for this ring.

    Raises:
        OSError: If the folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if (folder / RING).exists():
        return read_settings(folder)
    settings = Settings(seats, secrets.token_hex(16), host, limits or Limits(), spares, backups)
    write_file(folder, RING, asdict(settings))
    return settings


def read_settings(folder: Path) -> Settings:
    """Return what the coordinator of a ring is told.

    Raises:
        OSError: If it cannot be read.
        ValueError: If it is damaged.
    """
    content = json.loads((folder / RING).read_bytes())
    try:
        return Settings(**{**content, "limits": Limits(**content["limits"])})
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
