"""Messages over a socket, each with its length before it; nothing takes longer than it may."""

import select
import socket
import time

MOST_BYTES = 4 << 20  # of a message that a policy's process sends; what it is sent may be larger
LENGTH_BYTES = 8
PIECE_BYTES = 1 << 18


class Channel:
    """One side of a connection. What has come of a message is kept when the time is over, for the next try.

    Args:
        connection: A stream socket.
        most_bytes: Of a message that comes in.
    """

    def __init__(self, connection: socket.socket, most_bytes: int) -> None:
        self._connection, self._most_bytes = connection, most_bytes
        self._came = bytearray()
        self._readable, self._writable = select.poll(), select.poll()
        self._readable.register(connection, select.POLLIN)
        self._writable.register(connection, select.POLLOUT)

    def send(self, data: bytes, until: float | None = None) -> None:
        """Send a message.

        Args:
            data: The message.
            until: Of `time.monotonic`; None for as long as it takes.

        Raises:
            OSError: If the other side has ended, TimeoutError if it does not listen; then nothing can follow.
        """
        left = memoryview(len(data).to_bytes(LENGTH_BYTES) + data)
        while left:
            try:
                left = left[self._connection.send(left[:PIECE_BYTES], socket.MSG_DONTWAIT) :]
            except BlockingIOError:
                _wait(self._writable, until)

    def receive(self, until: float | None = None) -> bytes:
        """Return the next message; one that is there is returned however late it is.

        Raises:
            EOFError: If the other side has ended.
            OSError: TimeoutError if there is none in time; if it is too long.
        """
        while (message := self._message()) is None:
            try:
                piece = self._connection.recv(PIECE_BYTES, socket.MSG_DONTWAIT)
            except BlockingIOError:
                _wait(self._readable, until)
                continue
            if not piece:
                raise EOFError
            self._came += piece
            if until is not None and time.monotonic() > until and self._size() > len(self._came):
                raise TimeoutError  # or one that sends byte by byte would never be late
        return message

    def close(self) -> None:
        """Let the other side know that this one has ended; the socket itself is closed by who made it."""
        self._connection.shutdown(socket.SHUT_RDWR)

    def _size(self) -> int:
        """Return the bytes of the message that comes next, its length included."""
        if len(self._came) < LENGTH_BYTES:
            return LENGTH_BYTES
        size = int.from_bytes(self._came[:LENGTH_BYTES])
        if size > self._most_bytes:
            raise OSError(f"a message of {size} bytes")
        return LENGTH_BYTES + size

    def _message(self) -> bytes | None:
        """Take the next message out of what has come, None if it is not all there."""
        size = self._size()
        if len(self._came) < size:
            return None
        message = bytes(self._came[LENGTH_BYTES:size])
        del self._came[:size]
        return message


def _wait(poll: select.poll, until: float | None) -> None:
    """Wait until something can be done.

    Raises:
        TimeoutError: If that is too late.
    """
    if until is None:
        poll.poll()
        return
    left_s = until - time.monotonic()
    if left_s <= 0.0 or not poll.poll(1000.0 * left_s):
        raise TimeoutError
