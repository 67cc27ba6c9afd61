"""The HTTP server of the API, with bounds that hold before anything is known of a client.

They are on the number of connections, on how long a client may take, and on the size of a body.

uvicorn has neither a deadline for an incomplete request nor a bound by address. Where there are too many connections,
it closes one without a whole request: the oldest of the address that has most of those. So a client that opens many
closes only its own, and a request that is sent at once is answered at once. One that is being answered goes on, and is
given up only if its client does not read.

Source: SPEC K8; docs/security.md.
"""

import asyncio
import logging
import resource
import socket
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, cast

import h11
import uvicorn
from fastapi import FastAPI, Request
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from ..api.problems import AnswerProblem
from ..service.service import Service

MAX_CONNECTIONS, MIN_CONNECTIONS = 1000, 16  # connections at once, by the number of files
BUSY_RESPONSE = (
    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
)  # fmt: skip


class Patience(NamedTuple):
    """How long a client may take."""

    headers_s: float = 10.0  # from the first moment on
    body_s: float = 30.0  # from the end of the headers on
    unread_s: float = 60.0  # that what was sent may wait to be read


def max_connections(files: int) -> int:
    """Return the number of connections that leaves half of the files that a process may open to other uses."""
    return max(MIN_CONNECTIONS, min(MAX_CONNECTIONS, files // 2))


def bounded_protocol(most: int, patience: Patience) -> type[H11Protocol]:
    """Return what makes the connections of a server that has bounds on them; uvicorn does no more than call it."""
    return cast("type[H11Protocol]", partial(_BoundedConnection, _Connections(most), patience))


class _BoundedConnection(H11Protocol):
    """A connection that is closed if its client takes too long; `for_server` is what the server gives to each."""

    def __init__(self, others: "_Connections", patience: Patience, **for_server: Any) -> None:
        super().__init__(**for_server)
        self.others, self.patience = others, patience

    address = ""
    is_incomplete = True  # no whole request has arrived
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
            transport.write(BUSY_RESPONSE)
            transport.close()
            return
        self._set_phase()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget a connection."""
        self.others.forget(self)
        self._set_deadline(None)
        self.resume_writing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read on."""
        super().data_received(data)
        self._set_phase()

    def on_response_complete(self) -> None:
        """Begin to wait for the next request."""
        super().on_response_complete()
        self._set_phase()

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

    def _set_phase(self) -> None:
        """Set the deadline for what comes next of a request; more bytes of the same put nothing off."""
        phase = self.conn.their_state
        if phase is self._phase or self.transport.is_closing():
            return
        self._phase, self.is_incomplete = phase, phase in (h11.IDLE, h11.SEND_BODY)
        self._set_deadline({h11.IDLE: self.patience.headers_s, h11.SEND_BODY: self.patience.body_s}.get(phase))
        self.others.note(self)

    def _set_deadline(self, in_s: float | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = None if in_s is None else self.loop.call_later(in_s, self.transport.abort)


class _Connections:
    """All connections of a server; those without a whole request are in the order in which they began to wait for it.

    One address may have half of all connections without a whole request.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._all: set[_BoundedConnection] = set()
        self._incomplete: dict[str, dict[_BoundedConnection, None]] = {}  # by address

    def take(self, connection: _BoundedConnection) -> bool:
        """Make room for a connection; return whether there is room."""
        mine = self._incomplete.get(connection.address, {})
        if len(mine) >= self._most // 2:
            self._close(next(iter(mine)))
        elif len(self._all) >= self._most:
            if not self._incomplete:
                return False
            most = max(self._incomplete, key=lambda address: len(self._incomplete[address]))
            self._close(next(iter(self._incomplete[most])))
        self._all.add(connection)
        return True

    def note(self, connection: _BoundedConnection) -> None:
        """Note whether a connection has sent a whole request."""
        self._forget_incomplete(connection)
        if connection.is_incomplete:
            self._incomplete.setdefault(connection.address, {})[connection] = None

    def forget(self, connection: _BoundedConnection) -> None:
        """Forget a connection."""
        self._all.discard(connection)
        self._forget_incomplete(connection)

    def _forget_incomplete(self, connection: _BoundedConnection) -> None:
        mine = self._incomplete.get(connection.address, {})
        mine.pop(connection, None)
        if not mine:
            self._incomplete.pop(connection.address, None)

    def _close(self, connection: _BoundedConnection) -> None:
        connection.transport.abort()
        self.forget(connection)


MAX_BODY_BYTES = 256 * 1024


class BodyLimit:
    """Reads the body of a request, and refuses one that is too large."""

    def __init__(self, app: ASGIApp, answer: AnswerProblem) -> None:
        self._app, self._answer = app, answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http" or scope["method"] in ("GET", "HEAD", "OPTIONS"):
            await self._app(scope, receive, send)
            return
        try:
            body = await _read_body(receive)
        except ClientDisconnect:
            return
        if body is None:
            detail = f"the body is larger than {MAX_BODY_BYTES // 1024} KiB"
            await self._answer(Request(scope), "too-much", detail)(scope, receive, send)
            return
        read = False

        async def again() -> Message:
            nonlocal read
            if read:
                return await receive()
            read = True
            return {"type": "http.request", "body": body, "more_body": False}

        await self._app(scope, again, send)


async def _read_body(receive: Receive) -> bytes | None:
    """Return the body of a request, None if it is too large."""
    parts, size, more = [], 0, True
    while more:
        message = await receive()
        if message["type"] != "http.request":
            raise ClientDisconnect
        more = message.get("more_body", False)
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > MAX_BODY_BYTES:
            return None
    return b"".join(parts)


SWEEP_EVERY_S = 60.0


class OncePerMinute(logging.Filter):
    """Lets each kind of line through once a minute, with the number of those that it held back before.

    Args:
        passed_s: By a monotonic clock.
    """

    def __init__(self, passed_s: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._passed_s = passed_s
        self._last: dict[str, tuple[float, int]] = {}  # time of the last line and lines held back since, by kind

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a line is to be written."""
        if record.levelno < logging.WARNING or record.exc_info:
            return True
        at_s, kind = self._passed_s(), str(record.msg)
        last_s, held = self._last.get(kind, (float("-inf"), 0))
        if at_s - last_s < SWEEP_EVERY_S:
            self._last[kind] = last_s, held + 1
            return False
        self._last[kind] = at_s, 0
        if held:
            record.msg = f"{record.getMessage()} ({held} more times since the last such line)"
            record.args = ()
        return True


log = logging.getLogger(__name__)

DEFAULT_PATIENCE = Patience()
STOP_S = 5  # that requests have to come to their end
BACKLOG = 128  # connections that wait to be taken; asyncio tries this number at a time, also when files have run out
# More are never needed, and some programs of jobs, which inherit the bound, close all one by one.
MAX_OPEN_FILES = 65536
NO_FILES = "socket.accept() out of system resource"  # asyncio's message, once for each try


def raise_file_limit() -> int:
    """Raise the number of files that this process may open to its maximum, and return that."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(MAX_OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    return MAX_OPEN_FILES if soft == resource.RLIM_INFINITY else soft


class ApiServer(uvicorn.Server):
    """Serves an application until a signal arrives; its streams end then, as it would wait for them for ever.

    Args:
        app: What answers.
        service: What the application serves.
        files: That this process may open.
        patience: With clients.
        options: Others of uvicorn.
    """

    def __init__(
        self, app: FastAPI, service: Service, files: int, *, patience: Patience = DEFAULT_PATIENCE, **options: Any
    ) -> None:
        self._service = service
        for name in (__name__, "uvicorn.error"):
            logger = logging.getLogger(name)
            if not any(isinstance(each, OncePerMinute) for each in logger.filters):
                logger.addFilter(OncePerMinute())
        super().__init__(
            uvicorn.Config(
                app,
                http=bounded_protocol(max_connections(files), patience),
                ws="none",
                backlog=BACKLOG,
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=STOP_S,
                log_config=None,  # its lines are written like all others
                **options,
            )
        )

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to take connections."""
        asyncio.get_running_loop().set_exception_handler(_log_refused_accepts)
        await super().startup(sockets)

    def handle_exit(self, sig: int, frame: object) -> None:
        """Begin to stop."""
        self._service.ends.set()
        super().handle_exit(sig, frame)  # type: ignore[arg-type]


def _log_refused_accepts(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log once a minute that no connection can be accepted; asyncio tries again after a second."""
    if context.get("message") == NO_FILES:
        log.error("no connection can be taken: %s", context.get("exception"))
    else:
        loop.default_exception_handler(context)
