"""A ring without processes: the coordinator, and members that follow the protocol, message by message."""

import random
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from longshore.ring import wire
from longshore.ring.coordinator import LAUNCHERS, SCHEDULERS, Coordinator
from longshore.ring.membership import NO_MEMBER, Backups, CoordinatorState, MemberState, Phase, RingLimits, SlowMember

STEPS = 10_000


class RandomBackups(Backups):
    """Declares members slow, or fast again, at random.

    Args:
        random: Decides.
    """

    def __init__(self, random: random.Random) -> None:
        super().__init__(RingLimits(), backups=2)
        self.random, self.is_over = random, False

    def update(self, state: CoordinatorState, members: Mapping[int, MemberState], now_s: float) -> None:
        self.slow, self._well, self._idle_since_s = [], [], now_s
        seated = [it for it in state.holders if it != NO_MEMBER]
        may_be = state.phase is Phase.RUNNING and all(members[it].ran for it in seated) and not self.is_over
        if may_be and len(state.relieved) < 2 and self.random.random() < 0.5:
            self.slow = [SlowMember(self.random.choice(seated), 4.0, 1.0)]
        if may_be and self.random.random() < 0.3:
            self._well = [int(it) for it in state.relieved]


@dataclass
class Simulated:
    """A member's process, as the client thread and the main thread of a real one behave."""

    number: int
    token: str
    step: int = 0
    fresh: bool = True
    generation: int = 0
    at: int = 0
    layout: wire.RingLayout | None = None
    main: str = "waits"  # waits | ready | runs | finished
    went: int = 0  # the newest generation that it trains in
    alive: bool = True
    stopped: bool = False  # SIGSTOP
    connected: bool = False
    inbox: deque[wire.Message] = field(default_factory=deque)
    outbox: deque[wire.Message] = field(default_factory=deque)
    beats: int = 0

    def send(self, message: wire.Message) -> None:
        if self.connected:
            self.outbox.append(message)

    def receive(self, message: wire.Message) -> bool:
        """Receive a message; return whether the process lives on."""
        if isinstance(message, wire.Evicted):
            self.alive = False
        elif isinstance(message, wire.Abort) and message.generation >= self.generation:
            if message.generation > self.generation:
                self.generation, self.layout = message.generation, None
            self.send(wire.Stopped(self.number, self.generation, self.step, awaits_layout=self.main == "waits"))
        elif isinstance(message, wire.RingLayout) and message.generation >= self.generation:
            self.generation, self.layout = message.generation, message
        elif isinstance(message, wire.Relieved) and message.generation >= self.generation:
            self.generation, self.layout, self.fresh = message.generation, None, True
        elif isinstance(message, wire.Resume):
            self.went = max(self.went, message.generation)
        elif isinstance(message, wire.Finish):
            self.main = "finished"
        return self.alive

    def beat(self) -> None:
        self.beats += 1
        self.send(wire.Heartbeat(self.number, self.at, self.beats, self.step))


class World:
    """The ring, its processes and their messages; a seed decides on the order of events."""

    def __init__(self, seats: int, spares: int, seed: int) -> None:
        self.random = random.Random(seed)
        self.now_s, self.seats = 0.0, seats
        self.limits = RingLimits(gather_s=100.0, frozen_s=30.0, arrive_s=100.0)
        self.backups = RandomBackups(self.random)
        self.coordinator = Coordinator(seats, self.limits, 0.0, backups=self.backups)
        self.disk: CoordinatorState | None = None
        self.members: dict[int, Simulated] = {}
        self.launched: deque[wire.Message] = deque()  # messages of the launcher
        self.exits: list[wire.MemberExited] = []
        self.generation = 1
        self.act()
        for _ in range(seats + spares):
            self.start()

    # What may happen

    def start(self) -> None:
        number = len(self.members)
        self.members[number] = Simulated(number, f"t{number}")
        self.launched.append(wire.MemberStarting(number))

    def kill(self, number: int) -> None:
        member = self.members[number]
        if member.alive:
            member.alive = member.connected = False
            self.exits.append(wire.MemberExited(number, -9))
            self.launched.append(self.exits[-1])
            self.coordinator.member_disconnected(number, self.now_s)
            self.act()

    def cut(self, number: int) -> None:
        member = self.members[number]
        if member.connected:
            member.connected = False
            member.inbox.clear()
            member.outbox.clear()
            self.coordinator.member_disconnected(number, self.now_s)
            self.act()

    def restart(self) -> None:
        """The coordinator is killed, and restarted from its file; messages under way are lost."""
        assert self.disk is not None
        before = self.disk.generation
        self.coordinator = Coordinator(self.seats, self.limits, self.now_s, copied(self.disk), self.backups)
        assert self.coordinator.state.generation <= before + 1
        for member in self.members.values():
            member.connected = False
            member.inbox.clear()
            member.outbox.clear()
        self.launched = deque(
            [*(wire.MemberStarting(it.number) for it in self.members.values() if it.alive), *self.exits]
        )
        self.act()

    def fault(self, number: int) -> None:
        member = self.members[number]
        if member.alive and not member.stopped and member.at:
            member.send(wire.ExchangeFailed(number, member.at, "", "made up"))

    def stale(self, number: int) -> None:
        """A member repeats messages of an earlier generation, as a process that has lost its seat does."""
        generation = self.random.randrange(self.coordinator.state.generation)
        kind = self.random.choice([wire.MemberReady, wire.MemberDone, wire.FirstStep])
        self.coordinator.receive_member_message(number, kind(number, generation, self.random.randrange(50)), self.now_s)
        self.coordinator.receive_member_message(
            number, wire.Stopped(number, generation, 40, awaits_layout=True), self.now_s
        )
        self.act()

    def stop(self, number: int) -> None:
        self.members[number].stopped = not self.members[number].stopped

    def pass_time(self, seconds: float) -> None:
        """Time passes; members that can beat do."""
        until_s = self.now_s + seconds
        while self.now_s < until_s:
            self.now_s += 0.5
            for member in self.living():
                member.beat()
                while member.outbox:
                    self.deliver_to_coordinator(member.number)
            self.coordinator.tick(self.now_s)
            self.act()

    # How things move

    def living(self) -> list[Simulated]:
        return [it for it in self.members.values() if it.alive and not it.stopped and it.connected]

    def act(self) -> None:
        state = self.coordinator.state
        # The coordinator writes the state when this count has changed, and only then.
        assert self.disk is None or (state == self.disk) == (state.changes == self.disk.changes)
        self.disk = copied(state)
        outbox, self.coordinator.outbox = self.coordinator.outbox, []
        for to, message in outbox:
            if isinstance(message, wire.RingLayout):
                self.check_source(message)
            if to not in (LAUNCHERS, SCHEDULERS) and self.members[to].connected:
                self.members[to].inbox.append(message)
        self.check()

    def check(self) -> None:
        state = self.coordinator.state
        assert self.coordinator.report().gone == state.gone, "the report has all members that are gone"
        assert state.generation >= self.generation
        self.generation = state.generation
        seated = [it for it in state.holders if it != NO_MEMBER]
        assert len(seated) == len(set(seated)), "one member, one seat"
        assert not state.relieved.keys() & set(map(str, seated)), "a relieved member has no seat"
        assert state.tokens.keys() == {*map(str, seated), *state.relieved}, "no other process passes for a member"
        assert not any(str(it) in state.gone for it in seated), "a member that is gone has no seat"

    def check_source(self, form: wire.RingLayout) -> None:
        """No step is lost: no member with the ring's state is ahead of the source."""
        seated = [self.members[it.member] for it in form.assignments]
        assert self.members[form.source].step == max((it.step for it in seated if not it.fresh), default=0)

    def deliver_to_coordinator(self, number: int) -> None:
        member = self.members[number]
        if member.outbox:
            self.coordinator.receive_member_message(number, member.outbox.popleft(), self.now_s)
            self.act()

    def move(self, number: int) -> None:
        """Let a member do one thing."""
        member = self.members[number]
        if not member.alive or member.stopped:
            return
        if not member.connected:
            self.connect(member)
        elif member.outbox and self.random.random() < 0.5:
            self.deliver_to_coordinator(number)
        elif member.inbox:
            if not member.receive(member.inbox.popleft()):
                self.exits.append(wire.MemberExited(number, 76))
                self.launched.append(self.exits[-1])
                self.cut(number)
        else:
            self.main(member)

    def move_all(self, times: int) -> None:
        for number in list(self.members) * times:
            self.move(number)

    def connect(self, member: Simulated) -> None:
        member.connected = True
        hello = wire.Hello("member", member.number, member.token, member.at, member.step, member.fresh)
        if not self.coordinator.admit_member(hello, self.now_s):
            assert str(member.number) in self.coordinator.state.gone or self.coordinator.state.phase.is_over
        self.act()

    def main(self, member: Simulated) -> None:
        """The main thread continues."""
        form = member.layout
        if member.main == "waits":
            if form is not None and form.generation >= max(member.generation, member.at + 1):
                self.take(member, form)
            elif member.generation > member.at:
                member.send(wire.AwaitsLayout(member.number, member.generation, member.step))
        elif member.generation != member.at:
            member.main = "waits"
        elif member.main == "ready":
            if member.went >= member.at:
                member.main = "runs"
            else:
                member.send(wire.MemberReady(member.number, member.at, member.step))
        elif member.main == "runs":
            self.take_step(member)

    def take(self, member: Simulated, form: wire.RingLayout) -> None:
        """Take part in forming: the copy waits for the source, which may be dead or stopped."""
        source = self.members[form.source]
        if member.number in form.receivers and source.alive and not source.stopped and source.layout is form:
            member.step, member.fresh = source.step, False
        elif member.number in form.receivers:
            return
        member.at, member.main, member.fresh = form.generation, "ready", False
        member.send(wire.MemberReady(member.number, form.generation, member.step))

    def take_step(self, member: Simulated) -> None:
        """No member ends the exchange of a step before all have entered it."""
        assert member.layout is not None
        others = [self.members[it.member] for it in member.layout.assignments]
        if all(it.step >= member.step and it.at >= member.at for it in others) and member.step < STEPS:
            member.step += 1
            member.send(wire.FirstStep(member.number, member.at, member.step))

    def launcher_moves(self) -> None:
        if self.launched:
            self.coordinator.receive_launcher_message(self.launched.popleft(), self.now_s)
            self.act()

    def run_to_rest(self) -> bool:
        """Let all processes move and time pass, without faults. Return whether the ring runs or is lost in the end."""
        for member in self.members.values():
            member.stopped = False
        before = max((it.step for it in self.members.values() if it.alive), default=0)
        for turn in range(400):
            self.backups.is_over = turn > 20  # until then members may become slow, or fast again, without a fault
            for _ in range(12):
                self.launcher_moves()
                for number in self.members:
                    self.move(number)
            if self.backups.is_over and self.is_at_rest(before):
                return True
            self.pass_time(0.5)
        return False

    def is_at_rest(self, before: int) -> bool:
        """The ring made steps with as many members as it can have; or it is lost, as all its state is."""
        state = self.coordinator.state
        if state.phase is Phase.LOST:
            return not [it for it in self.members.values() if it.alive and not it.fresh]
        seated = [self.members[it] for it in state.holders if it != NO_MEMBER]
        relieved = [self.members[int(it)] for it in state.relieved]
        waiting = [it for it in self.members.values() if it.alive and it not in (*seated, *relieved)]
        return (
            state.phase is Phase.RUNNING
            and all(it.alive and it.at == state.generation for it in seated)
            and max(it.step for it in seated) - min(it.step for it in seated) <= 1
            and max(it.step for it in seated) > before
            and (NO_MEMBER not in state.holders or not waiting)
        )


def copied(state: CoordinatorState) -> CoordinatorState:
    """Return what a file would hold."""
    parts = {"holders": [*state.holders]} | {
        name: {**getattr(state, name)} for name in ("tokens", "gone", "relieved", "slow")
    }
    return replace(state, **parts)  # type: ignore[arg-type]
