"""Bounds on connections, before anything is known of who asks: how many there are, and how long a client may take.

uvicorn has neither a deadline for a request that does not come to its end nor a bound by address. Where there are too
many connections, one goes whose request is not there yet: the oldest of the address that has most of those. So who
opens many only closes his own, and a request that is sent at once is answered at once. One that is being answered goes
on, and is given up only if its client does not read.

Source: SPEC K8; docs/security.md.
"""

import asyncio
import socket
from functools import partial
from typing import Any, NamedTuple, cast

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

MOST, LEAST = 1000, 16  # connections at once; as many as there are files for
BUSY = (
    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
)  # fmt: skip


class Bounds(NamedTuple):
    """How many connections there may be."""

    most: int  # in all
    most_asking: int  # of one address, that have not sent a whole request


class Patience(NamedTuple):
    """How long a client may take."""

    headers_s: float = 10.0  # from the first moment on
    body_s: float = 30.0  # from the end of the headers on
    unread_s: float = 60.0  # that what was sent may wait to be read


def bounds_of(files: int) -> Bounds:
    """Return bounds that leave half of the files that a process may open to other things."""
    most = max(LEAST, min(MOST, files // 2))
    return Bounds(most, max(1, most // 2))


def bounded_protocol(bounds: Bounds, patience: Patience) -> type[H11Protocol]:
    """Return what makes the connections of a server that has bounds on them; uvicorn does no more than call it."""
    return cast("type[H11Protocol]", partial(_Bounded, _Connections(bounds), patience))


class _Bounded(H11Protocol):
    """A connection that is closed if its client takes too long; `for_server` is what the server gives to each."""

    def __init__(self, others: "_Connections", patience: Patience, **for_server: Any) -> None:
        super().__init__(**for_server)
        self.others, self.patience = others, patience

    address = ""
    is_asking = True  # no whole request is there
    _phase: object = None
    _deadline: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a connection if there is room, or can be made."""
        super().connection_made(transport)
        # An answer goes in two parts. Else the second waits for the client to confirm the first, which takes 40 ms.
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.address = self.client[0] if self.client else ""
        if not self.others.take(self):
            transport.write(BUSY)
            transport.close()
            return
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget a connection."""
        self.others.forget(self)
        self._set_deadline(None)
        self.resume_writing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read on."""
        super().data_received(data)
        self._look()

    def on_response_complete(self) -> None:
        """Begin to wait for the next request."""
        super().on_response_complete()
        self._look()

    def pause_writing(self) -> None:
        """Wait for the client to read."""
        super().pause_writing()
        self._unread = self._unread or self.loop.call_later(self.patience.unread_s, self.transport.abort)

    def resume_writing(self) -> None:
        """Go on sending."""
        super().resume_writing()
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def _look(self) -> None:
        """Set the deadline for what comes next of a request; more bytes of the same put nothing off."""
        phase = self.conn.their_state
        if phase is self._phase or self.transport.is_closing():
            return
        self._phase, self.is_asking = phase, phase in (h11.IDLE, h11.SEND_BODY)
        self._set_deadline({h11.IDLE: self.patience.headers_s, h11.SEND_BODY: self.patience.body_s}.get(phase))
        self.others.note(self)

    def _set_deadline(self, in_s: float | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = None if in_s is None else self.loop.call_later(in_s, self.transport.abort)


class _Connections:
    """All connections of a server; those that ask stand in the order in which they began to."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._all: set[_Bounded] = set()
        self._asking: dict[str, dict[_Bounded, None]] = {}  # by address

    def take(self, connection: _Bounded) -> bool:
        """Make room for a connection; say whether there is."""
        mine = self._asking.get(connection.address, {})
        if len(mine) >= self._bounds.most_asking:
            self._close(next(iter(mine)))
        elif len(self._all) >= self._bounds.most:
            if not self._asking:
                return False
            most = max(self._asking, key=lambda address: len(self._asking[address]))
            self._close(next(iter(self._asking[most])))
        self._all.add(connection)
        return True

    def note(self, connection: _Bounded) -> None:
        """Know whether a connection asks, from now on."""
        self._forget_asking(connection)
        if connection.is_asking:
            self._asking.setdefault(connection.address, {})[connection] = None

    def forget(self, connection: _Bounded) -> None:
        """Know a connection no more."""
        self._all.discard(connection)
        self._forget_asking(connection)

    def _forget_asking(self, connection: _Bounded) -> None:
        mine = self._asking.get(connection.address, {})
        mine.pop(connection, None)
        if not mine:
            self._asking.pop(connection.address, None)

    def _close(self, connection: _Bounded) -> None:
        connection.transport.abort()
        self.forget(connection)
