"""What the page of a job shows."""

import shlex
from collections.abc import Mapping
from typing import NamedTuple

from sqlalchemy import Connection

from ..api.views.waiting import WAITS, waiting_pages
from ..model.job import JobRow
from ..model.states import FINAL, AttemptState
from ..model.stored_spec import UnreadableSpecError, stored_job, stored_or_usual
from ..service.service import Service
from ..store.queries import checkpoint_events, last_decisions, last_events
from ..store.rows.attempts import AttemptRow, attempts_of
from ..store.rows.checkpoints import SAVED, CheckpointRow, checkpoints_of
from ..store.rows.decisions import DecisionRow
from ..store.rows.events import EventRow
from .folding import FoldedEvent, with_checkpoints
from .text import sentence

MOST_DECISIONS = 50
MOST_CHECKPOINTS = 10
MOST_EVENTS = 2000  # the last


class JobView(NamedTuple):
    """A job with all that happened to it."""

    job: JobRow
    command: str
    model: str
    attempts: list[AttemptRow]
    events: list[EventRow]  # all but those of checkpoints
    told: list[FoldedEvent]  # all, the last first
    decisions: list[DecisionRow]  # the last first
    checkpoints: list[CheckpointRow]  # the newest first
    waits_for: str  # why it waits, "" if it does not

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        return self.job.state in FINAL

    @property
    def is_settled(self) -> bool:
        """Whether nothing will change any more."""
        return self.is_over and all(row.state is AttemptState.CLOSED for row in self.attempts)


def job_view(tx: Connection, row: JobRow, service: Service) -> JobView:
    """Return what the page of a job shows."""
    events = last_events(tx, MOST_EVENTS, job_id=row.id, without=SAVED)[::-1]
    return JobView(
        row,
        _command(row.spec),
        stored_or_usual(row.spec).model,
        attempts_of(tx, row.id),
        events,
        with_checkpoints(events, checkpoint_events(tx, row.id)),
        last_decisions(tx, MOST_DECISIONS, row.id),
        checkpoints_of(tx, row.id, MOST_CHECKPOINTS),
        _waits_for(tx, row, service),
    )


def _command(spec: Mapping[str, object]) -> str:
    try:
        return shlex.join(stored_job(spec).command)
    except UnreadableSpecError:
        return ""


def _waits_for(tx: Connection, row: JobRow, service: Service) -> str:
    """Say why a job waits, and where, in the words of the API."""
    if row.state not in WAITS:
        return ""
    waiting = waiting_pages(tx, [row], service.queue.read(tx, service.now_s()))[row.id]
    place = "" if waiting.position is None else f"Number {waiting.position} in the queue: "
    return sentence(f"{place}{waiting.reason}")
