"""Lists of jobs, each with where it runs or why it does not."""

from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Query
from sqlalchemy import Connection

from ...model.job import JobRow
from ...model.states import FINAL, JobState
from ...service.queue_now import Queue
from ...service.service import Service
from ...store.queue_position import listed_jobs
from ...store.rows.attempts import last_attempts
from ...store.rows.jobs import get_jobs
from ..http.auth import Asking, Serving
from .lookup import seen_owner
from .models import ListedJobPage, QueuePage, listed_job_page
from .waiting import WAITS, waiting_pages

HOLDS = (JobState.RUNNING, JobState.STARTING, JobState.STOPPING)
OPEN = sorted(set(JobState) - FINAL)
MOST = 1000  # jobs of one answer

router = APIRouter()
Name = Annotated[
    str | None,
    Query(
        pattern=r"^[a-z0-9*-]{1,80}$", description="Only those of one name; `*` stands for any text: 1 to 80 small "
        "letters, digits, - and *.",
    ),
]  # fmt: skip
User = Annotated[str | None, Query(max_length=64, description="Only those of one owner.")]
States = Annotated[list[JobState] | None, Query(description="Only those in one of these states.")]


@router.get("/v1/queue")
def queue(
    service: Serving,
    caller: Asking,
    state: States = None,
    user: User = None,
    name: Name = None,
    limit: Annotated[int, Query(ge=1, le=MOST)] = 200,
    offset: Annotated[int, Query(ge=0, le=10**9, description="Jobs to pass over.")] = 0,
) -> QueuePage:
    """List the jobs that have not ended: those that hold GPUs, the queue in its order, and those outside of it."""
    mine = seen_owner(caller)
    if mine is not None and user not in (None, mine):
        return QueuePage(jobs=(), total=0)
    states = [it for it in OPEN if state is None or it in state]
    with service.store.read() as tx:
        stands = service.queue.read(tx, service.now_s())
        ids = _in_order(tx, states, mine or user, name, stands)
        rows = {row.id: row for row in get_jobs(tx, ids[offset : offset + limit])}
        found = [rows[job] for job in ids[offset : offset + limit] if job in rows]
        return QueuePage(jobs=listed(tx, found, service, stands), total=len(ids))


def _in_order(
    tx: Connection, states: Sequence[JobState], owner: str | None, name: str | None, stands: Queue
) -> list[str]:
    holding = listed_jobs(tx, [it for it in states if it in HOLDS], owner, name)
    waiting = listed_jobs(tx, [it for it in states if it not in HOLDS], owner, name)
    last = len(stands.places) + 1
    return [*holding, *sorted(waiting, key=lambda job: stands.places.get(job, last))]


def listed(
    tx: Connection, rows: Sequence[JobRow], service: Service, stands: Queue | None = None
) -> tuple[ListedJobPage, ...]:
    """Return what a list says of jobs.

    Args:
        tx: Transaction.
        rows: The jobs.
        service: The scheduler.
        stands: The queue; read if left out and one of the jobs waits.
    """
    attempts = last_attempts(tx, [row.id for row in rows])
    if stands is None and any(row.state in WAITS for row in rows):
        stands = service.queue.read(tx, service.now_s())
    waiting = {} if stands is None else waiting_pages(tx, rows, stands)
    return tuple(listed_job_page(row, attempts.get(row.id), waiting.get(row.id)) for row in rows)
