"""What has happened to a job: attempts, ranks, events, decisions."""

from typing import Annotated

from fastapi import APIRouter, Query

from ...model.stored_spec import is_switching
from ...store.monitoring.ring_ends import held_by_rings
from ...store.queue_position import owners_of
from ...store.rows.attempts import attempts_of
from ...store.rows.decisions import decisions_of
from ...store.rows.events import events_after
from ..http.auth import Asking, Serving
from ..http.problems import problems
from ..views.decisions import DecisionPage, decision_page, users_decision_page
from ..views.lookup import NO_JOB, Found, find_attempt, seen_owner
from ..views.models import (
    AttemptPage,
    EventPage,
    TaskPage,
    attempt_page,
    event_page,
    task_pages,
)

router = APIRouter()
AttemptNumber = Annotated[int | None, Query(ge=1, le=1_000_000, description="The last one if left out.")]


@router.get("/v1/jobs/{job}/attempts", responses=NO_JOB)
def attempts(row: Found, service: Serving) -> list[AttemptPage]:
    """List all tries to run a job."""
    with service.store.read() as tx:
        found = attempts_of(tx, row.id)
        held = held_by_rings(tx, row.id, found) if is_switching(row.spec) else {}
        return [attempt_page(it, held) for it in found]


@router.get("/v1/jobs/{job}/tasks", responses=problems("no-such-job", "no-such-attempt"))
def tasks(row: Found, service: Serving, attempt: AttemptNumber = None) -> list[TaskPage]:
    """List the ranks of an attempt, and how they ended."""
    return task_pages(find_attempt(service, row, attempt))


@router.get("/v1/jobs/{job}/events", responses=NO_JOB)
def events(
    row: Found,
    service: Serving,
    after: Annotated[int, Query(ge=0, le=2**62, description="`seq` of the last one that is known.")] = 0,
    limit: Annotated[int, Query(ge=1, le=1000)] = 200,
) -> list[EventPage]:
    """List what happened to a job, in its order."""
    with service.store.read() as tx:
        return [event_page(it) for it in events_after(tx, after, limit, row.id)]


@router.get("/v1/jobs/{job}/decisions", responses=NO_JOB)
def decisions(row: Found, service: Serving, caller: Asking) -> list[DecisionPage]:
    """Show which GPUs were chosen for a job, by whom, and what the heuristic would have chosen."""
    with service.store.read() as tx:
        rows = decisions_of(tx, row.id)
        pages = [decision_page(it) for it in rows]
        mine = seen_owner(caller)
        if mine is None:
            return pages
        named = {it.fallback_job for it in pages} | {it.said.job for it in pages if it.said is not None}
        owners = owners_of(tx, sorted(named))
    own = {job for job, owner in owners.items() if owner == mine}
    return [users_decision_page(it, own) for it in rows]
