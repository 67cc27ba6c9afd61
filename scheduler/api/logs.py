"""GET /v1/jobs/{id}/logs: what a rank wrote, from any offset on, or as it writes it."""

import codecs
import json
import re
from typing import Annotated

from fastapi import APIRouter, Header, Query, Response

from ...cluster.errors import BackendError
from ..backends.protocol import NoLogError
from ..service import Service
from ..settling import attempt_name
from ..states import FINAL, AttemptState
from ..store.attempts import AttemptRow, attempts_of, get_attempt
from ..store.jobs import JobRow, get_job
from .found import Found, find_attempt
from .history import AttemptNumber
from .problems import ProblemError, problems
from .services import Serving
from .streaming import Streaming, Told

MOST_BYTES = 1 << 20  # in one answer
MOST_FOLLOWED = 1 << 16  # in one event
ID = re.compile(r"(\d{1,7}):(\d{1,7}):(\d{1,18})", re.ASCII)

router = APIRouter()


@router.get(
    "/v1/jobs/{job}/logs",
    response_class=Response,
    responses={
        200: {"description": "What it wrote.", "content": {"text/plain": {}, "text/event-stream": {}}},
        **problems(
            "no-such-job",
            "no-such-attempt",
            "no-such-log",
            "beyond-the-end",
            "bad-header",
            "too-many-followers",
            "unavailable",
        ),
    },
)
def logs(
    row: Found,
    service: Serving,
    streams: Streaming,
    rank: Annotated[int, Query(ge=0, le=1_000_000)] = 0,
    attempt: AttemptNumber = None,
    offset: Annotated[int, Query(ge=0, le=2**62, description="In bytes.")] = 0,
    follow: Annotated[bool, Query(description="Go on until the job has ended, as server-sent events.")] = False,  # noqa: FBT002
    last_event_id: Annotated[str | None, Header(max_length=40)] = None,
) -> Response:
    """Return what a rank wrote; the header Next-Offset says where to go on."""
    if follow:
        begin = (attempt or 0, rank, offset) if last_event_id is None else _read_id(last_event_id)
        if begin[0]:
            find_attempt(service, row, begin[0])
        return streams.stream(service, _Following(service, row, begin, attempt).look)
    data, after = _read(service, find_attempt(service, row, attempt), rank, offset, MOST_BYTES)
    if not data and offset and not _read(service, find_attempt(service, row, attempt), rank, offset - 1, 1)[0]:
        raise ProblemError("beyond-the-end", f"the log of rank {rank} does not reach to offset {offset}")
    headers = {"Next-Offset": str(after), "X-Content-Type-Options": "nosniff"}
    return Response(data, media_type="text/plain; charset=utf-8", headers=headers)


def _read(service: Service, attempt: AttemptRow, rank: int, offset: int, most: int) -> tuple[bytes, int]:
    try:
        return service.backend.logs(attempt_name(attempt), rank, offset, most)
    except NoLogError as error:
        raise ProblemError("no-such-log", str(error)) from error
    except BackendError as error:
        raise ProblemError("unavailable", str(error)) from error


def _read_id(text: str) -> tuple[int, int, int]:
    found = ID.fullmatch(text)
    if found is None:
        raise ProblemError("bad-header", f"Last-Event-ID is {text!r}; send the id of an event of this stream")
    return int(found[1]), int(found[2]), int(found[3])


class _Following:
    """Where a follower of a log is. It goes on with the next attempt, unless it asked for one only."""

    def __init__(self, service: Service, row: JobRow, begin: tuple[int, int, int], only: int | None) -> None:
        self._service, self._job, self._only = service, row.id, only
        self._number, self._rank, self._offset = begin
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def look(self) -> list[Told] | None:
        """Return what is new to it, None after the last."""
        with self._service.store.read() as tx:
            row = get_job(tx, self._job)
            attempts = [it.number for it in attempts_of(tx, self._job)]
            attempt = get_attempt(tx, self._job, self._number or (attempts or [0])[-1])
        if row is None:
            return None
        if attempt is None:
            return None if row.state in FINAL else []
        self._number = attempt.number
        # In this order: what was written before it was seen to be over is read after that.
        is_over = attempt.state in (AttemptState.RELEASED, AttemptState.CLOSED)
        text = self._text(attempt)
        if text is None:
            return []
        if is_over and not text:
            text = self._decoder.decode(b"", final=True)  # of a character that was cut off
        if text or not is_over:
            return [self._told(text)] if text else []
        if self._only is not None or (row.state in FINAL and attempts[-1] == self._number):
            return None
        if attempts[-1] > self._number:
            self._number, self._offset = self._number + 1, 0
            self._decoder.reset()
        return []

    def _text(self, attempt: AttemptRow) -> str | None:
        """Return what is new, None if that cannot be told at the moment."""
        try:
            data, self._offset = self._service.backend.logs(
                attempt_name(attempt), self._rank, self._offset, MOST_FOLLOWED
            )
        except NoLogError:
            return ""
        except BackendError:
            return None
        return self._decoder.decode(data)

    def _told(self, text: str) -> Told:
        """Return an event whose offset is that of the first byte that is not in it."""
        offset = self._offset - len(self._decoder.getstate()[0])
        return Told(json.dumps({"text": text}), f"{self._number}:{self._rank}:{offset}", "log")
