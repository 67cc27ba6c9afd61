"""The output of ranks: what the cluster still has of it is copied into files of the scheduler, by rank and offset.

The log of a container has no offsets to ask for; its lines bear them, see `launcher`. So a copy continues where it
ended, and has holes where the node gave up the oldest output before it was asked for.
"""

import os
import re
from datetime import datetime
from typing import NamedTuple

from ..local.supervisor.logs import drop_beginning, log_name

_LINE = re.compile(rb"(?:(?P<time>\S+) )?(?P<rank>\d{1,6})@(?P<offset>\d{1,15})(?P<mark>[ +])", re.DOTALL)
_KEEP_BYTES = 64 << 20  # of each rank's output at least, as the local backend does; twice as much at most
_BACK_S = 2.0  # asked for again: the server rounds to seconds, and its clock is not ours


class Piece(NamedTuple):
    """A piece of a rank's output."""

    rank: int
    offset: int
    content: bytes


def pieces_of(content: bytes, ranks: range) -> tuple[list[Piece], float]:
    """Return the pieces in a container's log with times, and the Unix time of the last of them.

    Args:
        content: The log; half a line at its end is left for later.
        ranks: Those of the container, as a job could write lines of others.
    """
    pieces, last_s = [], 0.0
    for line in content.split(b"\n")[:-1]:
        found = _LINE.match(line)
        if found is None or int(found["rank"]) not in ranks:
            continue  # The runtime's words, or a line without its beginning.
        end = b"\n" if found["mark"] == b" " else b""
        pieces.append(Piece(int(found["rank"]), int(found["offset"]), line[found.end() :] + end))
        last_s = _seconds(found["time"]) or last_s
    return pieces, last_s


def since_s(last_s: float, now_s: float) -> int | None:
    """Return how many seconds of a log to ask for; None for all of it."""
    return None if last_s == 0.0 else max(int(now_s - last_s + _BACK_S), 1)


def store_pieces(folder: int, pieces: list[Piece]) -> None:
    """Write pieces into the files of their ranks; what is there already is left as it is.

    Args:
        folder: Descriptor of the attempt's folder.
        pieces: In the order of their offsets, for each rank.
    """
    for rank in sorted({piece.rank for piece in pieces}):
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        log = os.open(log_name(rank), flags, 0o600, dir_fd=folder)
        try:
            end = os.fstat(log).st_size
            for piece in pieces:
                known = max(end - piece.offset, 0)
                if piece.rank == rank and known < len(piece.content):
                    begin = piece.offset + known
                    end = begin + os.pwrite(log, piece.content[known:], begin)
            drop_beginning(log, _KEEP_BYTES)
        finally:
            os.close(log)


def _seconds(text: bytes | None) -> float:
    """Return a time of the log as Unix time, 0 if it is none. Nanoseconds are cut off."""
    try:
        return datetime.fromisoformat(re.sub(r"(\.\d{6})\d*", r"\1", (text or b"").decode())).timestamp()
    except ValueError:
        return 0.0
