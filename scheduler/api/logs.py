"""GET /v1/jobs/{id}/logs: the output of ranks from an offset, its last lines, or followed."""

import codecs
import json
import logging
import re
from collections.abc import Iterator
from typing import Annotated, Literal

from fastapi import APIRouter, Header, Query, Response
from fastapi.responses import StreamingResponse

from ...cluster.files.errors import BackendError
from ..backends.protocol import NoLogError
from ..logs import tail_offset
from ..model.states import FINAL, AttemptState
from ..service.service import Service
from ..store.attempts import AttemptRow, attempts_of, get_attempt
from ..store.jobs import get_job
from .auth import ServiceDep
from .jobs import AttemptNumber, FoundJob, find_attempt
from .problems import ProblemError, openapi_problems
from .streaming import OpenStream, Poll, SentEvent

log = logging.getLogger(__name__)

ALL_RANKS = "all"
MAX_LOG_BYTES = 1 << 20  # in one answer
MAX_FOLLOWED_BYTES = 1 << 16  # of a rank in one event; all ranks share the bytes of one answer
MAX_FOLLOWED_RANKS = 256  # that are followed at once: their offsets have to fit into the id of an event
EVERY_LINE = 1 << 62
LOG_MEDIA_TYPE, LOG_HEADERS = "text/plain; charset=utf-8", {"X-Content-Type-Options": "nosniff"}


class RankOutput:
    """The output of one rank.

    Args:
        service: The scheduler.
        rank: The rank.
        offset: Where to begin in the first attempt.
        lines: Begin at the last lines instead; None for the offset.
    """

    def __init__(self, service: Service, rank: int, offset: int, lines: int | None = None) -> None:
        self._service, self._rank, self._offset, self._lines = service, rank, offset, lines
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def text(self, attempt: AttemptRow, *, is_over: bool) -> str:
        """Return new output of an attempt: the same one as the last time, or the next one after `restart`.

        Args:
            attempt: The attempt.
            is_over: No more output will follow, so nothing is held back.

        Raises:
            BackendError: If it cannot be read now.
        """
        if self._lines is not None:
            self._offset = tail_begin(self._service, attempt, self._rank, self._lines)
            self._lines = None
        data, self._offset = read_log_if_any(self._service, attempt, self._rank, self._offset, MAX_FOLLOWED_BYTES)
        return self._decoder.decode(data, final=is_over and not data)

    def restart(self) -> None:
        """Begin again, with the next attempt."""
        self._offset, self._lines = 0, None
        self._decoder.reset()

    def event_of(self, number: int, text: str) -> SentEvent:
        """Return an event whose offset is that of the first byte that is not in it."""
        offset = self._offset - len(self._decoder.getstate()[0])
        return SentEvent(json.dumps({"text": text}), f"{number}:{self._rank}:{offset}", "log")


class AllOutput:
    """The output of all ranks, in whole lines as they come.

    Args:
        service: The scheduler.
        offsets: By rank, where to begin in the first attempt; none for its beginning.
        lines: Begin at the last lines instead; None for the offsets.
        most_bytes: In one answer, of all ranks.
    """

    def __init__(
        self, service: Service, offsets: list[int], lines: int | None = None, *, most_bytes: int = MAX_LOG_BYTES
    ) -> None:
        self._service, self._offsets, self._lines, self._most_bytes = service, offsets, lines, most_bytes

    def text(self, attempt: AttemptRow, *, is_over: bool) -> str:
        """Return new output of an attempt, as `RankOutput.text`."""
        ranks = range(count_ranks(attempt))
        share = self._most_bytes // len(ranks)
        if self._lines is not None:
            self._offsets = [tail_begin(self._service, attempt, rank, self._lines, share) for rank in ranks]
            self._lines = None
        offsets = [self._offsets[rank] if rank < len(self._offsets) else 0 for rank in ranks]
        parts, most = [], min(MAX_FOLLOWED_BYTES, share)
        unreadable: BackendError | None = None
        for rank in ranks:
            try:
                data, end = read_log_if_any(self._service, attempt, rank, offsets[rank], most)
            except BackendError as error:  # of this rank: those of other nodes are followed all the same
                unreadable = error
                continue
            whole = _whole_lines(data, is_full=len(data) == most, is_over=is_over)
            offsets[rank] = end - (len(data) - len(whole))
            parts.append(with_rank_prefix(rank, whole))
        self._offsets, text = offsets, "".join(parts)
        if unreadable is not None and not text:
            raise unreadable
        return text

    def restart(self) -> None:
        """Begin again, with the next attempt."""
        self._offsets, self._lines = [], None

    def event_of(self, number: int, text: str) -> SentEvent:
        """Return an event."""
        offsets = ",".join(map(str, self._offsets))
        return SentEvent(json.dumps({"text": text}), f"{number}:{ALL_RANKS}:{offsets}", "log")


Source = RankOutput | AllOutput  # output that is followed through the attempts of a job


def last_lines_of_ranks(service: Service, attempt: AttemptRow, lines: int | None) -> str:
    """Return the last output of all ranks, rank by rank, as lines have no times.

    Args:
        service: The scheduler.
        attempt: Whose.
        lines: Of each rank; None for all that fit into an answer.

    Raises:
        BackendError: If it cannot be read.
    """
    ranks = count_ranks(attempt)
    most = MAX_LOG_BYTES // ranks
    parts = []
    for rank in range(ranks):
        offset = tail_begin(service, attempt, rank, EVERY_LINE if lines is None else lines, most)
        parts.append(with_rank_prefix(rank, read_log_if_any(service, attempt, rank, offset, most)[0]))
    return "".join(parts)


def tail_begin(service: Service, attempt: AttemptRow, rank: int, lines: int, most: int = MAX_LOG_BYTES) -> int:
    """Return the offset at which the last lines of a rank begin.

    Raises:
        BackendError: If its output cannot be read.
    """
    return tail_offset(lambda offset, size: read_log_if_any(service, attempt, rank, offset, size), lines, most)


def count_ranks(attempt: AttemptRow) -> int:
    """Return the number of ranks of an attempt."""
    return sum(len(share.gpus) for share in attempt.placement)


def with_rank_prefix(rank: int, data: bytes) -> str:
    """Return output with the number of its rank before each line, and an end of line after the last."""
    text = data.decode("utf-8", "replace").removesuffix("\n")
    return f"[{rank}] " + text.replace("\n", f"\n[{rank}] ") + "\n" if data else ""


def _whole_lines(data: bytes, *, is_full: bool, is_over: bool) -> bytes:
    """Return whole lines; parts of a line that is too long, and an unfinished line at the end of all."""
    cut = data.rfind(b"\n") + 1
    return data if (is_over and not is_full) or (is_full and not cut) else data[:cut]


def read_log_if_any(service: Service, attempt: AttemptRow, rank: int, offset: int, most: int) -> tuple[bytes, int]:
    """Return output of a rank and the offset after it; nothing of one that has no log.

    Raises:
        BackendError: If it cannot be read at the moment.
    """
    try:
        return service.backend.logs(attempt.name, rank, offset, most)
    except NoLogError:
        return b"", offset


MAX_TAIL_LINES = 100_000
ID = re.compile(r"(\d{1,7}):(\d{1,7}):(\d{1,18})", re.ASCII)
ID_OF_ALL = re.compile(r"(\d{1,7}):all:(\d{1,18}(?:,\d{1,18})*)", re.ASCII)
Rank = Annotated[int, Query(ge=0, le=1_000_000)]

router = APIRouter()


@router.get(
    "/v1/jobs/{job}/logs",
    response_class=Response,
    responses={
        200: {"description": "Its output.", "content": {"text/plain": {}, "text/event-stream": {}}},
        **openapi_problems(
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
    row: FoundJob,
    service: ServiceDep,
    open_stream: OpenStream,
    rank: Annotated[Rank | Literal["all"], Query(description="`all` writes `[RANK]` before each line.")] = 0,
    attempt: AttemptNumber = None,
    offset: Annotated[int, Query(ge=0, le=2**62, description="In bytes; not with `tail` or of all ranks.")] = 0,
    tail: Annotated[int | None, Query(ge=0, le=MAX_TAIL_LINES, description="Only the last lines of each rank.")] = None,
    follow: Annotated[bool, Query(description="Follow until the job has ended, as server-sent events.")] = False,  # noqa: FBT002
    last_event_id: Annotated[str | None, Header(max_length=8000)] = None,
) -> Response:
    """Return the output of a rank, or of all; for one rank, the header Next-Offset is where to continue."""
    if offset and (tail is not None or rank == ALL_RANKS):
        raise ProblemError("invalid", "offset goes with one rank and without tail")
    if follow:
        if rank == ALL_RANKS and row.gpus > MAX_FOLLOWED_RANKS:
            detail = f"at most {MAX_FOLLOWED_RANKS} ranks can be followed at once, and the job has {row.gpus}; name one"
            raise ProblemError("invalid", detail)
        number, source = _where_to_follow(service, rank, offset, tail, last_event_id)
        if number or attempt:
            find_attempt(service, row, number or attempt)
        return open_stream(_output_poll(service, row.id, number or attempt or 0, source, attempt))
    found = find_attempt(service, row, attempt)
    try:
        if rank == ALL_RANKS:
            return _text_response(last_lines_of_ranks(service, found, tail).encode(), None)
        return _rank_response(service, found, int(rank), offset, tail)
    except NoLogError as error:
        raise ProblemError("no-such-log", str(error)) from error
    except BackendError as error:
        raise ProblemError("unavailable", str(error)) from error


def whole_log_response(service: Service, attempt: AttemptRow, rank: int) -> StreamingResponse:
    """Return all output of a rank, until the last that there is has been sent.

    Raises:
        ProblemError: If there is none, or it cannot be read.
    """
    first = _read_page(service, attempt, rank, 0)

    def pages() -> Iterator[bytes]:
        data, after = first
        try:
            while data:
                yield data
                data, after = _read_page(service, attempt, rank, after)
        except ProblemError as error:  # too late for another status
            log.warning("the log of rank %d of %s is sent in part: %s", rank, attempt.name, error)

    return StreamingResponse(pages(), media_type=LOG_MEDIA_TYPE, headers=LOG_HEADERS)


def _read_page(service: Service, attempt: AttemptRow, rank: int, offset: int) -> tuple[bytes, int]:
    try:
        return service.backend.logs(attempt.name, rank, offset, MAX_LOG_BYTES)
    except NoLogError as error:
        raise ProblemError("no-such-log", str(error)) from error
    except BackendError as error:
        raise ProblemError("unavailable", str(error)) from error


def _rank_response(service: Service, attempt: AttemptRow, rank: int, offset: int, tail: int | None) -> Response:
    def read(begin: int, most: int) -> tuple[bytes, int]:
        return service.backend.logs(attempt.name, rank, begin, most)

    if tail is not None:
        offset = tail_begin(service, attempt, rank, tail)
    data, after = read(offset, MAX_LOG_BYTES)
    if not data and offset and not read(offset - 1, 1)[0]:
        raise ProblemError("beyond-the-end", f"the log of rank {rank} does not reach to offset {offset}")
    return _text_response(data, after)


def _text_response(data: bytes, after: int | None) -> Response:
    headers = LOG_HEADERS | ({} if after is None else {"Next-Offset": str(after)})
    return Response(data, media_type=LOG_MEDIA_TYPE, headers=headers)


def _where_to_follow(
    service: Service, rank: int | str, offset: int, tail: int | None, last_event_id: str | None
) -> tuple[int, Source]:
    """Return the first attempt to follow, 0 for the last one, and its output."""
    if last_event_id is None:
        return 0, AllOutput(service, [], tail) if rank == ALL_RANKS else RankOutput(service, int(rank), offset, tail)
    if rank == ALL_RANKS:
        if (found := ID_OF_ALL.fullmatch(last_event_id)) is not None:
            return int(found[1]), AllOutput(service, [int(each) for each in found[2].split(",")])
    elif (found := ID.fullmatch(last_event_id)) is not None and int(found[2]) == int(rank):
        return int(found[1]), RankOutput(service, int(rank), int(found[3]))
    raise ProblemError("bad-header", f"Last-Event-ID is {last_event_id!r}; send the id of an event of this stream")


def _output_poll(service: Service, job: str, number: int, source: Source, only: int | None) -> Poll:
    """Return what polls the output of a job, from an attempt on (0: the last one) or of one only."""

    def poll() -> list[SentEvent] | None:
        """Return new output as events, None after the last."""
        nonlocal number
        with service.store.read() as tx:
            row = get_job(tx, job)
            attempts = [each.number for each in attempts_of(tx, job)]
            attempt = get_attempt(tx, job, number or (attempts or [0])[-1])
        if row is None:
            return None
        if attempt is None:
            return None if row.state in FINAL else []
        number = attempt.number
        # The end is read before the output, so that no output before the end is missed.
        is_over = attempt.state in (AttemptState.RELEASED, AttemptState.CLOSED)
        try:
            text = source.text(attempt, is_over=is_over)
        except BackendError:
            return []
        if text or not is_over:
            return [source.event_of(attempt.number, text)] if text else []
        if only is not None or (row.state in FINAL and attempts[-1] == number):
            return None
        if attempts[-1] > number:
            number += 1
            source.restart()
        return []

    return poll
