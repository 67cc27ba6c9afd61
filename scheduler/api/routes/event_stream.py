"""GET /v1/events: everything that happens, as it happens."""

from typing import Annotated

from fastapi import APIRouter, Header, Query
from fastapi.responses import StreamingResponse

from ...service.service import Service
from ...store.rows.events import EventRow, events_after, last_complete_seq, owners_events_after
from ..http.auth import Asking, Serving
from ..http.problems import ProblemError, problems
from ..http.streaming import MEDIA_TYPE, StreamEvent, Streaming
from ..views.lookup import seen_owner
from ..views.models import event_page

MOST_EVENTS = 500  # told at once
STEP, MOST_STEPS = 20_000, 10  # numbers of others' events that are passed over in a statement, statements in a turn

router = APIRouter()


@router.get(
    "/v1/events",
    response_class=StreamingResponse,
    responses={
        200: {"description": "Events, for as long as they are listened to.", "content": {MEDIA_TYPE: {}}},
        **problems("bad-header", "too-many-followers"),
    },
)
def events(
    service: Serving,
    caller: Asking,
    streams: Streaming,
    last_event_id: Annotated[str | None, Header(max_length=40)] = None,
    after: Annotated[int | None, Query(ge=0, le=2**62, description="The same as `Last-Event-ID`.")] = None,
) -> StreamingResponse:
    """Tell what happens to the caller's jobs, from an event on, or from now on; operators are told of everything."""
    if last_event_id is not None:
        if not (last_event_id.isascii() and last_event_id.isdigit() and len(last_event_id) < 19):
            raise ProblemError(
                "bad-header", f"Last-Event-ID is {last_event_id!r}; send the id of an event of this stream"
            )
        after = int(last_event_id)
    return streams.stream(service, _Following(service, seen_owner(caller), after).look)


class _Following:
    """Where a follower is."""

    def __init__(self, service: Service, owner: str | None, after: int | None) -> None:
        self._service, self._owner = service, owner
        if after is None:
            with service.store.read() as tx:
                after = last_complete_seq(tx)
        self._seq = after

    def look(self) -> list[StreamEvent]:
        """Return what is new to it; of others' events it passes over many at once."""
        rows: list[EventRow] = []
        with self._service.store.read() as tx:
            if self._owner is None:
                rows = events_after(tx, self._seq, MOST_EVENTS)
                self._seq = rows[-1].seq if rows else self._seq
                return [_event(row) for row in rows]
            for _ in range(MOST_STEPS):
                before = self._seq
                rows, self._seq = owners_events_after(tx, before, MOST_EVENTS, self._owner, STEP)
                if rows or self._seq - before < STEP:
                    break
        return [_event(row) for row in rows]


def _event(row: EventRow) -> StreamEvent:
    return StreamEvent(event_page(row).model_dump_json(), str(row.seq), row.kind)
