"""Server-sent events: bounded in number, with signs of life, and an end when serving ends; GET /v1/events."""

import asyncio
import json
import logging
import threading
import time
import weakref
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Annotated, NamedTuple

from fastapi import APIRouter, Depends, Header, Query, Request
from fastapi.responses import StreamingResponse
from starlette.concurrency import run_in_threadpool
from starlette.types import Receive, Scope, Send

from ...cluster.files.errors import LongshoreError
from ..access.tokens import Caller
from ..service.service import Service
from ..store.events import EventRow, events_after, last_complete_seq, owners_events_after
from .auth import Reader, ServiceDep, TokenCacheDep, caller_of_request
from .jobs import event_page, visible_owner
from .problems import ProblemError, openapi_problems

MAX_STREAMS = 100  # streams at once, of all owners


class StreamSlots:
    """Slots for streams. An owner may hold half of the slots that others leave: one holds 50, two together 75.

    Safe for threads.
    """

    def __init__(self) -> None:
        self._open = Counter[str]()
        self._lock = threading.RLock()  # the garbage collector returns slots at any moment

    def take(self, owner: str) -> Callable[[], None] | None:
        """Take a slot and return the function that returns it, at most once; None if there is no slot."""
        with self._lock:
            mine, all_ = self._open[owner], self._open.total()
            if mine >= (MAX_STREAMS - (all_ - mine)) / 2:
                return None
            self._open[owner] += 1
        taken = [owner]

        def give_back() -> None:
            with self._lock:
                for each in taken:
                    self._open[each] -= 1
                taken.clear()
                self._open += Counter()  # owners without any are forgotten

        return give_back

    def count_open(self, owner: str | None = None) -> int:
        """Return how many streams are open, of an owner or of all."""
        with self._lock:
            return self._open.total() if owner is None else self._open[owner]


log = logging.getLogger(__name__)

STREAM_MEDIA_TYPE = "text/event-stream"
HEARTBEAT, HEARTBEAT_S = b": it goes on\n\n", 15.0
STREAM_POLL_S = 0.2  # between two polls for new events
TOKEN_CHECK_S = 5.0  # between two checks of the token
END = "end"  # event by which a stream that is over differs from one that was cut off


class SentEvent(NamedTuple):
    """A server-sent event. One without data only gives a client its position in the stream."""

    data: str  # JSON in ASCII: some clients end lines at other characters of Unicode too
    id: str  # from which a client continues
    event: str


Poll = Callable[[], list[SentEvent] | None]  # returns new events, None after the last


def open_stream(
    slots: StreamSlots,
    caller: Caller,
    check: Callable[[], Awaitable[Caller]],
    service: Service,
    poll: Poll,
    *,
    check_s: float = TOKEN_CHECK_S,
) -> StreamingResponse:
    """Return a stream of events, until their end or that of the token.

    Args:
        slots: Of all streams of an application.
        caller: Of the request.
        check: Returns the caller; raises ProblemError once its token is not valid.
        service: When it ends, the answer ends.
        poll: It is called on a thread, one call after the other.
        check_s: Seconds between two checks of the token.

    Raises:
        ProblemError: If too many are open.
    """
    give_back = slots.take(caller.owner)
    if give_back is None:
        detail = f"{slots.count_open()} streams are open, {slots.count_open(caller.owner)} of them yours"
        raise ProblemError("too-many-followers", detail, Retry_After="10")

    async def chunks() -> AsyncIterator[bytes]:
        yield HEARTBEAT  # the client knows at once that it is connected
        sent_s = checked_s = time.monotonic()
        while not service.ends.is_set():
            try:
                if time.monotonic() - checked_s > check_s:
                    checked_s = time.monotonic()
                    if await check() != caller:
                        return
                new = await run_in_threadpool(poll)
            except (LongshoreError, ProblemError) as error:
                log.warning("a stream of %s breaks off: %s", caller.owner, error)
                return
            if new is None:
                yield _as_bytes(SentEvent("{}", "", END))
                return
            if new:
                yield b"".join(map(_as_bytes, new))
            elif time.monotonic() - sent_s > HEARTBEAT_S:
                yield HEARTBEAT
            else:
                await asyncio.sleep(STREAM_POLL_S)
                continue
            sent_s = time.monotonic()

    return _SlotStream(chunks(), give_back)


class _SlotStream(StreamingResponse):
    """A stream that gives its place back when it ends, however it does, and when it never begins."""

    def __init__(self, chunks: AsyncIterator[bytes], give_back: Callable[[], None]) -> None:
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        super().__init__(chunks, media_type=STREAM_MEDIA_TYPE, headers=headers)
        self._give_back = give_back
        weakref.finalize(self, give_back)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._give_back()


def _as_bytes(event: SentEvent) -> bytes:
    number = f"id: {event.id}\n" if event.id else ""
    return f"{number}event: {event.event}\ndata: {event.data}\n\n".encode() if event.data else f"{number}\n".encode()


async def open_stream_of(
    request: Request, service: ServiceDep, known: TokenCacheDep, caller: Reader
) -> Callable[[Poll], StreamingResponse]:
    """Return what opens a stream for a caller."""
    check = partial(caller_of_request, request, service, known)
    return partial(open_stream, request.app.state.streams, caller, check, service)


OpenStream = Annotated[Callable[[Poll], StreamingResponse], Depends(open_stream_of)]


MAX_EVENTS_AT_ONCE = 500  # in one poll
STEP, MAX_STEPS = 20_000, 10  # numbers of others' events that are passed over in a statement, statements in a turn

router = APIRouter()


@router.get(
    "/v1/events",
    response_class=StreamingResponse,
    responses={
        200: {"description": "Events, until the client closes the connection.", "content": {STREAM_MEDIA_TYPE: {}}},
        **openapi_problems("bad-header", "too-many-followers"),
    },
)
def events(
    service: ServiceDep,
    caller: Reader,
    open_stream: OpenStream,
    last_event_id: Annotated[str | None, Header(max_length=40)] = None,
    after: Annotated[int | None, Query(ge=0, le=2**62, description="The same as `Last-Event-ID`.")] = None,
) -> StreamingResponse:
    """Stream the events of the caller's jobs, after an event or from now on; operators get all events."""
    if last_event_id is not None:
        if not (last_event_id.isascii() and last_event_id.isdigit() and len(last_event_id) < 19):
            raise ProblemError(
                "bad-header", f"Last-Event-ID is {last_event_id!r}; send the id of an event of this stream"
            )
        after = int(last_event_id)
    return open_stream(_event_poll(service, visible_owner(caller), after))


def _event_poll(service: Service, owner: str | None, after: int | None) -> Poll:
    """Return what polls for the events after one, of an owner's jobs or of all; None: from now on."""
    begins_now = after is None
    if after is None:
        with service.store.read() as tx:
            after = last_complete_seq(tx)
    seq = after

    def poll() -> list[SentEvent]:
        """Return new events; events of other users are skipped, many at once."""
        nonlocal seq, begins_now
        if begins_now:  # a client that is cut off before the first event continues from here
            begins_now = False
            return [SentEvent("", str(seq), "")]
        rows: list[EventRow] = []
        with service.store.read() as tx:
            if owner is None:
                rows = events_after(tx, seq, MAX_EVENTS_AT_ONCE)
                seq = rows[-1].seq if rows else seq
                return [_sent_event(row) for row in rows]
            for _ in range(MAX_STEPS):
                before = seq
                rows, seq = owners_events_after(tx, before, MAX_EVENTS_AT_ONCE, owner, STEP)
                if rows or seq - before < STEP:
                    break
        return [_sent_event(row) for row in rows]

    return poll


def _sent_event(row: EventRow) -> SentEvent:
    return SentEvent(json.dumps(event_page(row).model_dump(mode="json")), str(row.seq), row.kind)
