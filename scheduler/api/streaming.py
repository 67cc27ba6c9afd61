"""Server-sent events: blocking reads on threads, a sign of life where nothing happens, and an end when serving ends."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from typing import Annotated, NamedTuple

from fastapi import Depends, Request
from fastapi.responses import StreamingResponse
from starlette.concurrency import run_in_threadpool

from ...cluster.errors import LongshoreError
from ..service import Service
from .problems import ProblemError

log = logging.getLogger(__name__)

MEDIA_TYPE = "text/event-stream"
HEARTBEAT, HEARTBEAT_S = b": it goes on\n\n", 15.0
LOOK_S = 0.2  # between two looks at what may have happened
MOST = 100  # streams at once
END = "end"  # event by which a stream that is over differs from one that was cut off


class Told(NamedTuple):
    """A server-sent event."""

    data: str  # JSON
    id: str  # to go on from
    event: str


class Streams:
    """Counts the streams that are open."""

    def __init__(self) -> None:
        self.open = 0

    def stream(self, service: Service, look: Callable[[], list[Told] | None]) -> StreamingResponse:
        """Return an answer that goes on until there is nothing more to tell.

        Args:
            service: When it ends, the answer ends.
            look: Returns what is new, None after the last. Is called on a thread, one call after the other.

        Raises:
            ProblemError: If too many are open.
        """
        if self.open >= MOST:
            raise ProblemError("too-many-followers", f"{MOST} streams are open", Retry_After="10")
        return StreamingResponse(
            self._told(service, look),
            media_type=MEDIA_TYPE,
            headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"},
        )

    async def _told(self, service: Service, look: Callable[[], list[Told] | None]) -> AsyncIterator[bytes]:
        self.open += 1
        try:
            yield HEARTBEAT  # the client knows at once that it is connected
            said = time.monotonic()
            while not service.ends.is_set():
                try:
                    new = await run_in_threadpool(look)
                except LongshoreError as error:
                    log.warning("a stream breaks off: %s", error)
                    return
                if new is None:
                    yield _as_bytes(Told("{}", "", END))
                    return
                if new:
                    yield b"".join(map(_as_bytes, new))
                elif time.monotonic() - said > HEARTBEAT_S:
                    yield HEARTBEAT
                else:
                    await asyncio.sleep(LOOK_S)
                    continue
                said = time.monotonic()
        finally:
            self.open -= 1


def _as_bytes(told: Told) -> bytes:
    number = f"id: {told.id}\n" if told.id else ""
    return f"{number}event: {told.event}\ndata: {told.data}\n\n".encode()


async def streams_of(request: Request) -> Streams:
    """Return the streams of an application."""
    streams: Streams = request.app.state.streams
    return streams


Streaming = Annotated[Streams, Depends(streams_of)]
