"""Events as pages show them: the checkpoints of an attempt, which may be thousands, are one line."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from ..store.rows.checkpoints import SAVED
from ..store.rows.events import EventRow

ROWS = 100  # lines of a page at least, where so much has happened
MOST_READS = 20  # of so many events each


class FoldedEvent(NamedTuple):
    """A line."""

    event: EventRow  # the last of those that it stands for
    events: int

    @property
    def cause(self) -> str:
        """What is said of it."""
        return self.event.cause if self.events == 1 else f"{self.events} checkpoints; the last: {self.event.cause}"


def folded(events: Iterable[EventRow]) -> list[FoldedEvent]:
    """Return a line for each event, and one for checkpoints of an attempt between which nothing else became of the job.

    Args:
        events: The last first.
    """
    lines: list[FoldedEvent] = []
    open_at: dict[str | None, int] = {}  # where each job's line stands to which another checkpoint belongs
    for event in events:
        at = open_at.get(event.job_id)
        if event.kind == SAVED and at is not None and lines[at].event.number == event.number:
            lines[at] = lines[at]._replace(events=lines[at].events + 1)
            continue
        open_at.pop(event.job_id, None)
        if event.kind == SAVED:
            open_at[event.job_id] = len(lines)
        lines.append(FoldedEvent(event, 1))
    return lines


def page_of(
    read: Callable[[int | None], list[EventRow]], before_seq: int | None
) -> tuple[list[FoldedEvent], int | None]:
    """Return a page of lines, and the number of the event before which the next one begins, None if there is none.

    Args:
        read: Returns `ROWS` events before the one with a number, the last first.
        before_seq: Number of the event before which the page begins, None for the newest.
    """
    events: list[EventRow] = []
    for _ in range(MOST_READS):
        more = read(before_seq)
        events += more
        if len(more) < ROWS:
            return folded(events), None
        before_seq = more[-1].seq
        if len(lines := folded(events)) >= ROWS:
            return lines, before_seq
    return folded(events), before_seq


def with_checkpoints(events: Sequence[EventRow], saved: Sequence[tuple[EventRow, int]]) -> list[FoldedEvent]:
    """Return the lines of a job, the last first.

    Args:
        events: All but those of checkpoints.
        saved: The last checkpoint of each attempt, and how many it told of.
    """
    lines = [FoldedEvent(event, 1) for event in events] + [FoldedEvent(*each) for each in saved]
    return sorted(lines, key=lambda line: line.event.seq, reverse=True)
