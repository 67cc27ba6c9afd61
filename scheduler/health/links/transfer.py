"""One transfer over a socket, and what its receiver measures of it.

The receiver's clock counts: that of its kernel, where the kernel tells when bytes came, since a busy machine reads them
later. The first fifth of the bytes is left out, as buffers swallow it at once. Of the rest, in parts, the median
counts where it is higher than the whole: a sender or receiver that has to wait for a processor makes no link slow.

Source: SPEC F4.
"""

import socket
import statistics
import struct
import time
from contextlib import suppress
from typing import NamedTuple

from ...preflight.link_checks.bandwidth import LEAST_BYTES, MOST_BYTES, PROBE_S
from ...preflight.link_checks.exchange import PARTS, SKIPPED

LIMIT_S = 0.25  # for a transfer: on a link that is too slow for the least bytes, those that came by then count
STALLED_S = 0.1  # without a byte in the end of a transfer that was cut off: it hangs, and is no slow one
BLOCK = 1 << 18  # bytes that are written and read at a time
STAMPS = 35  # Linux's SO_TIMESTAMPNS, of which Python does not know; also the type of what comes of it
STAMP = struct.Struct("@ll")  # seconds and nanoseconds

Came = list[tuple[int, float]]  # bytes so far, and when


class Figure(NamedTuple):
    """What a receiver measured."""

    counted_bytes: int  # without the first ones
    seconds: float  # that they took

    @property
    def bytes_per_s(self) -> float:
        """The bandwidth."""
        return self.counted_bytes / self.seconds


def want_stamps(connection: socket.socket) -> None:
    """Let the kernel tell when bytes come, where it can. Only while some socket wants that, all packets have stamps."""
    with suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, STAMPS, 1)


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
    until_s, block, total, first = time.monotonic() + limit_s, bytearray(BLOCK), 0, 0
    read: Came = []
    stamped: Came = []
    want_stamps(connection)
    while (wait_s := until_s - time.monotonic()) > 0.0:
        connection.settimeout(wait_s)
        try:
            got, told, _, _ = connection.recvmsg_into([block], socket.CMSG_SPACE(STAMP.size))
        except TimeoutError:
            continue
        if not got:
            break
        total += got
        read.append((total, time.monotonic()))
        stamped += [(total, _stamp(it)) for _, kind, it in told if kind == STAMPS and len(it) == STAMP.size]
        while read[first][0] * PARTS < total * SKIPPED:  # the first bytes are left out
            first += 1
        if total >= MOST_BYTES or (total >= LEAST_BYTES and read[-1][1] - read[first][1] >= PROBE_S):
            break
    if not read or time.monotonic() - read[-1][1] > STALLED_S:
        return None
    return _figure((stamped if len(stamped) == len(read) else read)[first:])


def _stamp(told: bytes) -> float:
    seconds, nanoseconds = STAMP.unpack(told)
    return float(seconds + nanoseconds * 1e-9)


def _figure(came: Came) -> Figure | None:
    """Return what is measured of bytes that came; of too few nothing is."""
    if len(came) < 2:
        return None
    counted, seconds = came[-1][0] - came[0][0], came[-1][1] - came[0][1]
    if not seconds > 0.0:
        return None
    median = statistics.median(_rates(came, counted / (PARTS - SKIPPED)))
    return Figure(counted, min(seconds, counted / median) if median > 0.0 else seconds)


def _rates(came: Came, part: float) -> list[float]:
    """Return the bandwidth of each part of so many bytes."""
    found, (sent, since_s) = [], came[0]
    for total, at_s in came[1:]:
        if total - sent >= part and at_s > since_s:
            found.append((total - sent) / (at_s - since_s))
            sent, since_s = total, at_s
    return found or [0.0]
