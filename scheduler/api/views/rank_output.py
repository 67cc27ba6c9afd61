"""Output of attempts as text: of one rank from any offset on, or of all ranks, each line behind its rank's number."""

import codecs
import json
from typing import Protocol

from ...backends.protocol import NoLogError
from ...control.attempt_driver import attempt_name
from ...log_tail import tail_offset
from ...service.service import Service
from ...store.rows.attempts import AttemptRow
from ..http.streaming import StreamEvent

ALL = "all"
MOST_BYTES = 1 << 20  # in one answer
MOST_FOLLOWED = 1 << 16  # of a rank in one event; all ranks share the bytes of one answer
MOST_RANKS = 256  # that are followed at once: their offsets have to fit into the id of an event
EVERY_LINE = 1 << 62


class Source(Protocol):
    """Output that is followed through the attempts of a job."""

    def text(self, attempt: AttemptRow, *, is_over: bool) -> str:
        """Return what is new of an attempt.

        Args:
            attempt: The same one as the last time, or the next one after a `restart`.
            is_over: Nothing will follow, so that nothing is held back.

        Raises:
            BackendError: If that cannot be told at the moment.
        """
        ...

    def restart(self) -> None:
        """Begin anew, with the next attempt."""
        ...

    def event_of(self, number: int, text: str) -> StreamEvent:
        """Return the event that tells of a text of an attempt; its id holds where to go on."""
        ...


class OneRank:
    """The output of one rank.

    Args:
        service: The scheduler.
        rank: The rank.
        offset: Where to begin in the first attempt.
        lines: Begin with so many lines before the end of it instead; None to go by the offset.
    """

    def __init__(self, service: Service, rank: int, offset: int, lines: int | None = None) -> None:
        self._service, self._rank, self._offset, self._lines = service, rank, offset, lines
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def text(self, attempt: AttemptRow, *, is_over: bool) -> str:
        """Return what is new of an attempt."""
        if self._lines is not None:
            self._offset = begin_of(self._service, attempt, self._rank, self._lines)
            self._lines = None
        data, self._offset = read_or_nothing(self._service, attempt, self._rank, self._offset, MOST_FOLLOWED)
        return self._decoder.decode(data, final=is_over and not data)

    def restart(self) -> None:
        """Begin anew."""
        self._offset, self._lines = 0, None
        self._decoder.reset()

    def event_of(self, number: int, text: str) -> StreamEvent:
        """Return an event whose offset is that of the first byte that is not in it."""
        offset = self._offset - len(self._decoder.getstate()[0])
        return StreamEvent(json.dumps({"text": text}), f"{number}:{self._rank}:{offset}", "log")


class AllRanks:
    """The output of all ranks, in whole lines as they come.

    Args:
        service: The scheduler.
        offsets: By rank, where to begin in the first attempt; none for its beginning.
        lines: Begin with so many lines before the end of it instead; None to go by the offsets.
        most_bytes: In one answer, of all ranks.
    """

    def __init__(
        self, service: Service, offsets: list[int], lines: int | None = None, *, most_bytes: int = MOST_BYTES
    ) -> None:
        self._service, self._offsets, self._lines, self._most_bytes = service, offsets, lines, most_bytes

    def text(self, attempt: AttemptRow, *, is_over: bool) -> str:
        """Return what is new of an attempt."""
        ranks = range(ranks_of(attempt))
        share = self._most_bytes // len(ranks)
        if self._lines is not None:
            self._offsets = [begin_of(self._service, attempt, rank, self._lines, share) for rank in ranks]
            self._lines = None
        self._offsets = [self._offsets[rank] if rank < len(self._offsets) else 0 for rank in ranks]
        event_of, most = [], min(MOST_FOLLOWED, share)
        for rank in ranks:
            data, end = read_or_nothing(self._service, attempt, rank, self._offsets[rank], most)
            whole = _whole_lines(data, is_full=len(data) == most, is_over=is_over)
            self._offsets[rank] = end - (len(data) - len(whole))
            event_of.append(prefixed(rank, whole))
        return "".join(event_of)

    def restart(self) -> None:
        """Begin anew."""
        self._offsets, self._lines = [], None

    def event_of(self, number: int, text: str) -> StreamEvent:
        """Return an event."""
        offsets = ",".join(map(str, self._offsets))
        return StreamEvent(json.dumps({"text": text}), f"{number}:{ALL}:{offsets}", "log")


def last_of_all(service: Service, attempt: AttemptRow, lines: int | None) -> str:
    """Return the last output of all ranks, one rank after the other, as what they wrote bears no times.

    Args:
        service: The scheduler.
        attempt: Whose.
        lines: Of each rank; as many as an answer holds if left out.

    Raises:
        BackendError: If it cannot be read.
    """
    ranks = ranks_of(attempt)
    most = MOST_BYTES // ranks
    event_of = []
    for rank in range(ranks):
        offset = begin_of(service, attempt, rank, EVERY_LINE if lines is None else lines, most)
        event_of.append(prefixed(rank, read_or_nothing(service, attempt, rank, offset, most)[0]))
    return "".join(event_of)


def begin_of(service: Service, attempt: AttemptRow, rank: int, lines: int, most: int = MOST_BYTES) -> int:
    """Return the offset at which the last lines of a rank begin.

    Raises:
        BackendError: If its output cannot be read.
    """
    return tail_offset(lambda offset, size: read_or_nothing(service, attempt, rank, offset, size), lines, most)


def ranks_of(attempt: AttemptRow) -> int:
    """Return how many ranks an attempt has."""
    return sum(len(share.gpus) for share in attempt.placement)


def prefixed(rank: int, data: bytes) -> str:
    """Return output with the number of its rank before each line, and an end of line after the last."""
    text = data.decode("utf-8", "replace").removesuffix("\n")
    return f"[{rank}] " + text.replace("\n", f"\n[{rank}] ") + "\n" if data else ""


def _whole_lines(data: bytes, *, is_full: bool, is_over: bool) -> bytes:
    """Return what ends with a line; a line that is too long is told in parts, and what has no end at the end of all."""
    cut = data.rfind(b"\n") + 1
    return data if (is_over and not is_full) or (is_full and not cut) else data[:cut]


def read_or_nothing(service: Service, attempt: AttemptRow, rank: int, offset: int, most: int) -> tuple[bytes, int]:
    """Return output of a rank and the offset after it; nothing of one that has no log.

    Raises:
        BackendError: If it cannot be read at the moment.
    """
    try:
        return service.backend.logs(attempt_name(attempt), rank, offset, most)
    except NoLogError:
        return b"", offset
