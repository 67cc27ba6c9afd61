"""Jobs: lists, one with all that is known of it, and what its owner wants of it."""

import base64
import binascii
import hashlib
import re
from typing import Annotated

from fastapi import APIRouter, Header, Query, Response
from pydantic import ConfigDict
from sqlalchemy import Connection

from ....cluster.files.exact_types import ExactTypes
from ...model.job import JobRow
from ...model.job_spec import Priority
from ...model.states import FINAL, Desired, JobState
from ...model.stored_spec import is_switching
from ...service.service import Service
from ...store.database.errors import StaleWriteError
from ...store.monitoring.ring_ends import held_by_rings
from ...store.rows.attempts import attempts_of
from ...store.rows.jobs import get_job, list_jobs, set_desired, set_priority
from ..http.auth import Asking, Changing, Serving
from ..http.problems import ProblemError, problems
from ..views.listing import Name, States, User, listed
from ..views.lookup import NO_JOB, Found, seen_owner
from ..views.models import JobDetailPage, JobPage, JobsPage, job_detail_page, job_page
from ..views.waiting import WAITS, waiting_pages
from .submitting import WRITER, check_priority

ETAG = re.compile(r'"(\d{1,18})(?:-[0-9a-f]{16})?"')

router = APIRouter()


class Change(ExactTypes):
    """What is wanted of a job; what is left out stays."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    desired: Desired | None = None
    priority: Priority | None = None


@router.get("/v1/jobs", responses=problems("bad-cursor"))
def jobs(
    service: Serving,
    caller: Asking,
    state: States = None,
    user: User = None,
    name: Name = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    cursor: Annotated[str | None, Query(max_length=40, description="As the page before gave it.")] = None,
) -> JobsPage:
    """List jobs, the last submitted first."""
    mine = seen_owner(caller)
    if mine is not None and user not in (None, mine):
        return JobsPage(jobs=(), cursor=None)
    before = None if cursor is None else _seq_of(cursor)
    with service.store.read() as tx:
        states = None if state is None else sorted(set(state))  # each is a query of its own
        rows = list_jobs(tx, limit=limit, states=states, owner=mine or user, name=name, before_seq=before)
        pages = listed(tx, rows, service)
    more = _cursor_of(rows[-1].submit_seq) if len(rows) == limit else None
    return JobsPage(jobs=pages, cursor=more)


@router.get(
    "/v1/jobs/{job}",
    response_model=JobDetailPage,
    responses={**NO_JOB, 304: {"description": "It is as `If-None-Match` says."}},
)
def job(
    row: Found,
    service: Serving,
    if_none_match: Annotated[str | None, Header(max_length=1000)] = None,
) -> Response:
    """Show a job with its attempts, its place in the queue, and why it waits."""
    return _shown(service, row, if_none_match)


@router.patch(
    "/v1/jobs/{job}",
    response_model=JobDetailPage,
    responses={
        **NO_JOB,
        **problems("ended", "stale", "unconditional", "bad-header", "bad-request", "too-much", "too-high"),
    },
)
def change(
    wanted: Change,
    row: Found,
    service: Serving,
    caller: Changing,
    if_match: Annotated[str | None, Header(max_length=100)] = None,
) -> Response:
    """Let a job run, hold it (it is stopped if it runs), cancel it, or give it another priority."""
    if wanted.priority is not None:
        check_priority(wanted.priority, caller, service)
    version = _version_of(if_match)
    if version not in (None, row.version):
        raise ProblemError("stale", f"job {row.id} has version {row.version}, not {version}")
    if row.state in FINAL or (row.desired is Desired.CANCEL and wanted.desired not in (None, Desired.CANCEL)):
        what = row.state if row.state in FINAL else "being cancelled"
        undone = "which only a retry undoes" if row.state is JobState.FAILED else "which nothing undoes"
        raise ProblemError("ended", f"job {row.id} is {what}, {undone}")
    try:
        return _shown(service, _want(service, row, wanted, version))
    except StaleWriteError as error:
        raise ProblemError("stale", str(error)) from error


@router.delete("/v1/jobs/{job}", status_code=202, responses=NO_JOB)
def cancel(row: Found, service: Serving, caller: Changing) -> JobPage:
    """Cancel a job; may be asked again, and changes nothing once it has ended."""
    return job_page(_want(service, row, Change(desired=Desired.CANCEL), None))


def _want(service: Service, row: JobRow, wanted: Change, version: int | None) -> JobRow:
    at_s = service.now_s()

    def write(tx: Connection) -> None:
        if wanted.priority is not None:
            set_priority(tx, row.id, wanted.priority, at_s=at_s, writer=WRITER, version=version)
        if wanted.desired is not None:
            seen = version if wanted.priority is None else None  # that was looked at just now
            set_desired(tx, row.id, wanted.desired, at_s=at_s, writer=WRITER, version=seen)

    service.store.write(write)
    service.wake()
    with service.store.read() as tx:
        return get_job(tx, row.id) or row


def _shown(service: Service, row: JobRow, known: str | None = None) -> Response:
    """Return a job with its ETag: its version, and a digest, as its place in the queue moves without it."""
    with service.store.read() as tx:
        waits = row.state in WAITS
        waiting = waiting_pages(tx, [row], service.queue.read(tx, service.now_s())) if waits else {}
        attempts = attempts_of(tx, row.id)
        held = held_by_rings(tx, row.id, attempts) if is_switching(row.spec) else {}
        page = job_detail_page(row, attempts, waiting.get(row.id), held)
    body = page.model_dump_json().encode()
    etag = f'"{row.version}-{hashlib.sha256(body).hexdigest()[:16]}"'
    if known is not None and (known.strip() == "*" or etag in known.replace("W/", "").replace(" ", "").split(",")):
        return Response(status_code=304, headers={"ETag": etag})
    return Response(body, media_type="application/json", headers={"ETag": etag})


def _version_of(if_match: str | None) -> int | None:
    """Return the version that a client has seen, None for any."""
    if if_match is None:
        raise ProblemError(
            "unconditional", "send If-Match with the ETag of the job, or with * to change it in any case"
        )
    if if_match.strip() == "*":
        return None
    found = ETAG.fullmatch(if_match.strip())
    if found is None:
        raise ProblemError("bad-header", f"If-Match is {if_match!r}; send one ETag of the job, or *")
    return int(found[1])


def _cursor_of(seq: int) -> str:
    return base64.urlsafe_b64encode(f"jobs:{seq}".encode()).decode().rstrip("=")


def _seq_of(cursor: str) -> int:
    try:
        text = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode()
    except (binascii.Error, ValueError):
        text = ""
    found = re.fullmatch(r"jobs:([0-9]{1,18})", text)
    if found is None:
        raise ProblemError("bad-cursor", f"{cursor!r} is no cursor that a list has given")
    return int(found[1])
