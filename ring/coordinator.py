"""How a ring recovers from a lost member: `Coordinator`, a state machine without sockets and clocks.

Events go in, messages go out. coordinator_server.py connects it to sockets and to the state file. The docstring of
`Coordinator` has the steps of a recovery. Source: SPEC F8 to F10.

The coordinator's process imports this module: standard library only.
"""

import math
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final

from . import wire
from .membership import (
    NO_MEMBER,
    RESTARTED,
    START,
    Accusations,
    Backups,
    CoordinatorState,
    Hints,
    MemberState,
    Phase,
    RecoveryTimer,
    RingLimits,
    connected_spares,
    returning_members,
    silent_members,
    unstopped_members,
    until_mismatch,
    vanished_members,
    worn_out_member,
)
from .wire import describe_exit

LAUNCHERS, SCHEDULERS = -2, -3  # receivers of messages that are not for one member
WORN_OUT: Final = "its process has formed the most groups that it may"
NOT_NEEDED: Final = "the ring was done before it connected"
MAX_FUTILE_RECOVERIES: Final = 10  # in a row that lost no member and led to no step


class Coordinator:
    """Takes a ring through its recoveries. Messages to send collect in `outbox`, lines to log in `log_lines`.

    Each recovery has a generation. Its steps, with the messages of wire.py:

    1. Detect. A member is gone if its launcher reports `MemberExited`, if its connection and that of its launcher have
       ended, if it is silent (`tick`), if it sends `Leave`, or if the scheduler sends `Retire` (`_declare_gone`).
       Members that live but cannot exchange send `ExchangeFailed`.
    2. Stop. The generation rises, and each seated member gets `Abort` (`_begin_recovery`). It answers `Stopped`, and
       `AwaitsLayout` once its main thread waits for the next layout (`_have_all_stopped`).
    3. Choose. Spares take empty seats (`_fill_seats`). Without a spare the scheduler gets a `SeatRequest`
       (`_request_members`), and the ring waits for the member of a `MemberOffer` or of `MemberStarting`
       (`AwaitedMembers`). If none connects, the ring shrinks: others compute the shards of the empty seat. A member
       that exchanges fail with again and again is replaced (`_replace_accused`). Without a member that has the ring's
       state, the ring is lost (`_end_if_lost`).
    4. Form. Each seated member gets the `RingLayout` (`_send_layout`), and joins the process group.
    5. Copy. The source that the layout names sends its state to the receivers. Each member sends `MemberReady`.
    6. First step. Once all are ready, each gets `Resume` (`_resume`), and sends `FirstStep` when it is done.

    What happens before the layout is sent joins the recovery; what happens later begins another one. A ring also grows,
    gets a backup, and restarts worn-out processes by these steps (`_advance_running_ring`).

    The caller writes `state` to a file, whenever it has changed, before it sends what is in `outbox`.

    Args:
        seats: In the ring.
        limits: How long it waits.
        now_s: The time, of a clock that is never set.
        state: What an earlier coordinator of this ring has written.
        backups: Decides which slow members get backups; by default none does.
    """

    def __init__(
        self, seats: int, limits: RingLimits, now_s: float, state: CoordinatorState | None = None,
        backups: Backups | None = None,
    ) -> None:  # fmt: skip
        self.limits, self.now_s = limits, now_s
        self.members: dict[int, MemberState] = {}
        self.outbox: list[tuple[int, wire.Message]] = []
        self.log_lines: list[str] = []
        self.recoveries: deque[RecoveryTimer] = deque(maxlen=32)
        self._awaited = AwaitedMembers(limits)
        self._accusations, self._backups = Accusations(), backups or Backups(limits)
        self._disconnected_s: dict[int, float] = {}  # when the connection of each member ended
        self._started_by: dict[int, set[int]] = {}  # members of each launcher that is connected
        self._orphans: dict[int, float] = {}  # members whose launcher is not connected any more, and since when
        self._futile, self._hints = 0, Hints(limits)
        self._layout: wire.RingLayout  # of this generation, while the ring is formed
        self._requested: object = None  # seats and slow members of the last seat request
        self._was_short = False  # whether that request was for members
        self._ticked_s = self._moved_s = self._began_s = now_s
        self.state = state or CoordinatorState([NO_MEMBER] * seats, generation=1)
        self._begin_timer(START if state is None else RESTARTED, now_s)
        if state is not None:
            self._await_returning_members()

    def _await_returning_members(self) -> None:
        """Wait for the members of an earlier coordinator; those that do not return were lost meanwhile."""
        self._orphans |= dict.fromkeys(map(int, self.state.tokens), self.now_s)  # until their launchers are back too
        last_message_s = self.now_s + self.limits.meet_s - self.limits.silence_s
        self.members.update(returning_members(self.state, last_message_s))
        # Spares return too, and schedulers and launchers repeat their offers.
        self._awaited.until_s = self.now_s + self.limits.patience_s
        if self.state.phase in (Phase.STOPPING, Phase.FORMING):
            self._begin_recovery(RESTARTED)
        elif self.state.phase is Phase.RUNNING:
            timer = self.recoveries[-1]
            timer.ready_s, timer.members = self.now_s, len(self._seated_members())

    def seated_numbers(self) -> list[int]:
        """Return the members that have a seat, by seat."""
        return [member for member in self.state.holders if member != NO_MEMBER]

    def report(self) -> wire.RingReport:
        """Return the ring at present."""
        state, relieved = self.state, list(map(int, self.state.relieved))
        return wire.RingReport(
            phase=str(state.phase),
            generation=state.generation,
            seats=len(state.holders),
            order=list(state.holders),
            spares=sorted(self.members.keys() - set(state.holders) - set(relieved)),
            step=max((member.step for member in self._seated_members()), default=0),
            gone=dict(state.gone),
            recoveries=[timer.phase_durations() for timer in self.recoveries],
            relieved=relieved,
            hints=self._hints.current(),
        )

    def _seated_members(self) -> list[MemberState]:
        return [self.members[number] for number in self.seated_numbers()]

    def _send(self, receiver: int, message: wire.Message) -> None:
        self.outbox.append((receiver, message))

    # The recovery: steps 1 to 6

    def _declare_gone(self, number: int, reason: str) -> None:
        """Count a member as gone for good. If it had a seat, a recovery begins."""
        state = self.state
        if number < 0 or str(number) in state.gone or (state.phase.is_over and reason != NOT_NEEDED):
            return
        had_seat = state.remove_member(number, reason)
        if number in self._orphans:
            state.set_lost(number, is_lost=True)
        self._send(number, wire.Evicted(reason, restart=reason == WORN_OUT))
        self._send(LAUNCHERS, wire.MemberGone(number, reason))
        self.members.pop(number, None)
        self._awaited.drop(number)
        sign_s = self._disconnected_s.pop(number, self.now_s)
        why = f"member {number} is gone: {reason}"
        if had_seat:
            self._futile = 0
        if had_seat and state.phase is not Phase.STOPPING:
            self._begin_recovery(why, sign_s)
            return
        self.log_lines.append(why)
        self.recoveries[-1].set_gone_reason(why if had_seat else "")

    def _begin_recovery(self, reason: str, sign_s: float | None = None) -> None:
        """Raise the generation and stop all seated members.

        Args:
            reason: For the log.
            sign_s: When the first sign of the fault was seen; now by default.
        """
        self.state.begin_generation()
        self._awaited.is_refused, self._futile = False, self._futile + 1
        self._begin_timer(reason, self.now_s if sign_s is None else sign_s)
        for member in self._seated_members():
            self._abort(member)
        if self._futile > MAX_FUTILE_RECOVERIES:
            self._end_ring(Phase.LOST, f"{MAX_FUTILE_RECOVERIES} recoveries led to no step: {reason}")

    def _abort(self, member: MemberState) -> None:
        member.begin_generation()
        if member.connected:
            member.aborted_s = self.now_s
            self._send(member.number, wire.Abort(self.state.generation))

    def _begin_timer(self, reason: str, sign_s: float) -> None:
        self.recoveries.append(RecoveryTimer(self.state.generation, reason, sign_s, self.now_s))
        self.log_lines.append(f"generation {self.state.generation}: {reason}")
        self._began_s = self._moved_s = self.now_s

    def _advance(self) -> None:
        """Take the ring as far as its members allow."""
        while not self.state.phase.is_over and (
            self._advance_running_ring() if self.state.phase is Phase.RUNNING else self._recover()
        ):
            pass
        self._request_members()

    def _recover(self) -> bool:
        """Take a recovery further; return whether anything changed."""
        if self.state.phase is Phase.FORMING:
            if not all(member.ready for member in self._seated_members()):
                return self._begin_again_if_stalled()
            return self._resume()
        awaits_member = self._fill_seats()
        if self._end_if_lost(awaits_member=awaits_member) or not self._have_all_stopped():
            return False
        if self._replace_accused():
            return True
        if awaits_member or not all(member.awaits_layout for member in self._seated_members()):
            return False
        self._send_layout()
        return True

    def _fill_seats(self) -> bool:
        """Give empty seats to spares; return whether to wait for another member."""
        since_s = self.now_s - self._began_s
        fill_seats(self.state, self.members, is_gathering=since_s <= self.limits.gather_s)
        for member in self._seated_members():
            if member.is_trying and member.aborted_s is None:  # it waits for a seat, but may be computing
                self._abort(member)
        return NO_MEMBER in self.state.holders and self._awaited.should_wait(self.state, self.now_s, since_s)

    def _end_if_lost(self, *, awaits_member: bool) -> bool:
        members = self._seated_members()
        if self.state.has_run and all(member.fresh for member in members):
            self._end_ring(Phase.LOST, self.state.with_last_gone_reason("no member with the ring's state is left"))
        elif not members and not awaits_member:
            self._end_ring(Phase.LOST, self.state.with_last_gone_reason("no member connected"))
        return self.state.phase is Phase.LOST

    def _have_all_stopped(self) -> bool:
        members, timer = self._seated_members(), self.recoveries[-1]
        if not members or not all(member.stopped for member in members):
            return False
        if timer.stopped_s < 0.0:
            timer.stopped_s = self.now_s
        return True

    def _replace_accused(self) -> bool:
        """Replace the member that exchanges failed with most often, if they failed too often."""
        worst = self._accusations.worst_member(self.seated_numbers(), self.now_s)
        if worst is not None:
            self._declare_gone(*worst)
        return worst is not None

    def _send_layout(self) -> None:
        members, timer = self._seated_members(), self.recoveries[-1]
        self.state.begin_forming(self._backups.ratios)
        timer.formed_s = self._moved_s = self.now_s
        timer.members = len(members)
        self._layout = layout_of(self.state, self.members)
        for member in members:
            self._send(member.number, self._layout)

    def _begin_again_if_stalled(self) -> bool:
        is_stalled = self.now_s - self._moved_s > self.limits.stall_s
        if is_stalled:
            self._begin_recovery("no progress while the ring was formed")
        return is_stalled

    def _resume(self) -> bool:
        """Let all members train; return that the phase has changed."""
        members = self._seated_members()
        if len(steps := sorted({member.step for member in members})) > 1:
            self._begin_recovery(f"members became ready at steps {steps}")
            return True
        self.recoveries[-1].ready_s = self._moved_s = self.now_s
        self.state.begin_running(self.recoveries[-1].cost_s())
        for member in members:
            self._send(member.number, wire.Resume(self.state.generation))
        return True

    # The ring runs

    def _advance_running_ring(self) -> bool:
        """End the ring if it is done, or begin a recovery if its members should change; return whether they do."""
        members = self._seated_members()
        if all(member.done for member in members):
            return self._end_ring(Phase.DONE, "all members are done")
        if why := until_mismatch(members, self.now_s - self._moved_s):
            return self._end_ring(Phase.LOST, why)
        if all(member.waiting for member in members) and self.now_s - self._moved_s > self.limits.stall_s:
            self._begin_recovery(f"no progress for {self.limits.stall_s:.0f} s while all wait for each other")
            return True
        if not all(member.ran for member in members):
            return False
        if NO_MEMBER in self.state.holders and connected_spares(self.state, self.members):
            self._begin_recovery("a member joins")
            return True
        if self._change_seats():
            return True
        if (number := worn_out_member(members, self.limits)) is not None:
            self._awaited.until_s = self.now_s + self.limits.patience_s
            self._declare_gone(number, WORN_OUT)
            return True
        return False

    def _change_seats(self) -> bool:
        """Let a backup compute in place of a slow member, or give the member its seat back; return whether it did."""
        change = self._backups.change_seats(self.state, self.members, self.now_s)
        if change is None:
            return False
        if change.gone != NO_MEMBER:
            self._declare_gone(change.gone, change.reason)
        self.outbox += change.outbox
        self._begin_recovery(change.reason) if change.begins else self.log_lines.append(change.reason)
        return True

    def _end_ring(self, phase: Phase, reason: str) -> bool:
        """End the ring; return False, as nothing follows."""
        # No coordinator is left to answer them.
        for number in self._awaited.started_members() if phase is Phase.DONE else ():
            self._declare_gone(number, NOT_NEEDED)
        self.state.enter_phase(phase, reason)
        self.log_lines.append(f"{phase}: {reason}")
        for number in self.members:
            last: wire.Message = wire.Finish(self.state.generation) if phase is Phase.DONE else wire.Evicted(reason)
            self._send(number, last)
        self.outbox += [(to, wire.RingEnd(str(phase), reason)) for to in (LAUNCHERS, SCHEDULERS)]
        return False

    def _request_members(self) -> None:
        """Send the scheduler a seat request if empty seats, slow or relieved members have changed."""
        state, slow = self.state, self._backups.slow_without_backup(self.state, self.members)
        now = (state.generation, *state.holders), tuple(slow), tuple(state.relieved), tuple(state.lost)
        if not state.has_run or state.phase.is_over or now == self._requested:
            return
        is_short, was_short = NO_MEMBER in state.holders or bool(slow or state.relieved), self._was_short
        self._requested, self._was_short = now, is_short
        if is_short or was_short:
            self._send(SCHEDULERS, seat_request(state, self.members, slow))

    # Events of members

    def admit_member(self, hello: wire.Hello, now_s: float) -> bool:
        """Admit a process that connects as a member; return False if it was refused."""
        self.now_s = now_s
        number, state = hello.member, self.state
        if state.phase is Phase.DONE and str(number) not in state.gone:
            self._send(number, wire.Finish(state.generation))
            return True
        if reason := refusal_reason(hello, state, self.members):
            self._send(number, wire.Evicted(reason))
            return False
        member = self.members.setdefault(number, MemberState(number, hello.token, now_s))
        self._awaited.remove_connected(number, now_s)
        self._disconnected_s.pop(number, None)
        member.connected, member.last_message_s = True, now_s
        member.store, member.node, member.step = hello.store, hello.node, hello.step
        member.fresh = hello.fresh or str(number) in state.relieved
        self._send_present_phase(member, hello.generation)
        self._advance()
        return True

    def _send_present_phase(self, member: MemberState, generation: int) -> None:
        """Send a member that connects, perhaps again, what the ring does at present."""
        phase = self.state.phase
        if not self.state.has_seat(member.number):
            member.stopped = member.awaits_layout = True
            if str(member.number) in self.state.relieved:
                self._send(member.number, wire.Relieved(self.state.generation))
        elif phase is Phase.STOPPING:
            member.aborted_s = self.now_s
            self._send(member.number, wire.Abort(self.state.generation))
        elif phase is Phase.FORMING:
            self._send(member.number, self._layout)
        elif generation == self.state.generation:
            self._send(member.number, wire.Resume(generation))
        else:
            self._begin_recovery(f"member {member.number} returned from generation {generation}")

    def member_disconnected(self, member: int, now_s: float) -> None:
        """A member's connection has ended; the member may return."""
        self.now_s = now_s
        if member in self.members:
            self.members[member].connected = False
            self._disconnected_s[member] = now_s

    def receive_member_message(self, number: int, message: wire.Message, now_s: float) -> None:
        """Take a message of a member. One of another generation counts only as a sign of life."""
        self.now_s = now_s
        member = self.members.get(number)
        if member is None:
            return
        member.last_message_s = now_s
        if isinstance(message, wire.Heartbeat):
            # Its consequences wait for the next tick: there are many heartbeats.
            self._receive_heartbeat(member, message)
        if isinstance(message, wire.Heartbeat) or self.state.phase.is_over:
            return
        is_present = getattr(message, "generation", None) == self.state.generation and self.state.has_seat(number)
        if isinstance(message, wire.ExchangeFailed) and message.generation <= self.state.generation:
            # Also of a generation that another member's message has just ended.
            self._accusations.add_failure(message, self._seated_members(), self.now_s)
        if isinstance(message, wire.Leave):
            self._declare_gone(number, message.reason)
        elif isinstance(message, wire.TrialStep):
            if str(number) in self.state.relieved:
                member.compute_s.append(message.compute_s)
        elif isinstance(message, wire.SaveRequest):
            self._send(number, wire.SaveReply(message.generation, message.step, is_present))
        elif is_present:
            self._receive_current_message(member, message)
        self._advance()

    def _receive_current_message(self, member: MemberState, message: wire.Message) -> None:
        """Take a message of the present generation from a seated member."""
        phase = self.state.phase
        if isinstance(message, wire.Stopped | wire.AwaitsLayout) and phase is Phase.STOPPING:
            member.stopped, member.step = True, message.step
            member.awaits_layout = isinstance(message, wire.AwaitsLayout) or message.awaits_layout
        elif isinstance(message, wire.MemberReady):
            self._receive_ready(member, message)
        elif isinstance(message, wire.FirstStep) and phase is Phase.RUNNING:
            self._record_step(member, message.step)
        elif isinstance(message, wire.MemberDone) and phase is Phase.RUNNING:
            member.done = True
            self._record_step(member, message.step)
        elif isinstance(message, wire.ExchangeFailed) and phase in (Phase.FORMING, Phase.RUNNING):
            self._begin_recovery(f"member {member.number}: {message.evidence}"[:300])

    def _receive_heartbeat(self, member: MemberState, beat: wire.Heartbeat) -> None:
        self._send(member.number, wire.LeaseRenewal(beat.number))
        if self.state.has_seat(member.number) and member.shows_progress(beat.moved, is_waiting=beat.waiting):
            self._moved_s = self.now_s
        is_present = beat.generation == self.state.generation and self.state.phase is Phase.RUNNING
        # Any other heartbeat repeats the times of a step that is over.
        counts = is_present and self.state.has_seat(member.number)
        member.record_heartbeat(beat, shard_count(self.state, member.number) if counts else 0)
        if counts and beat.step > member.step:
            self._record_step(member, beat.step)

    def _receive_ready(self, member: MemberState, ready: wire.MemberReady) -> None:
        if self.state.phase is Phase.RUNNING:  # it missed the message
            self._send(member.number, wire.Resume(self.state.generation))
        elif self.state.phase is Phase.FORMING:
            member.ready, member.fresh, member.step, member.is_trying = True, False, ready.step, False
            member.groups, member.endpoints = ready.groups, frozenset(ready.endpoints)
            self._moved_s = self.now_s
            self.recoveries[-1].copy_s = max(self.recoveries[-1].copy_s, ready.copy_s)

    def _record_step(self, member: MemberState, step: int) -> None:
        member.ran, member.step = True, max(member.step, step)
        self._futile = 0
        timer, seats = self.recoveries[-1], len(self.state.holders)
        if timer.ran_s < 0.0 and all(member.ran for member in self._seated_members()):
            timer.ran_s = self.now_s
            self.log_lines.append(
                f"generation {timer.generation} runs with {timer.members} of {seats} members; {timer}"
            )

    # Events of launchers, of schedulers, and of time

    def launcher_disconnected(self, launcher: int, now_s: float) -> None:
        """A launcher is not connected any more: until it is again, none of its members that are gone is replaced."""
        self.now_s = now_s
        members = self._started_by.pop(launcher, set())
        members -= set().union(*self._started_by.values())  # the launcher may be connected again already
        self._orphans |= dict.fromkeys(members, now_s)
        if self.state.phase.is_over:
            return
        for member in members:
            if str(member) in self.state.gone:
                self.state.set_lost(member, is_lost=True)
        self._advance()

    def receive_launcher_message(self, message: wire.Message, now_s: float, launcher: int = 0) -> None:
        """Take a message of a launcher: it starts a member, or a member's process has exited and is gone at once.

        Each connection of a launcher has a number of its own.
        """
        self.now_s = now_s
        if isinstance(message, wire.MemberStarting | wire.MemberExited):
            self._started_by.setdefault(launcher, set()).add(message.member)
            self._orphans.pop(message.member, None)
            self.state.set_lost(message.member, is_lost=False)
        if self.state.phase is Phase.DONE and isinstance(message, wire.MemberStarting) and self._is_new(message.member):
            self._declare_gone(message.member, NOT_NEEDED)
        if self.state.phase.is_over:
            return
        if isinstance(message, wire.MemberStarting):
            self._awaited.end_offer(message.rank)
        if isinstance(message, wire.MemberStarting) and self._is_new(message.member):
            self._awaited.add_starting(message.member, now_s)
        elif isinstance(message, wire.MemberExited):
            self._declare_gone(message.member, f"its process {describe_exit(message.status, message.error)}")
        self._advance()

    def scheduler_connected(self, now_s: float) -> None:
        """A scheduler connects, and gets a seat request if the ring needs members."""
        self.now_s, self._awaited.has_scheduler = now_s, True
        self._requested, self._was_short = None, False
        self._request_members()

    def scheduler_disconnected(self) -> None:
        """No scheduler is connected any more."""
        self._awaited.has_scheduler = False

    def receive_scheduler_message(self, message: wire.Message, now_s: float) -> None:
        """Take a message of a scheduler: it offers a member, has none to offer, or retires one."""
        self.now_s = now_s
        if isinstance(message, wire.MemberOffer):
            self._awaited.add_offered(message.rank, now_s)
        elif isinstance(message, wire.NoMemberOffer):
            self._awaited.is_refused = True
        elif isinstance(message, wire.Retire):
            self._declare_gone(message.member, message.reason)
        self._advance()

    def _is_new(self, member: int) -> bool:
        return member not in self.members and str(member) not in self.state.gone | self.state.tokens

    def tick(self, now_s: float) -> None:
        """Let time pass: find members that are silent, do not stop, never connect, or are slow."""
        gap_s, self._ticked_s, self.now_s = now_s - self._ticked_s, now_s, now_s
        if gap_s > self.limits.silence_s / 5:  # this process stood still, and could receive nothing
            for member in self.members.values():
                member.exclude_gap(gap_s, now_s)
            self._awaited.exclude_gap(gap_s)
            self._moved_s, self._began_s = (min(at_s + gap_s, now_s) for at_s in (self._moved_s, self._began_s))
        if gap_s > self.limits.broken_s / 2:
            for ended_s in (self._disconnected_s, self._orphans):
                ended_s |= {member: min(at_s + gap_s, now_s) for member, at_s in ended_s.items()}
        if self.state.phase.is_over:
            return
        unconnected, running_s = self._awaited.long_unconnected(now_s), self.recoveries[-1].running_s(now_s)
        for line in self._hints.update(self.members.values(), unconnected, self._seated_members(), running_s, now_s):
            self.log_lines.append(line)
            self._send(SCHEDULERS, wire.ScriptHint(line.partition(": ")[2]))
        suspects = list(silent_members(self.members.values(), self.limits, now_s))
        suspects += vanished_members(self.members, self._disconnected_s, self._orphans, self.limits, now_s)
        if self.state.phase is Phase.STOPPING:
            suspects += unstopped_members(self._seated_members(), self.limits, now_s)
        for number, reason in suspects:
            self._declare_gone(number, reason)
        for number in self._awaited.overdue(now_s, has_run=self.state.has_run):
            self._declare_gone(number, "it was started and never connected")
        self._backups.update(self.state, self.members, now_s)
        self._advance()


class AwaitedMembers:
    """Members that were offered or started and have not connected yet.

    The ring waits a while for each. One that is silent long after its start hangs: as it has no connection, nothing
    else would notice.
    """

    def __init__(self, limits: RingLimits) -> None:
        self._limits = limits
        self._offered: dict[int, float] = {}  # until when the ring waits for the start of a member, by rank
        self._begun: set[int] = set()  # ranks of members that were started: such an offer was repeated
        self._awaited: dict[int, float] = {}  # until when the ring waits for each member that was started
        self._started: dict[int, float] = {}  # when a launcher first reported the start of each
        self._slowest_s: float | None = None  # from start to connection, of all so far
        self.has_scheduler = self.is_refused = False  # a scheduler is connected; it has no member to offer
        self.until_s = -math.inf  # until then the ring waits though no member was offered

    def add_offered(self, rank: int, now_s: float) -> None:
        """A member is offered; schedulers repeat that."""
        if rank not in self._begun:
            self._offered[rank] = now_s + self._limits.coming_s

    def end_offer(self, rank: int) -> None:
        """A launcher starts the member of an offer."""
        self._offered.pop(rank, None)
        self._begun.add(rank)

    def add_starting(self, member: int, now_s: float) -> None:
        """A launcher starts a member; it repeats that whenever it connects."""
        self._awaited[member] = now_s + self._limits.coming_s
        self._started.setdefault(member, now_s)

    def remove_connected(self, member: int, now_s: float) -> None:
        """A member has connected."""
        if member in self._started:
            self._slowest_s = max(self._slowest_s or 0.0, now_s - self._started[member])
        self.drop(member)

    def drop(self, member: int) -> None:
        """Stop waiting for a member."""
        self._awaited.pop(member, None)
        self._started.pop(member, None)

    def exclude_gap(self, gap_s: float) -> None:
        """Do not count a time in which no message could be received."""
        self._started = {number: at_s + gap_s for number, at_s in self._started.items()}
        for until_s in (self._awaited, self._offered):
            until_s |= {key: at_s + gap_s for key, at_s in until_s.items()}
        self.until_s += gap_s

    def should_wait(self, state: CoordinatorState, now_s: float, since_s: float) -> bool:
        """Return whether to wait for a member that takes an empty seat.

        Args:
            state: Holds the seats.
            now_s: The time.
            since_s: How long the recovery has lasted.
        """
        if now_s < self.until_s or any(at_s > now_s for at_s in (*self._awaited.values(), *self._offered.values())):
            return True
        if not state.has_run:
            is_gathering = since_s <= self._limits.gather_s
            empty = [seat for seat, holder in enumerate(state.holders) if holder == NO_MEMBER]
            if any(_first_holder_may_connect(state, seat, is_gathering=is_gathering) for seat in empty):
                return True
        return self.has_scheduler and not self.is_refused and since_s <= self._limits.patience_s

    def started_members(self) -> list[int]:
        """Return members that were started and have not connected."""
        return list(self._started)

    def long_unconnected(self, now_s: float) -> list[int]:
        """Return members that were started and have not connected, once that takes long enough for a hint."""
        is_time = any(now_s - at_s > self._limits.hint_s for at_s in self._started.values())
        return self.started_members() if is_time else []

    def overdue(self, now_s: float, *, has_run: bool) -> list[int]:
        """Return members that were started so long ago that they hang.

        A script may read its data for minutes before it connects, so the limit depends on how long others took.
        """
        limit_s = self._limits.gather_s
        if has_run and self._slowest_s is not None:
            limit_s = min(limit_s, max(2 * self._limits.coming_s, 3 * self._slowest_s))
        return [number for number, at_s in self._started.items() if now_s - at_s > limit_s]


def fill_seats(state: CoordinatorState, members: Mapping[int, MemberState], *, is_gathering: bool) -> None:
    """Give empty seats to connected spares.

    At the start, member k has seat k as long as it may connect; later the spare of the smallest number is first.

    Args:
        state: Holds the seats.
        members: All that are not gone.
        is_gathering: Whether members of the ring's start may still connect.
    """
    holders = state.holders
    if NO_MEMBER not in holders:
        return
    spares = connected_spares(state, members)
    for seat in [seat for seat, holder in enumerate(holders) if holder == NO_MEMBER]:
        if state.has_run:
            taker = spares[0] if spares else NO_MEMBER
        elif seat in spares:
            taker = seat
        elif _first_holder_may_connect(state, seat, is_gathering=is_gathering):
            taker = NO_MEMBER
        else:  # a member that has no seat of its own number to wait for
            own = (number for number in spares if number >= len(holders) or holders[number] != NO_MEMBER)
            taker = next(own, NO_MEMBER)
        if taker != NO_MEMBER:
            spares.remove(taker)
            state.give_seat(seat, taker, members[taker].token)


def _first_holder_may_connect(state: CoordinatorState, seat: int, *, is_gathering: bool) -> bool:
    """Return whether the member of a seat's number may still connect and take it."""
    return is_gathering and not state.has_seat(seat) and str(seat) not in state.gone


def refusal_reason(hello: wire.Hello, state: CoordinatorState, members: Mapping[int, MemberState]) -> str:
    """Return why a process is no member of the ring, "" if it is one."""
    member = members.get(hello.member)
    if hello.member < 0:
        return f"{hello.member} is no number of a member"
    if str(hello.member) in state.gone:
        return state.gone[str(hello.member)] or "it is gone"
    if state.phase.is_over:
        return state.outcome
    if member is None:
        return "" if hello.fresh else "it is a member of another ring"
    return "" if member.token == hello.token else "another process is that member"


def layout_of(state: CoordinatorState, members: Mapping[int, MemberState]) -> wire.RingLayout:
    """Return the layout of a generation: the source of the state is a member with the greatest step."""
    holders, shards = state.holders, shards_by_seat(state)
    seated = [members[holders[seat]] for seat in shards]
    assignments = [
        wire.SeatAssignment(seat, member.number, shards[seat], member.store)
        for seat, member in zip(shards, seated, strict=True)
    ]
    # The step of a new member means nothing as long as another one has run.
    source = max(seated, key=lambda member: (not member.fresh, member.step))
    receivers = [
        member.number for member in seated if member is not source and (member.fresh or member.step < source.step)
    ]
    return wire.RingLayout(state.generation, len(holders), assignments, source.number, receivers, source.store)


def shards_by_seat(state: CoordinatorState) -> dict[int, list[int]]:
    """Return the shards of each filled seat: its own, and some of empty seats, so that all are done the soonest."""
    holders = state.holders
    ratios = {seat: state.slow.get(str(holder), 1.0) for seat, holder in enumerate(holders) if holder != NO_MEMBER}
    shards = {seat: [seat] for seat in ratios}
    for orphan in (seat for seat, holder in enumerate(holders) if holder == NO_MEMBER):
        shards[min(ratios, key=lambda seat: ((len(shards[seat]) + 1) * ratios[seat], seat))].append(orphan)
    return shards


def shard_count(state: CoordinatorState, member: int) -> int:
    """Return how many shards a member computes; 1 for one without a seat, which computes none."""
    return len(shards_by_seat(state)[state.holders.index(member)]) if member in state.holders else 1


def seat_request(
    state: CoordinatorState, members: Mapping[int, MemberState], slow: Sequence[int] = ()
) -> wire.SeatRequest:
    """Return a request for members, with what is known of the others. Source: SPEC F2, F3.

    Args:
        state: Holds the seats.
        members: All that are not gone.
        slow: Seated members that need a backup.
    """
    order = [member for member in state.holders if member != NO_MEMBER]
    seated = [members[number] for number in order]
    empty = [seat for seat, holder in enumerate(state.holders) if holder == NO_MEMBER]
    seats = [state.holders.index(number) for number in slow]
    return wire.SeatRequest(
        generation=state.generation,
        empty=[wire.EmptySeat(seat, *_living_neighbours(state.holders, seat)) for seat in empty if order],
        order=order,
        step_s=max((sum(member.step_s) / len(member.step_s) for member in seated if member.step_s), default=0.0),
        compute_s={
            str(member.number): sum(member.compute_s) / len(member.compute_s) for member in seated if member.compute_s
        },
        nodes={str(member.number): member.node for member in seated},
        slow=[wire.SlowSeat(state.holders[seat], seat, *_living_neighbours(state.holders, seat)) for seat in seats],
        relieved=list(map(int, state.relieved)),
    )


def _living_neighbours(holders: Sequence[int], seat: int) -> tuple[int, int]:
    """Return the living members before and after a seat; its own holder where there is no other."""
    around = [holders[(seat + far) % len(holders)] for far in range(1, len(holders) + 1)]
    living = [member for member in around if member not in (NO_MEMBER, holders[seat])] or [holders[seat]]
    return living[-1], living[0]
