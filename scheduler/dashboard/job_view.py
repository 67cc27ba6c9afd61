"""What the page of a job shows."""

import shlex
from collections.abc import Mapping
from pathlib import PurePath
from typing import NamedTuple

from sqlalchemy import Connection

from ..states import FINAL, AttemptState, JobState
from ..store.attempts import AttemptRow, attempts_of
from ..store.checkpoints import CheckpointRow, checkpoints_of
from ..store.decisions import DecisionRow
from ..store.events import EventRow
from ..store.jobs import JobRow
from ..store.overview import jobs_in, last_decisions, last_events
from ..stored_spec import UnreadableSpecError, stored_job
from .cluster_view import MOST_ROWS

MOST_DECISIONS = 50
MOST_CHECKPOINTS = 10


class JobView(NamedTuple):
    """A job with all that happened to it."""

    job: JobRow
    command: str
    attempts: list[AttemptRow]
    events: list[EventRow]
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


def job_view(tx: Connection, row: JobRow, most_events: int) -> JobView:
    """Return what the page of a job shows."""
    decisions = last_decisions(tx, MOST_DECISIONS, row.id)
    return JobView(
        row, _command(row.spec), attempts_of(tx, row.id), last_events(tx, most_events, job_id=row.id)[::-1],
        decisions,
        checkpoints_of(tx, row.id, MOST_CHECKPOINTS),
        _waits_for(tx, row, decisions),
    )  # fmt: skip


def _command(spec: Mapping[str, object]) -> str:
    try:
        return shlex.join(stored_job(spec).command)
    except UnreadableSpecError:
        return ""


def _waits_for(tx: Connection, row: JobRow, decisions: list[DecisionRow]) -> str:
    """Say why a job waits, as far as the store tells."""
    if row.state is JobState.HELD:
        return "It is held until somebody wants it to run again."
    if row.state is not JobState.QUEUED:
        return ""
    queue = [other.id for other in jobs_in(tx, (JobState.QUEUED,), MOST_ROWS)]
    if row.id not in queue:
        return f"At least {MOST_ROWS} jobs stand before it in the queue."
    before = queue.index(row.id)
    if before:
        return f"{before} job{' stands' if before == 1 else 's stand'} before it in the queue."
    if decisions and decisions[0].placement is None:
        obeyed = PurePath(str(decisions[0].explanation.get("obeyed", ""))).name
        return f"It is the first in the queue; {obeyed} lets it wait."
    return f"It is the first in the queue and waits for {row.gpus} GPU{'' if row.gpus == 1 else 's'}."
