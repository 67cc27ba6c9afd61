"""Messages over a socket, each with its length before it; nothing takes longer than it may."""

import socket
import time

MOST_BYTES = 256 << 20
LENGTH_BYTES = 8


def send_frame(connection: socket.socket, data: bytes, until: float | None = None) -> None:
    """Send a message.

    Args:
        connection: The socket.
        data: The message.
        until: Of `time.monotonic`; None for as long as it takes.

    Raises:
        OSError: If the other side has ended, TimeoutError if it does not listen.
    """
    connection.settimeout(_left_s(until))
    connection.sendall(len(data).to_bytes(LENGTH_BYTES) + data)


def receive_frame(connection: socket.socket, until: float | None = None) -> bytes:
    """Return the next message.

    Raises:
        EOFError: If the other side has ended.
        OSError: TimeoutError if there is none in time; if it is too long.
    """
    size = int.from_bytes(_receive(connection, LENGTH_BYTES, until))
    if size > MOST_BYTES:
        raise OSError(f"a message of {size} bytes")
    return _receive(connection, size, until)


def _receive(connection: socket.socket, size: int, until: float | None) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        connection.settimeout(_left_s(until))
        part = connection.recv(min(size - len(parts), 1 << 20))
        if not part:
            raise EOFError
        parts += part
    return bytes(parts)


def _left_s(until: float | None) -> float | None:
    """Return the seconds that are left; never 0, which would mean not to wait at all but to fail at once."""
    return None if until is None else max(until - time.monotonic(), 1e-4)
