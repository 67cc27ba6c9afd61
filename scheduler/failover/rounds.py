"""How a ring goes on after a fault, as a machine without sockets and clocks: events go in, messages come out.

A round raises the generation, stops all members, fills seats that are empty, forms the ring and lets it run. Whatever
happens before the ring is formed joins the round; what happens later begins another one. Source: SPEC F8 to F10.

The process that coordinates imports this module: standard library only.
"""

from collections import Counter, deque
from collections.abc import Callable
from typing import Final

from .settings import Limits
from .shape import form_of, want_of
from .standing import NOBODY, Durable, Member, Phase, Watch
from .wire import (
    RESTART_STATUS,
    Abort,
    AskToSave,
    Beat,
    Coming,
    Declared,
    Done,
    End,
    Exited,
    Fault,
    Finish,
    Go,
    Gone,
    Hello,
    Here,
    Leave,
    Lease,
    MaySave,
    Message,
    NoneComing,
    Ready,
    Report,
    Running,
    Starting,
    Stopped,
)

LAUNCHERS, DESKS = -2, -3  # to whom a message goes that is for no single member
RESTART: Final = "its process has formed as many groups as it may"
FUTILE: Final = 10  # rounds in a row that lost nobody and led to no step
BLAMED: Final = 3  # faults of one pair of members, after which one of them is replaced
BLAME_S: Final = 600.0  # for so long a fault of a pair counts


class Rounds:
    """The machine. Each event returns nothing; what is to be told waits in `outbox`.

    Whoever drives it writes `durable` to a file, where that has changed, before it sends what is in the outbox.

    Args:
        seats: In the ring.
        limits: How long it waits.
        now_s: The time, of a clock that is never set.
        durable: What a coordinator before this one has written.
    """

    def __init__(self, seats: int, limits: Limits, now_s: float, durable: Durable | None = None) -> None:
        self.limits, self.now_s = limits, now_s
        self.members: dict[int, Member] = {}
        self.outbox: list[tuple[int, Message]] = []
        self.recoveries: deque[Watch] = deque(maxlen=32)
        self.has_desk = False
        self._coming: dict[int, float] = {}  # until when each member is waited for
        self._none_coming = ""
        self._blames: list[tuple[float, frozenset[int]]] = []
        self._signs_s: dict[int, float] = {}
        self._futile = 0
        self._moved_s = now_s
        self._told: tuple[int, tuple[int, ...]] | None = None  # generation and seats, to the desk
        self._ticked_s = now_s
        self._began_s = now_s
        self.durable = durable or Durable([NOBODY] * seats)
        if durable is None:
            self.durable.generation = 1
            self._watch("start", now_s)
        elif not durable.phase.is_over:
            self._take_over()

    def _take_over(self) -> None:
        """Wait for the members of a coordinator that ended; those that do not come back were lost meanwhile."""
        late_s = self.now_s + self.limits.meet_s - self.limits.silence_s
        for number in self.seated():
            member = Member(number, self.durable.tokens[str(number)], late_s, fresh=False)
            member.ran = True
            self.members[number] = member
        if self.durable.phase is not Phase.RUNNING:
            self._begin("the coordinator was started again")
        else:
            self._watch("start", self.now_s)

    # What is there

    def seated(self) -> list[int]:
        """Return the members that have a seat, by seat."""
        return [it for it in self.durable.holders if it != NOBODY]

    def spares(self) -> list[int]:
        """Return the members that wait for a seat."""
        seated = set(self.seated())
        return sorted(number for number in self.members if number not in seated)

    def report(self) -> Report:
        """Return the ring at present."""
        steps = [self.members[it].step for it in self.seated() if it in self.members]
        return Report(
            phase=str(self.durable.phase),
            generation=self.durable.generation,
            seats=len(self.durable.holders),
            order=list(self.durable.holders),
            spares=self.spares(),
            step=max(steps, default=0),
            gone=dict(self.durable.gone),
            recoveries=[it.seconds() for it in self.recoveries],
        )

    def _send(self, to: int, message: Message) -> None:
        self.outbox.append((to, message))

    # Events of members

    def joined(self, hello: Hello, now_s: float) -> bool:
        """A process says that it is a member. Return whether it is one."""
        self.now_s = now_s
        number, durable = hello.member, self.durable
        if durable.phase is Phase.DONE and str(number) not in durable.gone:
            self._send(number, Finish(durable.generation))
            return True
        member = self.members.get(number)
        reason = durable.gone.get(str(number), "")
        if durable.phase.is_over:
            reason = reason or durable.outcome
        elif number < 0:
            reason = f"{number} is no number of a member"
        elif member is None and not reason and not hello.fresh:
            reason = "it comes from another ring"
        elif member is not None and member.token != hello.token:
            reason = "another process is that member"
        if reason:
            self._send(number, Gone(reason))
            return False
        if member is None:
            member = self.members[number] = Member(number, hello.token, now_s)
        self._coming.pop(number, None)
        self._heard(member, hello)
        self._advance()
        return True

    def _heard(self, member: Member, hello: Hello) -> None:
        member.connected, member.heard_s = True, self.now_s
        member.store, member.node, member.step, member.fresh = hello.store, hello.node, hello.step, hello.fresh
        is_seated, phase = member.number in self.seated(), self.durable.phase
        if not is_seated:
            member.stopped = member.here = True
        elif phase is Phase.STOPPING:
            member.asked_s = self.now_s
            self._send(member.number, Abort(self.durable.generation))
        elif phase is Phase.FORMING:
            self._send(member.number, form_of(self.durable, self.members))
        elif hello.generation == self.durable.generation:
            self._send(member.number, Go(self.durable.generation))
        else:
            self._begin(f"member {member.number} came back from generation {hello.generation}")

    def closed(self, number: int, now_s: float) -> None:
        """A member's connection is over; it may come back."""
        self.now_s = now_s
        if number in self.members:
            self.members[number].connected = False
            self._signs_s.setdefault(number, now_s)

    def said(self, number: int, message: Message, now_s: float) -> None:
        """A member says something; of what is not of this generation nothing counts but that it lives."""
        self.now_s = now_s
        member = self.members.get(number)
        if member is None or self.durable.phase.is_over:
            return
        member.heard_s = now_s
        if isinstance(message, Beat):
            self._beat(member, message)
        elif isinstance(message, Leave):
            self._declare(number, message.reason)
        elif isinstance(message, AskToSave):
            granted = message.generation == self.durable.generation and number in self.seated()
            self._send(number, MaySave(message.generation, message.step, granted))
        elif getattr(message, "generation", None) == self.durable.generation and number in self.seated():
            self._counts(member, message)
        self._advance()

    def _counts(self, member: Member, message: Message) -> None:
        phase = self.durable.phase
        if isinstance(message, Stopped | Here) and phase is Phase.STOPPING:
            member.stopped, member.step = True, message.step
            member.here = isinstance(message, Here) or message.here
        elif isinstance(message, Ready):
            self._ready(member, message)
        elif isinstance(message, Running) and phase is Phase.RUNNING:
            self._ran(member, message.step)
        elif isinstance(message, Done):
            member.done, member.ran, member.step = True, True, message.step
        elif isinstance(message, Fault) and phase in (Phase.FORMING, Phase.RUNNING):
            self._fault(member, message)

    def _beat(self, member: Member, beat: Beat) -> None:
        self._send(member.number, Lease(beat.number))
        if beat.moved != member.moved or not beat.waiting:
            self._moved_s = self.now_s
        if beat.step != member.step and beat.step_s > 0.0 and member.ran:
            member.compute_s.append(beat.compute_s)
            member.step_s.append(beat.step_s)
        member.moved, member.waiting = beat.moved, beat.waiting
        if beat.generation == self.durable.generation and self.durable.phase is Phase.RUNNING:
            if beat.step > member.step:
                self._ran(member, beat.step)
            member.step = max(member.step, beat.step)

    def _ready(self, member: Member, ready: Ready) -> None:
        if self.durable.phase is Phase.RUNNING:  # it did not hear that all may go
            self._send(member.number, Go(self.durable.generation))
        elif self.durable.phase is Phase.FORMING:
            member.ready, member.fresh, member.step = True, False, ready.step
            member.groups, member.ends = ready.groups, frozenset(ready.ends)
            self._moved_s = self.now_s
            self.recoveries[-1].copy_s = max(self.recoveries[-1].copy_s, ready.copy_s)

    def _ran(self, member: Member, step: int) -> None:
        member.ran, member.step = True, max(member.step, step)
        self._futile = 0
        if self.recoveries[-1].ran_s < 0.0 and all(self.members[it].ran for it in self.seated()):
            self.recoveries[-1].ran_s = self.now_s

    def _fault(self, member: Member, fault: Fault) -> None:
        accused = [it for it in self.seated() if fault.peer in self.members[it].ends and it != member.number]
        if fault.peer and accused:
            self._blames.append((self.now_s, frozenset((member.number, accused[0]))))
        self._begin(f"member {member.number}: {fault.evidence}"[:300])

    # Events of launchers and desks

    def launcher_said(self, message: Message, now_s: float) -> None:
        """Who launches members says something."""
        self.now_s = now_s
        if self.durable.phase.is_over:
            return
        if isinstance(message, Starting):
            self._comes(message.member)
        elif isinstance(message, Exited):
            self._coming.pop(message.member, None)
            word = "to be started anew" if message.status == RESTART_STATUS else f"with status {message.status}"
            self._declare(message.member, f"its process ended {word}")
        self._advance()

    def desk_said(self, message: Message, now_s: float) -> None:
        """The desk says who comes for an empty seat."""
        self.now_s = now_s
        if isinstance(message, Coming):
            self._comes(message.member)
        elif isinstance(message, NoneComing):
            self._none_coming = message.reason or "nobody can be had"
        self._advance()

    def desk_came(self) -> None:
        """A desk connects: it is told which seats are empty, if any are."""
        self.has_desk = True
        if self.durable.has_run and NOBODY in self.durable.holders and not self.durable.phase.is_over:
            self._send(DESKS, want_of(self.durable, self.members))

    def _comes(self, number: int) -> None:
        if number not in self.members and str(number) not in self.durable.gone:
            self._coming[number] = self.now_s + self.limits.coming_s

    def tick(self, now_s: float) -> None:
        """Let time pass."""
        gap_s, self._ticked_s, self.now_s = now_s - self._ticked_s, now_s, now_s
        if gap_s > self.limits.silence_s / 5:  # This process stood still: who could not be heard was not silent.
            for member in self.members.values():
                member.heard_s = min(member.heard_s + gap_s, now_s)
                member.asked_s = None if member.asked_s is None else min(member.asked_s + gap_s, now_s)
        if self.durable.phase.is_over:
            return
        for number, reason in self._silent():
            self._declare(number, reason)
        self._advance()

    def _silent(self) -> list[tuple[int, str]]:
        limit_s = self.limits.silence_s
        quiet = {it.number: self.now_s - it.heard_s for it in self.members.values()}
        silent = [number for number, for_s in quiet.items() if for_s > limit_s]
        if 2 * len(silent) > len(quiet):  # Then our own link is likelier to be cut.
            silent = [number for number in silent if quiet[number] > self.limits.frozen_s]
        found = [(number, f"it said nothing for {quiet[number]:.0f} s") for number in silent]
        if self.durable.phase is Phase.STOPPING:
            for number in self.seated():
                member = self.members[number]
                asked_s = member.asked_s
                if not member.stopped and asked_s is not None and self.now_s - asked_s > self.limits.stop_s:
                    found.append((number, f"it did not stop within {self.limits.stop_s:.0f} s"))
        return list(dict(found).items())

    # Decisions

    def _declare(self, number: int, reason: str) -> None:
        """Count a member as gone, for ever."""
        durable = self.durable
        if number < 0 or str(number) in durable.gone or durable.phase.is_over:
            return
        durable.gone[str(number)] = reason
        durable.tokens.pop(str(number), None)
        self._send(number, Gone(reason, restart=reason == RESTART))
        self._send(LAUNCHERS, Declared(number, reason))
        member = self.members.pop(number, None)
        self._coming.pop(number, None)
        sign_s = self._signs_s.pop(number, self.now_s)
        if number not in durable.holders:
            return
        assert member is not None
        durable.holders[durable.holders.index(number)] = NOBODY
        self._futile = 0
        if durable.phase is not Phase.STOPPING:
            self._begin(f"member {number} is gone: {reason}", sign_s)

    def _begin(self, reason: str, sign_s: float | None = None) -> None:
        """Begin a round."""
        self.durable.generation += 1
        self.durable.phase = Phase.STOPPING
        self._none_coming, self._futile = "", self._futile + 1
        self._watch(reason, self.now_s if sign_s is None else sign_s)
        for number in self.seated():
            member = self.members[number]
            member.begin()
            if member.connected:
                member.asked_s = self.now_s
                self._send(number, Abort(self.durable.generation))
        if self._futile > FUTILE:
            self._end(Phase.LOST, f"{FUTILE} rounds led to no step: {reason}")

    def _watch(self, reason: str, sign_s: float) -> None:
        self.recoveries.append(Watch(self.durable.generation, reason, sign_s, self.now_s))
        self._began_s = self._moved_s = self.now_s

    def _advance(self) -> None:
        """Go on as far as what is known allows."""
        steps: dict[Phase, Callable[[], bool]] = {
            Phase.STOPPING: self._stopping,
            Phase.FORMING: self._forming,
            Phase.RUNNING: self._running,
        }
        while self.durable.phase in steps and steps[self.durable.phase]():
            pass
        self._tell_desk()

    def _stopping(self) -> bool:
        self._fill()
        seated = self.seated()
        members = [self.members[it] for it in seated]
        if self.durable.has_run and all(it.fresh for it in members):
            return self._end(Phase.LOST, "no member is left that has the ring's state")
        if not all(it.stopped for it in members) or not members:
            return self._nobody_comes(members)
        watch = self.recoveries[-1]
        if watch.stopped_s < 0.0:
            watch.stopped_s = self.now_s
        if NOBODY in self.durable.holders and self._may_come():
            return False
        if self._blamed():
            return True
        if not all(it.here for it in members):
            return False
        self.durable.phase = Phase.FORMING
        watch.formed_s, watch.members, self._moved_s = self.now_s, len(members), self.now_s
        form = form_of(self.durable, self.members)
        for number in seated:
            self._send(number, form)
        return True

    def _nobody_comes(self, members: list[Member]) -> bool:
        if members or self._may_come():
            return False
        return self._end(Phase.LOST, "no member came")

    def _fill(self) -> None:
        """Give empty seats to members that wait; at the start each has the seat of its number while that may come."""
        holders = self.durable.holders
        spares = [it for it in self.spares() if self.members[it].connected]
        for seat in [it for it, holder in enumerate(holders) if holder == NOBODY]:
            if not spares:
                break
            if not self.durable.has_run and seat not in spares and self._own_may_come(seat):
                continue
            wanted = seat if not self.durable.has_run and seat in spares else self._pick(spares)
            if wanted == NOBODY:
                break
            spares.remove(wanted)
            holders[seat] = wanted
            self.durable.tokens[str(wanted)] = self.members[wanted].token
            self._none_coming = ""

    def _own_may_come(self, seat: int) -> bool:
        is_late = self.now_s - self._began_s > self.limits.gather_s
        return str(seat) not in self.durable.gone and seat not in self.durable.holders and not is_late

    def _pick(self, spares: list[int]) -> int:
        """Return the spare for a seat; at the start none whose own seat is empty."""
        own = len(self.durable.holders) if not self.durable.has_run else 0
        return next((it for it in spares if it >= own or self.durable.holders[it] != NOBODY), NOBODY)

    def _may_come(self) -> bool:
        """Say whether to wait for somebody who takes an empty seat."""
        if any(until_s > self.now_s for until_s in self._coming.values()):
            return True
        if not self.durable.has_run and any(self._own_may_come(seat) for seat in range(len(self.durable.holders))):
            return True
        return self.has_desk and not self._none_coming and self.now_s - self._began_s <= self.limits.patience_s

    def _blamed(self) -> bool:
        """Replace one of two members between which exchanges fail again and again."""
        recent = [pair for at_s, pair in self._blames if self.now_s - at_s < BLAME_S]
        if not recent or len(self.seated()) < 2:
            return False
        pair, times = Counter(recent).most_common(1)[0]
        if times < BLAMED or not pair <= set(self.seated()):
            return False
        accused = Counter(number for it in recent for number in it)
        number = max(pair, key=lambda it: (accused[it], self.durable.holders.index(it)))
        self._blames = [it for it in self._blames if it[1] != pair]
        self._declare(number, f"exchanges between members {sorted(pair)} failed {times} times")
        return True

    def _forming(self) -> bool:
        members = [self.members[it] for it in self.seated()]
        if all(it.ready for it in members):
            steps = {it.step for it in members}
            if len(steps) > 1:
                self._begin(f"members became ready at steps {sorted(steps)}")
                return True
            self.durable.phase, self.durable.has_run = Phase.RUNNING, True
            self.recoveries[-1].ready_s = self._moved_s = self.now_s
            for member in members:
                self._send(member.number, Go(self.durable.generation))
            return True
        if self.now_s - self._moved_s > self.limits.stall_s:
            self._begin("nothing moved while the ring was formed")
            return True
        return False

    def _running(self) -> bool:
        members = [self.members[it] for it in self.seated()]
        if all(it.done for it in members):
            return self._end(Phase.DONE, "all members are done")
        if not all(it.ran for it in members):
            return self._stalled(members)
        if NOBODY in self.durable.holders and self.spares():
            self._begin(f"member {self.spares()[0]} joins")
            return True
        worn = [it for it in members if it.groups >= self.limits.groups and not it.done]
        if worn and len(members) > 1:
            self._declare(max(worn, key=lambda it: it.groups).number, RESTART)
            return True
        return self._stalled(members)

    def _stalled(self, members: list[Member]) -> bool:
        if not all(it.waiting for it in members) or self.now_s - self._moved_s <= self.limits.stall_s:
            return False
        self._begin(f"nothing moved for {self.limits.stall_s:.0f} s although all wait for each other")
        return True

    def _end(self, phase: Phase, reason: str) -> bool:
        self.durable.phase, self.durable.outcome = phase, reason
        for number in self.members:
            self._send(number, Finish(self.durable.generation) if phase is Phase.DONE else Gone(reason))
        for to in (LAUNCHERS, DESKS):
            self._send(to, End(str(phase), reason))
        return False

    def _tell_desk(self) -> None:
        """Tell the desk which seats are empty, where that has changed."""
        now = (self.durable.generation, tuple(self.durable.holders))
        if not self.durable.has_run or self.durable.phase.is_over or now == self._told:
            return
        is_news = NOBODY in self.durable.holders or (self._told is not None and NOBODY in self._told[1])
        self._told = now
        if is_news:
            self._send(DESKS, want_of(self.durable, self.members))
