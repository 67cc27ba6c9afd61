"""How a member reaches its coordinator: it connects, greets, and then says and hears messages.

Source: SPEC F8 to F10.
"""

import contextlib
import select
import socket
import threading
import time
from collections.abc import Callable

from .. import lines as wire_lines
from .. import wire
from ..greeting import answer, check_welcome

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
