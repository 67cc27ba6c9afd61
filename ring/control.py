"""A member's connection to its coordinator, in a thread that answers in any state of the main thread.

Source: SPEC F8 to F10.
"""

import contextlib
import os
import secrets
import select
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

from . import wire
from . import wire as wire_lines
from .wire import BEAT_S, SILENCE_S, answer, check_welcome

RETRY_S = 0.05
GREET_S = 5.0  # for the coordinator to prove itself


class Connection:
    """One connection after the other. One thread opens it and hears; others may say things and close it.

    Args:
        address: HOST:PORT of the coordinator.
        secret: Of the ring.
    """

    def __init__(self, address: str, secret: str) -> None:
        host, _, port = address.rpartition(":")
        self._address, self._secret = (host, int(port)), secret
        self._sending = threading.Lock()
        self._socket: socket.socket | None = None
        self._asked: wire.Challenge | None = None  # by who listens at the other end
        self._said: wire.Hello | None = None  # that answers it: from here on there is somebody to say things to
        self._is_welcome = False  # the other end has proven to be the coordinator: from here on it is heard
        self._greet_by_s = 0.0
        self._lines = wire_lines.Lines()

    @property
    def is_open(self) -> bool:
        """Whether there is a connection, greeted or not."""
        return self._socket is not None

    def open(self) -> bool:
        """Connect; return whether that succeeded."""
        try:
            connection = socket.create_connection(self._address, timeout=wire.BEAT_S)
        except OSError:
            return False
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._lines, self._greet_by_s = wire_lines.Lines(), time.monotonic() + GREET_S
        self._asked, self._said, self._is_welcome = None, None, False
        self._socket = connection
        return True

    def receive(self, wait_s: float, greet: Callable[[wire.Challenge], None]) -> list[wire.Message] | None:
        """Return what the coordinator says within some time; None if the connection is of no use any more.

        Args:
            wait_s: How long to wait for a word.
            greet: Answers a challenge, by `hello`.
        """
        connection = self._socket
        if connection is None:
            return []
        if not self._is_welcome and time.monotonic() > self._greet_by_s:
            return None
        try:
            if not select.select([connection], [], [], wait_s)[0]:
                return []
            data = connection.recv(1 << 16)
            messages = self._lines.feed(data)
            while messages and not self._is_welcome:
                self._take_greeting(messages.pop(0), greet)
        except (OSError, ValueError):
            return None
        return messages if data else None

    def hello(self, asked: wire.Challenge, hello: wire.Hello) -> None:
        """Answer a challenge. What is said from here on comes behind it."""
        hello = answer(self._secret, asked, hello)
        self._send(hello)
        self._asked, self._said = asked, hello

    def say(self, message: wire.Message) -> None:
        """Send a message, if there is somebody to hear it: what matters is said again."""
        if self._said is not None:
            self._send(message)

    def close(self) -> None:
        """End the connection."""
        connection, self._socket = self._socket, None
        self._said = None
        if connection is not None:
            connection.close()

    def _take_greeting(self, message: wire.Message, greet: Callable[[wire.Challenge], None]) -> None:
        """Answer the challenge, and hear nothing before the welcome.

        Raises:
            WireError: If the other end is not the coordinator.
        """
        if self._asked is not None and self._said is not None:
            check_welcome(self._secret, self._asked, self._said, message)
            self._is_welcome = True
        elif isinstance(message, wire.Challenge):
            greet(message)
        else:
            raise wire_lines.WireError("no challenge")

    def _send(self, message: wire.Message) -> None:
        connection = self._socket
        if connection is not None:
            with self._sending, contextlib.suppress(OSError):
                connection.sendall(wire_lines.encode(message))


LONGEST_LOOK_S = 2.0 * BEAT_S  # between two looks; a process that took longer stood still


class Silence:
    """Counts the time in which something could have been heard.

    A machine may stand still for longer than a member may be silent: it is suspended, or moved to another host. Its
    processes hear nothing meanwhile, and yet nobody was silent. They hear what was said as soon as they go on.

    Args:
        first_s: How long the first silence may last, in place of SILENCE_S.
    """

    def __init__(self, first_s: float) -> None:
        self._limit_s, self._silent_s, self._looked_s = first_s, 0.0, time.monotonic()

    @property
    def is_too_long(self) -> bool:
        """Whether it had lasted for too long at the last look."""
        return self._silent_s > self._limit_s

    def look(self) -> float:
        """Return how long it has lasted, in seconds. Look once a beat: of a longer time only a part counts."""
        now_s = time.monotonic()
        self._silent_s += min(now_s - self._looked_s, LONGEST_LOOK_S)
        self._looked_s = now_s
        return self._silent_s

    def end(self) -> None:
        """Take note that something was heard."""
        self._limit_s, self._silent_s = SILENCE_S, 0.0


MEET_S = 60.0  # to reach the coordinator at the start
AGAIN_S = 1.0  # after which what was not answered is said again: the coordinator may have been killed


class AbortedError(Exception):
    """The ring is formed anew: what the main thread does belongs to an earlier generation."""


class FinishedError(Exception):
    """All members are done."""


class RelievedError(Exception):
    """Another member computes in place of this one, which is slow."""


@dataclass(slots=True)
class Pulse:
    """What beats tell; the main thread writes it."""

    moved: int = 0
    waiting: bool = False
    compute_s: float = 0.0
    step_s: float = 0.0
    until: int = 0


class Control:
    """The connection. The main thread asks and waits; the other one listens, answers, beats and counts the lease.

    Args:
        address: HOST:PORT of the coordinator.
        secret: Of the ring.
        member: Number of this member.
        node: Name of its node.
        store: HOST:PORT of the store that it offers.
        step: Steps that its state has seen.
    """

    def __init__(self, address: str, secret: str, member: int, node: str, store: str, step: int) -> None:
        self._connection = Connection(address, secret)
        self.member, self._node, self._store = member, node, store
        self.pulse = Pulse()
        self.step = step
        self.generation = 0  # the newest that was heard of
        self._at = 0  # that this member's group is of
        self._fresh, self._here, self._applying = True, False, False
        self._is_relieved = False
        self._form: wire.Form | None = None
        self._go = 0
        self._finished = False
        self._may_save: wire.MaySave | None = None
        self._token = secrets.token_hex(8)
        self._changed = threading.Condition()
        self._beats: dict[int, float] = {}
        self._number = 0
        self._leased_s = time.monotonic() + MEET_S - wire.SILENCE_S  # the lease runs from here
        self._silence = Silence(MEET_S)
        self._closed = False
        self._thread = threading.Thread(target=self._listen, name="longshore-ring", daemon=True)

    def start(self) -> None:
        """Connect. From here on the process ends if its coordinator is silent."""
        self._thread.start()

    # What the main thread asks

    @property
    def is_aborted(self) -> bool:
        """Whether the group of this member is of an earlier generation."""
        return self.generation != self._at

    def check(self) -> None:
        """Wait as long as this process may not count itself a member; raise if the ring is formed anew.

        Raises:
            AbortedError: If so.
        """
        if not self._is_leased():
            with self._changed:
                while not self._is_leased() and not self.is_aborted:
                    self._changed.wait(AGAIN_S)
        if self.is_aborted:
            raise AbortedError

    def form(self) -> wire.Form:
        """Wait for the form of the newest generation, with the main thread free to take it.

        Raises:
            FinishedError: If all are done instead.
            RelievedError: If this member is to have none until it is well again.
        """
        with self._changed:
            self._here = True
            try:
                self._say(wire.Here(self.member, self.generation, self.step))
                while (form := self._next_form()) is None:
                    if self._is_relieved:
                        raise RelievedError
                    if not self._changed.wait(AGAIN_S):
                        self._say(wire.Here(self.member, self.generation, self.step))
            finally:
                self._here = False
            self._at = self.generation = form.generation
            return form

    def _next_form(self) -> wire.Form | None:
        """Return the form of the newest generation, None if it has not come.

        Raises:
            FinishedError: If all are done instead.
        """
        form = self._form
        if form is not None and form.generation >= max(self.generation, self._at + 1):
            return form
        if self._finished:
            raise FinishedError
        return None

    def tried(self, compute_s: float, pause_s: float) -> bool:
        """Say how long a shard takes that was computed for nothing; return whether this member has work within a pause.

        Raises:
            FinishedError: If all are done.
        """
        with self._changed:
            self._say(wire.Tried(self.member, compute_s))
            until_s = time.monotonic() + pause_s
            while self._is_relieved and self._next_form() is None and (left_s := until_s - time.monotonic()) > 0.0:
                self._changed.wait(left_s)
            return not self._is_relieved

    def ready(self, ready: wire.Ready) -> None:
        """Say that this member has group and state, and wait until all have.

        Raises:
            AbortedError: If the ring is formed anew instead.
        """
        with self._changed:
            if self.generation == ready.generation:
                self._fresh, self.step = False, ready.step
            self._say(ready)
            self.pulse.waiting = True  # so that a copy between others that does not move is seen
            while self._go < ready.generation and not self.is_aborted:
                if not self._changed.wait(AGAIN_S):
                    self._say(ready)
            self.pulse.waiting = False
            if self._go < ready.generation:
                raise AbortedError

    def fault(self, peer: str, evidence: str) -> None:
        """Say that an exchange failed, and wait until the ring is to be formed anew.

        Raises:
            AbortedError: Then.
        """
        with self._changed:
            # At least once: the word of another member may have ended the generation, but this one may know the peer.
            self._say(wire.Fault(self.member, self._at, peer, evidence[:500]))
            while not self.is_aborted:
                if not self._changed.wait(AGAIN_S):
                    self._say(wire.Fault(self.member, self._at, peer, evidence[:500]))
        raise AbortedError

    def begin_apply(self) -> None:
        """Begin to change the state by a step; the step counts once it is ended.

        Raises:
            AbortedError: If the ring is formed anew: the step is not applied.
        """
        with self._changed:
            self.check()
            self._applying = True

    def end_apply(self, step: int) -> None:
        """Say how many steps the state has seen now."""
        with self._changed:
            self._applying, self._fresh, self.step = False, self._is_relieved, step
            if self.is_aborted:
                self._say(wire.Stopped(self.member, self.generation, self.step, here=False))

    def ran(self) -> None:
        """Say that the first step of a generation is done."""
        self._say(wire.Running(self.member, self._at, self.step))

    def done(self) -> None:
        """Wait until all members are done.

        Raises:
            FinishedError: Then.
            AbortedError: If the ring is formed anew before.
        """
        with self._changed:
            while not self._finished:
                if self.is_aborted:
                    raise AbortedError
                self._say(wire.Done(self.member, self._at, self.step))
                self._changed.wait(AGAIN_S)
        raise FinishedError

    def may_save(self) -> bool:
        """Return whether a checkpoint of this step may be given its name: only a member's may."""
        with self._changed:
            while True:
                asked, self._may_save = self.generation, None
                self._say(wire.AskToSave(self.member, asked, self.step))
                self._changed.wait(AGAIN_S)
                answer: wire.MaySave | None = self._may_save
                if answer is None or (answer.generation, answer.step) != (asked, self.step):
                    continue
                # Who asks in an earlier generation is refused in any case, and asks again.
                if answer.granted or self.generation == asked:
                    return answer.granted

    @property
    def is_relieved(self) -> bool:
        """Whether another member computes in place of this one."""
        return self._is_relieved

    def leave(self, reason: str) -> None:
        """Give up the seat."""
        self._say(wire.Leave(self.member, self._at, reason[:500]))
        self.close()

    def close(self) -> None:
        """End the connection."""
        self._closed = True
        with self._changed:
            self._connection.close()

    # The other thread

    def _listen(self) -> None:
        beat_s = 0.0
        while not self._closed:
            self._check_silence()
            if not self._connection.is_open and not self._connection.open():
                time.sleep(RETRY_S)
                continue
            if time.monotonic() >= beat_s:
                beat_s = time.monotonic() + wire.BEAT_S
                self._beat()
            self._receive(max(0.0, min(beat_s - time.monotonic(), wire.BEAT_S)))

    def _greet(self, challenge: wire.Challenge) -> None:
        with self._changed:  # what the main thread says of this state comes behind it
            token, at, step, fresh = self._token, self._at, self.step, self._fresh
            hello = wire.Hello("member", self.member, token, at, step, fresh, self._store, self._node)
            self._connection.hello(challenge, hello)
            if self._here:
                self._say(wire.Here(self.member, self.generation, self.step))
        self._beat()

    def _beat(self) -> None:
        self._number += 1
        self._beats[self._number] = time.monotonic()
        pulse = self.pulse
        self._say(
            wire.Beat(
                self.member,
                self._at,
                self._number,
                self.step,
                pulse.moved,
                pulse.waiting,
                pulse.compute_s,
                pulse.step_s,
                pulse.until,
            )
        )

    def _receive(self, wait_s: float) -> None:
        messages = self._connection.receive(wait_s, self._greet)
        if messages is None:
            with self._changed:
                self._connection.close()
            time.sleep(RETRY_S)
        for message in messages or ():
            self._hear(message)

    def _hear(self, message: wire.Message) -> None:
        if isinstance(message, wire.Lease):
            self._extend(message.number)
            return
        if isinstance(message, wire.Gone):
            end_process(wire.RESTART_STATUS if message.restart else wire.GONE_STATUS, message.reason)
        with self._changed:
            if isinstance(message, wire.Abort) and message.generation >= self.generation:
                self._abort(message.generation)
            elif isinstance(message, wire.Form) and message.generation >= self.generation:
                self.generation, self._form, self._is_relieved = message.generation, message, False
            elif isinstance(message, wire.Relieved) and message.generation >= self.generation:
                self._is_relieved = self._fresh = True
                self.generation, self._form = message.generation, None
            elif isinstance(message, wire.Go):
                self._go = max(self._go, message.generation)
            elif isinstance(message, wire.MaySave):
                self._may_save = message
            elif isinstance(message, wire.Finish):
                self._finished = True
            self._changed.notify_all()

    def _abort(self, generation: int) -> None:
        self._is_relieved = False  # who is told to stop has a seat
        if generation > self.generation:
            self.generation, self._form = generation, None
        if not self._applying:
            self._say(wire.Stopped(self.member, generation, self.step, self._here))

    def _say(self, message: wire.Message) -> None:
        self._connection.say(message)

    def _extend(self, number: int) -> None:
        """Take the lease that answers a beat; it runs from when the beat was sent."""
        with self._changed:
            self._leased_s = max(self._leased_s, self._beats.pop(number, self._leased_s))
            self._beats = {it: at_s for it, at_s in self._beats.items() if it > number}
            self._silence.end()
            self._changed.notify_all()

    def _is_leased(self) -> bool:
        return time.monotonic() - self._leased_s <= wire.SILENCE_S or self._finished or self._closed

    def _check_silence(self) -> None:
        """End this process if its coordinator was silent for too long."""
        silent_s = self._silence.look()
        if self._silence.is_too_long and not self._finished and not self._closed:
            end_process(wire.GONE_STATUS, f"the coordinator was silent for {silent_s:.0f} s")


def from_environment(store: str, step: int) -> Control:
    """Return the connection of the member that this process was started as.

    Args:
        store: HOST:PORT of the store that it offers.
        step: Steps that its state has seen.

    Raises:
        KeyError: If it was not started as one.
    """
    given = os.environ
    return Control(
        given[wire.ADDRESS], given[wire.SECRET], int(given[wire.MEMBER]), given.get(wire.NODE, ""), store, step
    )


def end_process(status: int, reason: str) -> NoReturn:
    """End this process at once, whatever its other threads do: none of them may change anything any more."""
    with contextlib.suppress(OSError):
        os.write(2, f"longshore.ring: this process ends: {reason}\n".encode())
    if status == wire.RESTART_STATUS:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
    os._exit(status)
