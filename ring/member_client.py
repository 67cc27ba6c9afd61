"""A member's connection to its coordinator, in a thread that answers in any state of the main thread.

Source: SPEC F8 to F10.
"""

import contextlib
import math
import os
import secrets
import select
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from . import wire
from .wire import HEARTBEAT_S, SILENCE_S, answer_challenge, check_welcome

RECONNECT_S = 0.05
CONNECTION_FAILED_STATUS = 1  # of a process whose connection failed for a reason of its own
GREETING_TIMEOUT_S = 5.0  # for the coordinator to prove the secret


class Connection:
    """A connection that is opened again after it ends. One thread opens it and receives; others may send and close.

    Args:
        address: HOST:PORT of the coordinator.
        secret: Of the ring.
        file: That has the address of a later coordinator, once there is one.
    """

    def __init__(self, address: str, secret: str, file: str = "") -> None:
        host, _, port = address.rpartition(":")
        self._address, self._secret, self._file = (host, int(port)), secret, file
        self._epoch, self._read_ns = 0, 0  # the latest one of a coordinator; when the file that was read had changed
        self.is_done = False  # the ring is, by the file
        self._sending = threading.Lock()
        self._socket: socket.socket | None = None
        self._challenge: wire.Challenge | None = None  # of the other end
        self._hello: wire.Hello | None = None  # that answers it: messages may follow it
        self._is_welcome = False  # the other end has proved to be the coordinator: its messages count
        self._greet_by_s = 0.0
        self._buffer = wire.MessageBuffer()

    @property
    def is_open(self) -> bool:
        """Whether there is a connection, greeted or not."""
        return self._socket is not None

    @property
    def has_greeted(self) -> bool:
        """Whether the hello was sent, so that messages may follow it."""
        return self._hello is not None

    def follow(self) -> bool:
        """Take the address of another coordinator, if there is one now; return whether there is."""
        before = self._address
        with contextlib.suppress(OSError, ValueError):
            if self._file and (changed_ns := Path(self._file).stat().st_mtime_ns) != self._read_ns:
                self._read_ns, text = changed_ns, Path(self._file).read_text()
                self.is_done = text == wire.DONE_ADDRESS
                host, _, port = text.rpartition(":")
                self._address = host, int(port)
        return self._address != before

    def open(self) -> bool:
        """Connect; return whether that succeeded."""
        try:
            connection = socket.create_connection(self._address, timeout=HEARTBEAT_S)
        except OSError:
            return False
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer, self._greet_by_s = wire.MessageBuffer(), time.monotonic() + GREETING_TIMEOUT_S
        self._challenge, self._hello, self._is_welcome = None, None, False
        self._socket = connection
        return True

    def receive(self, wait_s: float, greet: Callable[[wire.Challenge], None]) -> list[wire.Message] | None:
        """Return the messages that arrive within some time; None if the connection is of no use any more.

        Args:
            wait_s: How long to wait for a message.
            greet: Answers a challenge, by `send_hello`.
        """
        connection = self._socket
        if connection is None:
            return []
        if not self._is_welcome and time.monotonic() > self._greet_by_s:
            return None
        try:
            arrived = select.poll()  # `select.select` refuses descriptors from 1024 on
            arrived.register(connection, select.POLLIN)
            if not arrived.poll(1000.0 * wait_s):
                return []
            data = connection.recv(1 << 16)
            messages = self._buffer.feed(data)
            while messages and not self._is_welcome:
                self._receive_greeting(messages.pop(0), greet)
        except (OSError, ValueError):
            return None
        return messages if data else None

    def send_hello(self, challenge: wire.Challenge, hello: wire.Hello) -> None:
        """Answer a challenge. Messages that are sent from here on follow the answer."""
        hello = answer_challenge(self._secret, challenge, hello)
        self.send(hello)
        self._challenge, self._hello = challenge, hello

    def send(self, message: wire.Message) -> None:
        """Send a message, if the connection is open."""
        connection = self._socket
        if connection is not None:
            with self._sending, contextlib.suppress(OSError):
                connection.sendall(wire.encode(message))

    def close(self) -> None:
        """End the connection."""
        connection, self._socket = self._socket, None
        self._hello = None
        if connection is not None:
            connection.close()

    def _receive_greeting(self, message: wire.Message, greet: Callable[[wire.Challenge], None]) -> None:
        """Answer the challenge, and accept nothing else before the welcome.

        Raises:
            WireError: If the other end is not the coordinator, or one of an earlier epoch.
        """
        if self._challenge is not None and self._hello is not None:
            self._epoch = check_welcome(self._secret, self._challenge, self._hello, message, self._epoch)
            self._is_welcome = True
        elif isinstance(message, wire.Challenge):
            greet(message)
        else:
            raise wire.WireError("no challenge")


MAX_CHECK_S = 2.0 * HEARTBEAT_S  # between two checks; a process that took longer stood still


class Silence:
    """Counts the time in which a message could have been received.

    A machine may stand still for longer than a member may be silent: it is suspended, or moved to another host. Its
    processes receive nothing meanwhile, though the coordinator was not silent. Its messages arrive as they continue.

    Args:
        first_s: How long the first silence may last.
        later_s: How long each later one may last.
    """

    def __init__(self, first_s: float, later_s: float = SILENCE_S) -> None:
        self._limit_s, self._later_s, self._silent_s, self._checked_s = first_s, later_s, 0.0, time.monotonic()

    @property
    def is_too_long(self) -> bool:
        """Whether it had lasted for too long at the last check."""
        return self._silent_s > self._limit_s

    def check(self) -> float:
        """Return how long it has lasted, in seconds. Check once a heartbeat: of a longer time only a part counts."""
        now_s = time.monotonic()
        self._silent_s += min(now_s - self._checked_s, MAX_CHECK_S)
        self._checked_s = now_s
        return self._silent_s

    def end(self) -> None:
        """Begin again, as a message was received."""
        self._limit_s, self._silent_s = self._later_s, 0.0


CONNECT_TIMEOUT_S = 60.0  # to reach the coordinator at the start
RESEND_S = 1.0  # after which an unanswered message is repeated: the coordinator may have been killed


class AbortedError(Exception):
    """The ring is formed again: what the main thread does belongs to an earlier generation."""


class FinishedError(Exception):
    """All members are done."""


class RelievedError(Exception):
    """A backup computes in place of this slow member."""


@dataclass(slots=True)
class Pulse:
    """What heartbeats report; the main thread writes it."""

    moved: int = 0
    waiting: bool = False
    compute_s: float = 0.0
    step_s: float = 0.0
    until: int = 0


class MemberClient:
    """The main thread sends messages and waits for answers. The other thread receives, beats, and counts the lease.

    Args:
        address: HOST:PORT of the coordinator.
        secret: Of the ring.
        member: Number of this member.
        node: Name of its node.
        store: HOST:PORT of the store that it offers.
        step: Steps that its state has seen.
        file: That has the address of a later coordinator.
        wait_s: How long it waits for a coordinator that is silent.
    """

    def __init__(
        self, address: str, secret: str, member: int, node: str, store: str, step: int, file: str = "",
        wait_s: float = SILENCE_S,
    ) -> None:  # fmt: skip
        self._connection = Connection(address, secret, file)
        self.member, self._node, self._store = member, node, store
        self.pulse = Pulse()
        self.step = step
        self.generation = 0  # the newest one that it knows
        self._group_generation = 0  # of this member's group
        self._fresh, self._awaits_layout, self._applying = True, False, False
        self.is_relieved = False  # a backup computes in place of this member
        self._layout: wire.RingLayout | None = None
        self._resumed = 0  # the newest generation that trains
        self._finished = self._was_seated_at_end = False
        self._save_reply: wire.SaveReply | None = None
        self._token = secrets.token_hex(8)
        self._changed = threading.Condition()
        self._sent_s: dict[int, float] = {}  # by heartbeat
        self._number = 0
        self._leased_s = -math.inf  # the lease runs from here
        self._silence, self._is_waiting = Silence(max(CONNECT_TIMEOUT_S, wait_s), wait_s), False
        self._closed = False
        self._thread = threading.Thread(target=self._listen_or_end, name="longshore-ring", daemon=True)

    def start(self) -> None:
        """Connect. From here on the process ends if its coordinator is silent."""
        self._thread.start()

    # For the main thread

    @property
    def is_finished(self) -> bool:
        """Whether all members are done."""
        return self._finished

    @property
    def is_aborted(self) -> bool:
        """Whether the group of this member is of an earlier generation."""
        return self.generation != self._group_generation

    def wait_for_lease(self) -> None:
        """Wait while this process has no lease; raise if the ring is formed again.

        Raises:
            AbortedError: If so.
        """
        if not self._has_lease():
            with self._changed:
                while not self._has_lease() and not self.is_aborted:
                    self._changed.wait(RESEND_S)
        if self.is_aborted:
            raise AbortedError

    def wait_for_layout(self) -> wire.RingLayout:
        """Wait for the layout of the newest generation.

        Raises:
            FinishedError: If all are done instead.
            RelievedError: If this member has no seat until it is fast again.
        """
        with self._changed:
            self._awaits_layout = True
            try:
                self._send(wire.AwaitsLayout(self.member, self.generation, self.step))
                while (layout := self._next_layout()) is None:
                    if self.is_relieved:
                        raise RelievedError
                    if not self._changed.wait(RESEND_S):
                        self._send(wire.AwaitsLayout(self.member, self.generation, self.step))
            finally:
                self._awaits_layout = False
            self._group_generation = self.generation = layout.generation
            return layout

    def _next_layout(self) -> wire.RingLayout | None:
        """Return the layout of the newest generation, None if it has not arrived.

        Raises:
            FinishedError: If all are done instead.
        """
        layout = self._layout
        if layout is not None and layout.generation >= max(self.generation, self._group_generation + 1):
            return layout
        if self._finished:
            raise FinishedError
        return None

    def report_trial_step(self, compute_s: float, pause_s: float) -> bool:
        """Report how long this relieved member computed a shard; return whether it has a seat again within a pause.

        Raises:
            FinishedError: If all are done.
        """
        with self._changed:
            self._send(wire.TrialStep(self.member, compute_s))
            until_s = time.monotonic() + pause_s
            while self.is_relieved and self._next_layout() is None and (left_s := until_s - time.monotonic()) > 0.0:
                self._changed.wait(left_s)
            return not self.is_relieved

    def report_ready(self, ready: wire.MemberReady) -> None:
        """Report that this member has group and state, and wait until all have.

        Raises:
            AbortedError: If the ring is formed again instead, or is done.
        """
        with self._changed:
            if self.generation == ready.generation:
                self._fresh, self.step = False, ready.step
            self._send(ready)
            self.pulse.waiting = True  # so that a copy between others that does not move is noticed
            while self._resumed < ready.generation and not self.is_aborted and not self._finished:
                if not self._changed.wait(RESEND_S):
                    self._send(ready)
            self.pulse.waiting = False
            if self._resumed < ready.generation:
                raise AbortedError

    def report_failed_exchange(self, peer: str, evidence: str) -> None:
        """Report a failed exchange, and wait until the ring is formed again, or done.

        Raises:
            AbortedError: Then.
        """
        failure = wire.ExchangeFailed(self.member, self._group_generation, peer, evidence[:500])
        with self._changed:
            # At least once: another member's message may have ended the generation, but this one may know the peer.
            self._send(failure)
            while not self.is_aborted and not self._finished:
                if not self._changed.wait(RESEND_S):
                    self._send(failure)
        raise AbortedError

    def begin_apply(self) -> None:
        """Begin to change the state by a step; the step counts once it is ended.

        Raises:
            AbortedError: If the ring is formed again: the step is not applied.
        """
        with self._changed:
            self.wait_for_lease()
            self._applying = True

    def end_apply(self, step: int) -> None:
        """Set how many steps the state has seen."""
        with self._changed:
            self._applying, self._fresh, self.step = False, self.is_relieved, step
            if self.is_aborted:
                self._send(wire.Stopped(self.member, self.generation, self.step, awaits_layout=False))

    def report_first_step(self) -> None:
        """Report that the first step of a generation is done."""
        self._send(wire.FirstStep(self.member, self._group_generation, self.step))

    def wait_until_done(self) -> None:
        """Wait until all members are done.

        Raises:
            FinishedError: Then.
            AbortedError: If the ring is formed again before.
        """
        with self._changed:
            while not self._finished:
                if self.is_aborted:
                    raise AbortedError
                self._send(wire.MemberDone(self.member, self._group_generation, self.step))
                self._changed.wait(RESEND_S)
            self._was_seated_at_end = not self.is_relieved
        raise FinishedError

    def request_save(self) -> bool:
        """Return whether a checkpoint of this step may be named: only that of a seated member may.

        Once the ring is done, or left, the coordinator answers no more. Then a member that had a seat to the end may
        save the last state.
        """
        with self._changed:
            while not self._finished and not self._closed:
                generation, self._save_reply = self.generation, None
                self._send(wire.SaveRequest(self.member, generation, self.step))
                self._changed.wait(RESEND_S)
                reply: wire.SaveReply | None = self._save_reply
                if reply is None or (reply.generation, reply.step) != (generation, self.step):
                    continue
                # A request of an earlier generation is always refused, and is repeated in the next one.
                if reply.granted or self.generation == generation:
                    return reply.granted
            return self._was_seated_at_end

    def leave(self, reason: str) -> None:
        """Give up the seat."""
        self._send(wire.Leave(self.member, self._group_generation, reason[:500]))
        self.close()

    def close(self) -> None:
        """End the connection."""
        self._closed = True
        self._close_connection()

    def _close_connection(self) -> None:
        with self._changed:
            self._connection.close()

    # The other thread

    def _listen_or_end(self) -> None:
        """Listen; without this thread the main one would wait for ever, so that its failure ends the process."""
        try:
            self._listen()
        except Exception as error:
            if not self._closed:
                end_process(
                    CONNECTION_FAILED_STATUS,
                    f"its connection to the coordinator failed: {type(error).__name__}: {error}",
                )

    def _listen(self) -> None:
        beat_s = 0.0
        while not self._closed:
            self._check_silence()
            if self._connection.follow():
                self._close_connection()
            if self._connection.is_done and not self._finished:
                self._receive(wire.Finish(self.generation))
            if not self._connection.is_open and not self._connection.open():
                time.sleep(RECONNECT_S)
                continue
            if time.monotonic() >= beat_s:
                beat_s = time.monotonic() + HEARTBEAT_S
                self._send_heartbeat()
            self._receive_messages(max(0.0, min(beat_s - time.monotonic(), HEARTBEAT_S)))

    def _send_greeting(self, challenge: wire.Challenge) -> None:
        with self._changed:  # messages of the main thread about this state follow it
            token, generation, step, fresh = self._token, self._group_generation, self.step, self._fresh
            hello = wire.Hello("member", self.member, token, generation, step, fresh, self._store, self._node)
            self._connection.send_hello(challenge, hello)
            if self._awaits_layout:
                self._send(wire.AwaitsLayout(self.member, self.generation, self.step))
        self._send_heartbeat()

    def _send_heartbeat(self) -> None:
        self._number += 1
        self._sent_s[self._number] = time.monotonic()
        pulse = self.pulse
        self._send(
            wire.Heartbeat(
                self.member, self._group_generation, self._number, self.step,
                pulse.moved, pulse.waiting, pulse.compute_s, pulse.step_s, pulse.until,
            )
        )  # fmt: skip

    def _receive_messages(self, wait_s: float) -> None:
        messages = self._connection.receive(wait_s, self._send_greeting)
        if messages is None:
            self._close_connection()
            time.sleep(RECONNECT_S)
        for message in messages or ():
            self._receive(message)

    def _receive(self, message: wire.Message) -> None:
        if isinstance(message, wire.LeaseRenewal):
            self._renew_lease(message.number)
            return
        if isinstance(message, wire.Evicted):
            end_process(wire.RESTART_STATUS if message.restart else wire.GONE_STATUS, message.reason)
        with self._changed:
            if isinstance(message, wire.Abort) and message.generation >= self.generation:
                self._receive_abort(message.generation)
            elif isinstance(message, wire.RingLayout) and message.generation >= self.generation:
                self.generation, self._layout, self.is_relieved = message.generation, message, False
            elif isinstance(message, wire.Relieved) and message.generation >= self.generation:
                self.is_relieved = self._fresh = True
                self.generation, self._layout = message.generation, None
            elif isinstance(message, wire.Resume):
                self._resumed = max(self._resumed, message.generation)
            elif isinstance(message, wire.SaveReply):
                self._save_reply = message
            elif isinstance(message, wire.Finish):
                self._finished = True
            self._changed.notify_all()

    def _receive_abort(self, generation: int) -> None:
        self.is_relieved = False  # only seated members are aborted
        if generation > self.generation:
            self.generation, self._layout = generation, None
        if not self._applying:
            self._send(wire.Stopped(self.member, generation, self.step, self._awaits_layout))

    def _send(self, message: wire.Message) -> None:
        """Send a message, if the coordinator was greeted: messages that matter are repeated."""
        if self._connection.has_greeted:
            self._connection.send(message)

    def _renew_lease(self, heartbeat: int) -> None:
        """Extend the lease by the answer to a heartbeat; it runs from when the heartbeat was sent."""
        with self._changed:
            self._leased_s = max(self._leased_s, self._sent_s.pop(heartbeat, self._leased_s))
            self._sent_s = {later: sent_s for later, sent_s in self._sent_s.items() if later > heartbeat}
            self._silence.end()
            self._is_waiting = False
            self._changed.notify_all()

    def _has_lease(self) -> bool:
        return time.monotonic() - self._leased_s <= SILENCE_S or self._finished or self._closed

    def _check_silence(self) -> None:
        """End this process if its coordinator was silent for too long; report that it waits before that."""
        silent_s = self._silence.check()
        if self._finished or self._closed:
            return
        if self._silence.is_too_long:
            end_process(wire.GONE_STATUS, f"the coordinator was silent for {silent_s:.0f} s")
        if silent_s > SILENCE_S and self.generation and not self._is_waiting:
            self._is_waiting = True
            log_line("no coordinator answers: no step is taken until one does")


def client_from_environment(store: str, step: int) -> MemberClient:
    """Return the connection of the member that this process was started as.

    Args:
        store: HOST:PORT of the store that it offers.
        step: Steps that its state has seen.

    Raises:
        KeyError: If it was not started as one.
    """
    variables = os.environ
    number, node = int(variables[wire.MEMBER]), variables.get(wire.NODE, "")
    file, wait_s = variables.get(wire.ADDRESS_FILE, ""), float(variables.get(wire.WAIT_S, SILENCE_S))
    return MemberClient(variables[wire.ADDRESS], variables[wire.SECRET], number, node, store, step, file, wait_s)


def end_process(status: int, reason: str) -> NoReturn:
    """End this process at once, whatever its other threads do: none of them may change anything any more."""
    log_line(f"this process ends: {reason}")
    if status == wire.RESTART_STATUS:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
    os._exit(status)


def log_line(words: str) -> None:
    """Write a line to standard error, which may be closed, or on a disk that is full."""
    with contextlib.suppress(OSError):
        os.write(2, f"longshore.ring: {words}\n".encode())
