"""GET /v1/jobs/{id}/logs: what ranks wrote, from any offset on, the last lines of it, or as they write it."""

import re
from typing import Annotated, Literal

from fastapi import APIRouter, Header, Query, Response

from ....cluster.files.errors import BackendError
from ...backends.protocol import NoLogError
from ...control.attempt_driver import attempt_name
from ...model.job import JobRow
from ...model.states import FINAL, AttemptState
from ...service.service import Service
from ...store.rows.attempts import AttemptRow, attempts_of, get_attempt
from ...store.rows.jobs import get_job
from ..http.auth import Serving
from ..http.problems import ProblemError, problems
from ..http.streaming import StreamEvent, Streaming
from ..views.lookup import Found, find_attempt
from ..views.rank_output import ALL, MOST_BYTES, MOST_RANKS, AllRanks, OneRank, Source, begin_of, last_of_all
from .history import AttemptNumber

MOST_LINES = 100_000
ID = re.compile(r"(\d{1,7}):(\d{1,7}):(\d{1,18})", re.ASCII)
ID_OF_ALL = re.compile(r"(\d{1,7}):all:(\d{1,18}(?:,\d{1,18})*)", re.ASCII)
Rank = Annotated[int, Query(ge=0, le=1_000_000)]

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
    rank: Annotated[Rank | Literal["all"], Query(description="`all` writes `[RANK]` before each line.")] = 0,
    attempt: AttemptNumber = None,
    offset: Annotated[int, Query(ge=0, le=2**62, description="In bytes; not with `tail` or of all ranks.")] = 0,
    tail: Annotated[int | None, Query(ge=0, le=MOST_LINES, description="Only the last lines of each rank.")] = None,
    follow: Annotated[bool, Query(description="Go on until the job has ended, as server-sent events.")] = False,  # noqa: FBT002
    last_event_id: Annotated[str | None, Header(max_length=8000)] = None,
) -> Response:
    """Return what a rank wrote, or all of them; of one rank, the header Next-Offset says where to go on."""
    if offset and (tail is not None or rank == ALL):
        raise ProblemError("invalid", "offset goes with one rank and without tail")
    if follow:
        if rank == ALL and row.gpus > MOST_RANKS:
            raise ProblemError("invalid", f"{row.gpus} ranks cannot be followed at once, only {MOST_RANKS}; name one")
        number, source = _begin(service, rank, offset, tail, last_event_id)
        if number or attempt:
            find_attempt(service, row, number or attempt)
        return streams.stream(service, _Following(service, row, number or attempt or 0, source, attempt).look)
    found = find_attempt(service, row, attempt)
    try:
        if rank == ALL:
            return _answer(last_of_all(service, found, tail).encode(), None)
        return _of_one(service, found, int(rank), offset, tail)
    except NoLogError as error:
        raise ProblemError("no-such-log", str(error)) from error
    except BackendError as error:
        raise ProblemError("unavailable", str(error)) from error


def _of_one(service: Service, attempt: AttemptRow, rank: int, offset: int, tail: int | None) -> Response:
    def read(begin: int, most: int) -> tuple[bytes, int]:
        return service.backend.logs(attempt_name(attempt), rank, begin, most)

    if tail is not None:
        offset = begin_of(service, attempt, rank, tail)
    data, after = read(offset, MOST_BYTES)
    if not data and offset and not read(offset - 1, 1)[0]:
        raise ProblemError("beyond-the-end", f"the log of rank {rank} does not reach to offset {offset}")
    return _answer(data, after)


def _answer(data: bytes, after: int | None) -> Response:
    headers = {"X-Content-Type-Options": "nosniff"} | ({} if after is None else {"Next-Offset": str(after)})
    return Response(data, media_type="text/plain; charset=utf-8", headers=headers)


def _begin(
    service: Service, rank: int | str, offset: int, tail: int | None, last_event_id: str | None
) -> tuple[int, Source]:
    """Return the attempt that a follower begins with, 0 for the last one, and what it follows."""
    if last_event_id is None:
        return 0, AllRanks(service, [], tail) if rank == ALL else OneRank(service, int(rank), offset, tail)
    if rank == ALL:
        if (found := ID_OF_ALL.fullmatch(last_event_id)) is not None:
            return int(found[1]), AllRanks(service, [int(each) for each in found[2].split(",")])
    elif (found := ID.fullmatch(last_event_id)) is not None and int(found[2]) == int(rank):
        return int(found[1]), OneRank(service, int(rank), int(found[3]))
    raise ProblemError("bad-header", f"Last-Event-ID is {last_event_id!r}; send the id of an event of this stream")


class _Following:
    """Where a follower of a log is. It goes on with the next attempt, unless it asked for one only."""

    def __init__(self, service: Service, row: JobRow, number: int, source: Source, only: int | None) -> None:
        self._service, self._job, self._only = service, row.id, only
        self._number, self._source = number, source

    def look(self) -> list[StreamEvent] | None:
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
        try:
            text = self._source.text(attempt, is_over=is_over)
        except BackendError:
            return []
        if text or not is_over:
            return [self._source.event_of(attempt.number, text)] if text else []
        if self._only is not None or (row.state in FINAL and attempts[-1] == self._number):
            return None
        if attempts[-1] > self._number:
            self._number += 1
            self._source.restart()
        return []
