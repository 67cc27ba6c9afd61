"""The ring as a machine without sockets and clocks: events go in, messages come out.

How a ring goes on after a fault, as a machine without sockets and clocks: events go in, messages come out.

A round raises the generation, stops all members, fills seats that are empty, forms the ring and lets it run. Whatever
happens before the ring is formed joins the round; what happens later begins another one. Source: SPEC F8 to F10.

The process that coordinates imports this module: standard library only.

How a ring looks: its order, whose state counts, who computes which shard, and which seats are empty.

The process that coordinates imports this module: standard library only.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from . import wire
from .standing import NOBODY, START, Durable, Limits, Member, Phase, Watch, returning
from .suspicion import (
    Blames,
    Expected,
    Hints,
    Relief,
    end_words,
    fill,
    refusal_of,
    silent,
    unlike_ends,
    unstopped,
    waiting,
    worn,
)
from .wire import Empty, Form, Place, Report, Slow, Want


def form_of(durable: Durable, members: Mapping[int, Member]) -> Form:
    """Return the form of a generation: the source of the state is a member with the greatest step."""
    holders, shards = durable.holders, shards_of(durable)
    places = [Place(seat, holders[seat], mine, members[holders[seat]].store) for seat, mine in shards.items()]
    seated = [members[holders[seat]] for seat in shards]
    # Of a new member the step says nothing, as long as another one has run.
    source = max(seated, key=lambda it: (not it.fresh, it.step))
    receivers = [it.number for it in seated if it is not source and (it.fresh or it.step < source.step)]
    return Form(durable.generation, len(holders), places, source.number, receivers, source.store)


def shards_of(durable: Durable) -> dict[int, list[int]]:
    """Return the shards by filled seat: its own, and some of those of empty seats, so that all are done the soonest."""
    holders = durable.holders
    times = {seat: durable.slow.get(str(holder), 1.0) for seat, holder in enumerate(holders) if holder != NOBODY}
    shards = {seat: [seat] for seat in times}
    for orphan in (seat for seat, holder in enumerate(holders) if holder == NOBODY):
        shards[min(times, key=lambda seat: ((len(shards[seat]) + 1) * times[seat], seat))].append(orphan)
    return shards


def shards_at(durable: Durable, member: int) -> int:
    """Return how many shards a member computes; 1 for one without a seat, which computes none."""
    return len(shards_of(durable)[durable.holders.index(member)]) if member in durable.holders else 1


def want_of(durable: Durable, members: Mapping[int, Member], slow: Sequence[int] = ()) -> Want:
    """Return which seats are empty, and what is known of the others. Source: SPEC F2, F3.

    Args:
        durable: Who sits where.
        members: All that are not gone.
        slow: Seated members in whose place others are to compute.
    """
    order = [it for it in durable.holders if it != NOBODY]
    seated = [members[it] for it in order]
    return Want(
        generation=durable.generation,
        empty=list(_empty(durable.holders)) if order else [],
        order=order,
        step_s=max((sum(it.step_s) / len(it.step_s) for it in seated if it.step_s), default=0.0),
        compute_s={str(it.number): sum(it.compute_s) / len(it.compute_s) for it in seated if it.compute_s},
        nodes={str(it.number): it.node for it in seated},
        slow=[Slow(it, seat, *_beside(durable.holders, seat)) for it in slow for seat in [durable.holders.index(it)]],
        relieved=list(map(int, durable.relieved)),
    )


class Asked:
    """What a desk was told of a ring."""

    def __init__(self) -> None:
        self._told: object = None
        self._was_wanting = False

    def news(self, durable: Durable, members: Mapping[int, Member], slow: Sequence[int]) -> Want | None:
        """Return what a desk is to be told, None if it knows: whether seats are empty, or members slow."""
        now = (durable.generation, *durable.holders), tuple(slow), tuple(durable.relieved)
        if not durable.has_run or durable.phase.is_over or now == self._told:
            return None
        is_wanting, was_wanting = NOBODY in durable.holders or bool(slow or durable.relieved), self._was_wanting
        self._told, self._was_wanting = now, is_wanting
        return want_of(durable, members, slow) if is_wanting or was_wanting else None


def report_of(durable: Durable, members: Mapping[int, Member], recoveries: Iterable[Watch], hints: list[str]) -> Report:
    """Return the ring at present, for people."""
    return Report(
        phase=str(durable.phase),
        generation=durable.generation,
        seats=len(durable.holders),
        order=list(durable.holders),
        spares=sorted(members.keys() - set(durable.holders) - set(map(int, durable.relieved))),
        step=max((members[it].step for it in durable.holders if it != NOBODY), default=0),
        gone=dict(durable.gone),
        recoveries=[it.seconds() for it in recoveries],
        relieved=list(map(int, durable.relieved)),
        hints=hints,
    )


def _empty(holders: Sequence[int]) -> Iterator[Empty]:
    for seat in (it for it, holder in enumerate(holders) if holder == NOBODY):
        yield Empty(seat, *_beside(holders, seat))


def _beside(holders: Sequence[int], seat: int) -> tuple[int, int]:
    """Return the living members before and after a seat; its own holder where there is no other."""
    around = [holders[(seat + far) % len(holders)] for far in range(1, len(holders) + 1)]
    living = [it for it in around if it not in (NOBODY, holders[seat])] or [holders[seat]]
    return living[-1], living[0]


LAUNCHERS, DESKS = -2, -3  # to whom a message goes that is for no single member
RESTART: Final = "its process has formed as many groups as it may"
UNNEEDED: Final = "the ring was done before it came"
FUTILE: Final = 10  # rounds in a row that lost nobody and led to no step


class Rounds:
    """The machine. Each event returns nothing; what is to be told waits in `outbox`.

    Whoever drives it writes `durable` to a file, where that has changed, before it sends what is in the outbox.

    Args:
        seats: In the ring.
        limits: How long it waits.
        now_s: The time, of a clock that is never set.
        durable: What a coordinator before this one has written.
        relief: Judges who is slow; without it nobody is.
    """

    def __init__(
        self, seats: int, limits: Limits, now_s: float, durable: Durable | None = None, relief: Relief | None = None
    ) -> None:  # fmt: skip
        self.limits, self.now_s = limits, now_s
        self.members: dict[int, Member] = {}
        self.outbox: list[tuple[int, wire.Message]] = []
        self.news: list[str] = []  # for people
        self.recoveries: deque[Watch] = deque(maxlen=32)
        self._expected = Expected(limits)
        self._blames, self._relief = Blames(), relief or Relief(limits)
        self._signs_s: dict[int, float] = {}  # when the connection of each member was seen to end
        self._futile, self._hints = 0, Hints(limits)
        self._form: wire.Form  # of this generation, while the ring is formed
        self._asked = Asked()
        self._ticked_s = self._moved_s = self._began_s = now_s
        self.durable = durable or Durable([NOBODY] * seats, generation=1)
        self._watch(START, now_s)
        if durable is not None:
            self._take_over()

    def _take_over(self) -> None:
        """Wait for the members of a coordinator that ended; those that do not come back were lost meanwhile."""
        heard_s = self.now_s + self.limits.meet_s - self.limits.silence_s
        self.members.update(returning(self.durable, heard_s))
        if self.durable.phase in (Phase.STOPPING, Phase.FORMING):
            self._expected.awaits_until_s = self.now_s + self.limits.patience_s  # desks, launchers say again who comes
            self._begin("the coordinator was started again")

    # What is there

    def seated(self) -> list[int]:
        """Return the members that have a seat, by seat."""
        return [it for it in self.durable.holders if it != NOBODY]

    def report(self) -> wire.Report:
        """Return the ring at present."""
        return report_of(self.durable, self.members, self.recoveries, self._hints.present())

    def _seated(self) -> list[Member]:
        return [self.members[it] for it in self.seated()]

    def _send(self, to: int, message: wire.Message) -> None:
        self.outbox.append((to, message))

    def joined(self, hello: wire.Hello, now_s: float) -> bool:
        """A process says that it is a member. Return whether it is one."""
        self.now_s = now_s
        number, durable = hello.member, self.durable
        if durable.phase is Phase.DONE and str(number) not in durable.gone:
            self._send(number, wire.Finish(durable.generation))
            return True
        if reason := refusal_of(hello, durable, self.members):
            self._send(number, wire.Gone(reason))
            return False
        member = self.members.setdefault(number, Member(number, hello.token, now_s))
        self._expected.came(number, now_s)
        self._signs_s.pop(number, None)
        member.connected, member.heard_s = True, now_s
        member.store, member.node, member.step = hello.store, hello.node, hello.step
        member.fresh = hello.fresh or str(number) in durable.relieved
        self._bring_up_to_date(member, hello.generation)
        self._advance()
        return True

    def _bring_up_to_date(self, member: Member, generation: int) -> None:
        """Tell a member that comes, or comes back, what the ring is doing."""
        phase = self.durable.phase
        if not self.durable.has_seat(member.number):
            member.stopped = member.here = True
            if str(member.number) in self.durable.relieved:
                self._send(member.number, wire.Relieved(self.durable.generation))
        elif phase is Phase.STOPPING:
            member.asked_s = self.now_s
            self._send(member.number, wire.Abort(self.durable.generation))
        elif phase is Phase.FORMING:
            self._send(member.number, self._form)
        elif generation == self.durable.generation:
            self._send(member.number, wire.Go(generation))
        else:
            self._begin(f"member {member.number} came back from generation {generation}")

    def closed(self, number: int, now_s: float) -> None:
        """A member's connection is over; it may come back."""
        self.now_s = now_s
        if number in self.members:
            self.members[number].connected = False
            self._signs_s[number] = now_s

    def said(self, number: int, message: wire.Message, now_s: float) -> None:
        """A member says something; of what is not of this generation nothing counts but that it lives."""
        self.now_s = now_s
        member = self.members.get(number)
        if member is None:
            return
        member.heard_s = now_s
        if isinstance(message, wire.Beat):
            self._beat(member, message)  # what follows from it may wait for the next tick: there are many beats
        if isinstance(message, wire.Beat) or self.durable.phase.is_over:
            return
        is_present = getattr(message, "generation", None) == self.durable.generation and self.durable.has_seat(number)
        if isinstance(message, wire.Fault) and message.generation <= self.durable.generation:
            # Also of a generation that another one's word has just ended.
            self._blames.hear(message, self._seated(), self.now_s)
        if isinstance(message, wire.Leave):
            self._declare(number, message.reason)
        elif isinstance(message, wire.Tried):
            if str(number) in self.durable.relieved:
                member.compute_s.append(message.compute_s)
        elif isinstance(message, wire.AskToSave):
            self._send(number, wire.MaySave(message.generation, message.step, is_present))
        elif is_present:
            self._counts(member, message)
        self._advance()

    def _counts(self, member: Member, message: wire.Message) -> None:
        phase = self.durable.phase
        if isinstance(message, wire.Stopped | wire.Here) and phase is Phase.STOPPING:
            member.stopped, member.step = True, message.step
            member.here = isinstance(message, wire.Here) or message.here
        elif isinstance(message, wire.Ready):
            self._ready(member, message)
        elif isinstance(message, wire.Running) and phase is Phase.RUNNING:
            self._ran(member, message.step)
        elif isinstance(message, wire.Done) and phase is Phase.RUNNING:
            member.done = True
            self._ran(member, message.step)
        elif isinstance(message, wire.Fault) and phase in (Phase.FORMING, Phase.RUNNING):
            self._begin(f"member {member.number}: {message.evidence}"[:300])

    def _beat(self, member: Member, beat: wire.Beat) -> None:
        self._send(member.number, wire.Lease(beat.number))
        if self.durable.has_seat(member.number) and member.moves(beat.moved, is_waiting=beat.waiting):
            self._moved_s = self.now_s
        is_present = beat.generation == self.durable.generation and self.durable.phase is Phase.RUNNING
        # Any other beat tells of a step that is over, again and again.
        counts = is_present and self.durable.has_seat(member.number)
        member.beats(beat, shards_at(self.durable, member.number) if counts else 0)
        if counts and beat.step > member.step:
            self._ran(member, beat.step)

    def _ready(self, member: Member, ready: wire.Ready) -> None:
        if self.durable.phase is Phase.RUNNING:  # it did not hear that all may go
            self._send(member.number, wire.Go(self.durable.generation))
        elif self.durable.phase is Phase.FORMING:
            member.ready, member.fresh, member.step, member.is_trying = True, False, ready.step, False
            member.groups, member.ends = ready.groups, frozenset(ready.ends)
            self._moved_s = self.now_s
            self.recoveries[-1].copy_s = max(self.recoveries[-1].copy_s, ready.copy_s)

    def _ran(self, member: Member, step: int) -> None:
        member.ran, member.step = True, max(member.step, step)
        self._futile = 0
        watch, seats = self.recoveries[-1], len(self.durable.holders)
        if watch.ran_s < 0.0 and all(it.ran for it in self._seated()):
            watch.ran_s = self.now_s
            self.news.append(f"generation {watch.generation} runs with {watch.members} of {seats} members; {watch}")

    # Events of launchers, of desks, and of time

    def launcher_said(self, message: wire.Message, now_s: float) -> None:
        """Who launches members says something; a process that it proves gone is gone at once."""
        self.now_s = now_s
        if self.durable.phase is Phase.DONE and isinstance(message, wire.Starting) and self._is_new(message.member):
            self._declare(message.member, UNNEEDED)
        if self.durable.phase.is_over:
            return
        self._expected.drop(NOBODY)  # a member that was promised without a number
        if isinstance(message, wire.Starting) and self._is_new(message.member):
            self._expected.start(message.member, now_s)
        elif isinstance(message, wire.Exited):
            self._declare(message.member, f"its process {end_words(message.status, message.words)}")
        self._advance()

    def desk_came(self, now_s: float) -> None:
        """A desk connects: it is told which seats are empty, if any are."""
        self.now_s, self._expected.has_desk = now_s, True
        self._asked = Asked()
        self._tell_desk()

    def desk_left(self) -> None:
        """No desk is there any more."""
        self._expected.has_desk = False

    def desk_said(self, message: wire.Message, now_s: float) -> None:
        """The desk says who comes for an empty seat, or who is to leave."""
        self.now_s = now_s
        if isinstance(message, wire.Coming) and self._is_new(message.member):
            self._expected.promise(message.member, now_s)
        elif isinstance(message, wire.NoneComing):
            self._expected.none_coming = True
        elif isinstance(message, wire.Retire):
            self._declare(message.member, message.reason)
        self._advance()

    def _is_new(self, number: int) -> bool:
        return number not in self.members and str(number) not in self.durable.gone | self.durable.tokens

    def tick(self, now_s: float) -> None:
        """Let time pass."""
        gap_s, self._ticked_s, self.now_s = now_s - self._ticked_s, now_s, now_s
        if gap_s > self.limits.silence_s / 5:  # This process stood still: who could not be heard was not silent.
            for it in self.members.values():
                it.forgive(gap_s, now_s)
            self._expected.delay(gap_s)
        if self.durable.phase.is_over:
            return
        wordless, runs_s = self._expected.wordless(now_s), self.recoveries[-1].runs_s(now_s)
        for line in self._hints.look(self.members.values(), wordless, self._seated(), runs_s, now_s):
            self.news.append(line)
            self._send(DESKS, wire.Hint(line.partition(": ")[2]))
        suspects = list(silent(self.members.values(), self.limits, now_s))
        if self.durable.phase is Phase.STOPPING:
            suspects += unstopped(self._seated(), self.limits, now_s)
        for suspect in suspects:
            self._declare(*suspect)
        for number in self._expected.overdue(now_s, has_run=self.durable.has_run):
            self._declare(number, "it was started and never said a word")
        self._relief.look(self.durable, self.members, now_s)
        self._advance()

    # Decisions

    def _declare(self, number: int, reason: str) -> None:
        """Count a member as gone, for ever."""
        durable = self.durable
        if number < 0 or str(number) in durable.gone or (durable.phase.is_over and reason != UNNEEDED):
            return
        had_seat = durable.lose(number, reason)
        self._send(number, wire.Gone(reason, restart=reason == RESTART))
        self._send(LAUNCHERS, wire.Declared(number, reason))
        self.members.pop(number, None)
        self._expected.drop(number)
        sign_s = self._signs_s.pop(number, self.now_s)
        why = f"member {number} is gone: {reason}"
        if had_seat:
            self._futile = 0
        if had_seat and durable.phase is not Phase.STOPPING:
            self._begin(why, sign_s)
            return
        self.news.append(why)
        self.recoveries[-1].explain(why if had_seat else "")

    def _begin(self, reason: str, sign_s: float | None = None) -> None:
        """Begin a round."""
        self.durable.begin()
        self._expected.none_coming, self._futile = False, self._futile + 1
        self._watch(reason, self.now_s if sign_s is None else sign_s)
        for member in self._seated():
            self._stop(member)
        if self._futile > FUTILE:
            self._end(Phase.LOST, f"{FUTILE} rounds led to no step: {reason}")

    def _stop(self, member: Member) -> None:
        member.begin()
        if member.connected:
            member.asked_s = self.now_s
            self._send(member.number, wire.Abort(self.durable.generation))

    def _watch(self, reason: str, sign_s: float) -> None:
        self.recoveries.append(Watch(self.durable.generation, reason, sign_s, self.now_s))
        self.news.append(f"generation {self.durable.generation}: {reason}")
        self._began_s = self._moved_s = self.now_s

    def _advance(self) -> None:
        """Go on as far as what is known allows."""
        steps = {Phase.STOPPING: self._stopping, Phase.FORMING: self._forming, Phase.RUNNING: self._running}
        while self.durable.phase in steps and steps[self.durable.phase]():
            pass
        self._tell_desk()

    def _stopping(self) -> bool:
        """Go on once all have stopped and every seat is filled that can be; return whether anything changed."""
        since_s = self.now_s - self._began_s
        fill(self.durable, self.members, gathers=since_s <= self.limits.gather_s)
        may_come = NOBODY in self.durable.holders and self._expected.may_come(self.durable, self.now_s, since_s)
        members, watch = self._seated(), self.recoveries[-1]
        for it in members:
            if it.is_trying and it.asked_s is None:  # it waits for a seat, but may compute at the moment
                self._stop(it)
        if self.durable.has_run and all(it.fresh for it in members):
            return self._end(Phase.LOST, self.durable.with_last("no member is left that has the ring's state"))
        if not members:
            return False if may_come else self._end(Phase.LOST, self.durable.with_last("no member came"))
        if not all(it.stopped for it in members):
            return False
        if watch.stopped_s < 0.0:
            watch.stopped_s = self.now_s
        if suspect := self._blames.worst(self.seated(), self.now_s):
            self._declare(*suspect)
            return True
        if may_come or not all(it.here for it in members):
            return False
        self.durable.form(self._relief.ratios)
        watch.formed_s = self._moved_s = self.now_s
        watch.members = len(members)
        self._form = form_of(self.durable, self.members)
        for it in members:
            self._send(it.number, self._form)
        return True

    def _forming(self) -> bool:
        members = self._seated()
        if not all(it.ready for it in members):
            if self.now_s - self._moved_s <= self.limits.stall_s:
                return False
            self._begin("nothing moved while the ring was formed")
            return True
        if len(steps := sorted({it.step for it in members})) > 1:
            self._begin(f"members became ready at steps {steps}")
            return True
        self.recoveries[-1].ready_s = self._moved_s = self.now_s
        self.durable.run(self.recoveries[-1].cost_s())
        for it in members:
            self._send(it.number, wire.Go(self.durable.generation))
        return True

    def _running(self) -> bool:
        members = self._seated()
        if all(it.done for it in members):
            return self._end(Phase.DONE, "all members are done")
        if why := unlike_ends(members, self.now_s - self._moved_s):
            return self._end(Phase.LOST, why)
        if all(it.waiting for it in members) and self.now_s - self._moved_s > self.limits.stall_s:
            self._begin(f"nothing moved for {self.limits.stall_s:.0f} s although all wait for each other")
            return True
        if not all(it.ran for it in members):
            return False
        if NOBODY in self.durable.holders and waiting(self.durable, self.members):
            self._begin("a member joins")
            return True
        if self._change_seats():
            return True
        if (number := worn(members, self.limits)) is not None:
            self._expected.awaits_until_s = self.now_s + self.limits.patience_s
            self._declare(number, RESTART)
            return True
        return False

    def _end(self, phase: Phase, reason: str) -> bool:
        for number in self._expected.started() if phase is Phase.DONE else ():  # nobody would tell them once they come
            self._declare(number, UNNEEDED)
        self.durable.enter(phase, reason)
        self.news.append(f"{phase}: {reason}")
        for number in self.members:
            self._send(number, wire.Finish(self.durable.generation) if phase is Phase.DONE else wire.Gone(reason))
        self.outbox += [(to, wire.End(str(phase), reason)) for to in (LAUNCHERS, DESKS)]
        return False

    def _change_seats(self) -> bool:
        """Let another member compute in place of a slow one, or the slow one again; return whether anything changed."""
        change = self._relief.change(self.durable, self.members, self.now_s)
        if change is not None and change.gone != NOBODY:
            self._declare(change.gone, change.words)
        if change is not None:
            self.outbox += change.outbox
            self._begin(change.words) if change.begins else self.news.append(change.words)
        return change is not None

    def _tell_desk(self) -> None:
        if want := self._asked.news(self.durable, self.members, self._relief.asks_for(self.durable, self.members)):
            self._send(DESKS, want)
