"""What ranks tell of their steps and checkpoints, in files that grow and that they may write as they like."""

import os
from collections.abc import Sequence

from ...files.durable import open_file
from ..protocol import StepLines
from .supervisor.rank import saved_name, steps_name

MOST_BYTES = 8 << 10  # that are read of a file at once: what is older than that is passed over
FIRST_BYTES = 2 << 10  # the first time, as a scheduler that takes many jobs up has many files to read


def read_news(folder: int, name: str, offset: int) -> tuple[bytes, int]:
    """Return the whole lines of a file behind an offset, of many only the last, and the offset behind them.

    Args:
        folder: Descriptor of the folder that it is in.
        name: Of the file; without it there is nothing.
        offset: Behind what is known; of a file that has become shorter all is new.

    Raises:
        OSError: If it cannot be read, or is not a file.
    """
    try:
        file = open_file(folder, name)
    except FileNotFoundError:
        return b"", offset
    try:
        size = os.fstat(file).st_size
        if size == offset:
            return b"", offset
        start = offset if offset <= size else 0
        begin = max(start, size - (MOST_BYTES if offset else FIRST_BYTES))
        content = os.pread(file, size - begin, begin)
    finally:
        os.close(file)
    # Whoever passes something over begins in the middle of a line.
    first = content.find(b"\n") + 1 if begin > start else 0
    end = content.rfind(b"\n") + 1
    return content[first:end], begin + end


def read_told(folder: int, first: int, before: Sequence[StepLines]) -> list[StepLines]:
    """Return what ranks of one folder have told since the last time.

    Args:
        folder: Descriptor of the folder.
        first: The first of the ranks; the others follow it.
        before: What was returned then, by rank.

    Raises:
        OSError: If that cannot be read.
    """
    # One look at the folder in place of two at each rank, most of which tell nothing.
    there = frozenset(os.listdir(folder))
    return [_read_rank(folder, there, rank, last) for rank, last in enumerate(before, first)]


def _read_rank(folder: int, there: frozenset[str], rank: int, last: StepLines) -> StepLines:
    steps, steps_end, saved, saved_end = b"", last.steps_end, b"", last.saved_end
    if (name := steps_name(rank)) in there:
        steps, steps_end = read_news(folder, name, steps_end)
    if (name := saved_name(rank)) in there:
        saved, saved_end = read_news(folder, name, saved_end)
    return StepLines(steps, saved, steps_end, saved_end)
