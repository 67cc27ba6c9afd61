"""One transfer over a socket, and what its receiver measures of it.

The receiver's clock counts. The first fifth of the bytes is left out, as buffers swallow it at once.

Source: SPEC F4.
"""

import socket
import time
from contextlib import suppress
from typing import NamedTuple

from ...preflight.link_checks.bandwidth import LEAST_BYTES, MOST_BYTES, PARTS, PROBE_S, SKIPPED

LIMIT_S = 0.25  # for a transfer: on a link that is too slow for the least bytes, those that came by then count
STALLED_S = 0.1  # without a byte in the end of a transfer that was cut off: it hangs, and is no slow one
BLOCK = 1 << 18  # bytes that are written and read at a time


class Figure(NamedTuple):
    """What a receiver measured."""

    counted_bytes: int  # without the first ones
    seconds: float  # that they took

    @property
    def bytes_per_s(self) -> float:
        """The bandwidth."""
        return self.counted_bytes / self.seconds


def send(connection: socket.socket, limit_s: float) -> None:
    """Send until the receiver has enough and closes, or until the limit."""
    until_s, left, block = time.monotonic() + limit_s, MOST_BYTES, memoryview(bytes(BLOCK))
    with suppress(OSError):
        while left > 0 and (wait_s := until_s - time.monotonic()) > 0.0:
            connection.settimeout(wait_s)
            left -= connection.send(block[:left])


def receive(connection: socket.socket, limit_s: float) -> Figure | None:
    """Receive until the bandwidth is known, and return it; None if too little comes.

    Args:
        connection: Over which the other end sends.
        limit_s: For all of it.

    Raises:
        OSError: If the connection breaks.
    """
    until_s, block = time.monotonic() + limit_s, bytearray(BLOCK)
    came: list[tuple[int, float]] = []  # bytes so far, and when
    total, first = 0, 0  # `first`: behind the bytes that are left out
    while (wait_s := until_s - time.monotonic()) > 0.0:
        connection.settimeout(wait_s)
        try:
            got = connection.recv_into(block)
        except TimeoutError:
            break
        if not got:
            break
        total += got
        came.append((total, time.monotonic()))
        while came[first][0] * PARTS < total * SKIPPED:
            first += 1
        if total >= MOST_BYTES or (total >= LEAST_BYTES and came[-1][1] - came[first][1] >= PROBE_S):
            return _figure(came, first)
    return None if not came or time.monotonic() - came[-1][1] > STALLED_S else _figure(came, first)


def _figure(came: list[tuple[int, float]], first: int) -> Figure | None:
    counted, seconds = came[-1][0] - came[first][0], came[-1][1] - came[first][1]
    return Figure(counted, seconds) if counted > 0 and seconds > 0.0 else None
