"""Server-sent events: blocking reads on threads, a sign of life where nothing happens, and an end when serving ends."""

import asyncio
import logging
import time
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Annotated, NamedTuple

from fastapi import Depends, Request
from fastapi.responses import StreamingResponse
from starlette.concurrency import run_in_threadpool
from starlette.types import Receive, Scope, Send

from ....cluster.files.errors import LongshoreError
from ...access.tokens import Caller
from ...service.service import Service
from .auth import Asking, Knowing, Serving, who_asks
from .problems import ProblemError
from .stream_slots import StreamSlots

log = logging.getLogger(__name__)

MEDIA_TYPE = "text/event-stream"
HEARTBEAT, HEARTBEAT_S = b": it goes on\n\n", 15.0
LOOK_S = 0.2  # between two looks at what may have happened
WHO_S = 5.0  # between two looks at whether a token is still valid
END = "end"  # event by which a stream that is over differs from one that was cut off


class StreamEvent(NamedTuple):
    """A server-sent event."""

    data: str  # JSON
    id: str  # to go on from
    event: str


class Streams:
    """Opens streams to whoever asks.

    Args:
        slots: Places for all streams of an application.
        caller: Who asks.
        who: Says who asks now; raises ProblemError if a token is not valid any more.
        who_s: Between two looks at that.
    """

    def __init__(
        self, slots: StreamSlots, caller: Caller, who: Callable[[], Awaitable[Caller]], *, who_s: float = WHO_S
    ) -> None:
        self._slots, self._caller, self._who, self._who_s = slots, caller, who, who_s

    def stream(self, service: Service, look: Callable[[], list[StreamEvent] | None]) -> StreamingResponse:
        """Return an answer that goes on until there is nothing more to tell, or its token is not valid any more.

        Args:
            service: When it ends, the answer ends.
            look: Returns what is new, None after the last. Is called on a thread, one call after the other.

        Raises:
            ProblemError: If too many are open.
        """
        give_back = self._slots.take(self._caller.owner)
        if give_back is None:
            event = f"{self._slots.open_of()} streams are open, {self._slots.open_of(self._caller.owner)} of them yours"
            raise ProblemError("too-many-followers", event, Retry_After="10")
        return _Stream(self._event(service, look), give_back)

    async def _event(self, service: Service, look: Callable[[], list[StreamEvent] | None]) -> AsyncIterator[bytes]:
        yield HEARTBEAT  # the client knows at once that it is connected
        said = asked = time.monotonic()
        while not service.ends.is_set():
            try:
                if time.monotonic() - asked > self._who_s:
                    asked = time.monotonic()
                    if await self._who() != self._caller:
                        return
                new = await run_in_threadpool(look)
            except (LongshoreError, ProblemError) as error:
                log.warning("a stream of %s breaks off: %s", self._caller.owner, error)
                return
            if new is None:
                yield _as_bytes(StreamEvent("{}", "", END))
                return
            if new:
                yield b"".join(map(_as_bytes, new))
            elif time.monotonic() - said > HEARTBEAT_S:
                yield HEARTBEAT
            else:
                await asyncio.sleep(LOOK_S)
                continue
            said = time.monotonic()


class _Stream(StreamingResponse):
    """A stream that gives its place back when it ends, however it does, and when it never begins."""

    def __init__(self, event: AsyncIterator[bytes], give_back: Callable[[], None]) -> None:
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        super().__init__(event, media_type=MEDIA_TYPE, headers=headers)
        self._give_back = give_back
        weakref.finalize(self, give_back)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._give_back()


def _as_bytes(event: StreamEvent) -> bytes:
    number = f"id: {event.id}\n" if event.id else ""
    return f"{number}event: {event.event}\ndata: {event.data}\n\n".encode()


async def streams_of(request: Request, service: Serving, known: Knowing, caller: Asking) -> Streams:
    """Return what opens streams to whoever asks."""
    slots: StreamSlots = request.app.state.streams
    return Streams(slots, caller, lambda: who_asks(request, service, known))


Streaming = Annotated[Streams, Depends(streams_of)]
