"""Jobs: lists, one with all that is known of it, its attempts, events and checkpoints, and requests of its owner."""

import base64
import binascii
import hashlib
import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Path, Query, Response
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import Connection

from ...cluster.files.yaml_file import ExactTypes
from ...cluster.model.placement import Placement
from ..access.tokens import Caller, Role
from ..control.adoption import UnknownAttempt
from ..model.job import JobRow, is_job_id
from ..model.job_spec import Priority, StoredJob, UnreadableSpecError, is_external, is_ring_job, stored_job
from ..model.states import FINAL, Desired, JobState
from ..rules.attempts import failed_rank_end
from ..rules.jobs import RetryStep, retry_step
from ..service.queue_now import PENDING_STATES, Queue, Waiting, why_jobs_wait
from ..service.service import Service
from ..store.attempts import (
    MAX_CHECKPOINTS,
    AttemptRow,
    CheckpointRow,
    attempts_of,
    checkpoints_of,
    last_attempts,
    store_checkpoint,
)
from ..store.database import OlderAttemptError, StaleWriteError
from ..store.events import EventRow, events_after
from ..store.jobs import filtered_job_ids, get_job, get_jobs, list_jobs, retry_job, set_desired, set_priority
from ..store.rings import gpus_held_by_rings
from .auth import Operator, Reader, ServiceDep, Writer, check_leads
from .problems import ProblemError, openapi_problems
from .submitting import (
    API_WRITER,
    JobPage,
    check_gpus,
    check_priority,
    check_queued,
    job_page,
    job_page_fields,
    spec_without_secrets,
)

HIDDEN_JOB = "-"  # in place of the id of another user's job
JOB_PROBLEMS = openapi_problems("no-such-job")


class SharePage(BaseModel):
    """GPUs of one node."""

    node: str
    gpus: tuple[int, ...]


class CrashPage(BaseModel):
    """The rank that failed first."""

    rank: int
    node: str
    gpu: int
    code: int
    signal: int


class AttemptPage(BaseModel):
    """One attempt to run a job."""

    number: int
    state: str
    placement: tuple[SharePage, ...]  # by rank, as it began
    held: tuple[SharePage, ...]  # GPUs that it holds, or held last: a ring changes them
    contact: str
    opened_s: float
    started_s: float | None
    ended_s: float | None
    outcome: str
    cause: str
    cleanup_error: str
    crash: CrashPage | None  # none unless a rank failed


class UnknownAttemptPage(BaseModel):
    """An attempt that the store does not have."""

    attempt: str  # its name at the backend
    job: str
    placement: tuple[SharePage, ...]  # none if its GPUs are unknown: nothing starts then
    found_s: float

    @classmethod
    def of(cls, found: UnknownAttempt) -> "UnknownAttemptPage":
        """Return the page of one."""
        return cls(
            attempt=found.name, job=found.job, placement=share_pages(found.placement) or (), found_s=found.found_s
        )


class ListedJobPage(JobPage):
    """A job in a list, with where it runs or why it does not."""

    started_s: float | None  # when all ranks of the last attempt were seen
    released_s: float | None  # when that attempt gave its GPUs back
    placement: tuple[SharePage, ...]  # of that attempt; none before the first
    waiting: Waiting | None  # none if it does not wait


class JobsPage(BaseModel):
    """Some jobs, the last submitted first."""

    jobs: tuple[ListedJobPage, ...]
    cursor: str | None  # of the next page


class QueuePage(BaseModel):
    """Some jobs that have not ended, in their order."""

    jobs: tuple[ListedJobPage, ...]
    total: int  # of all that match


class JobDetailPage(JobPage):
    """A job with all that is known of it."""

    waiting: Waiting | None  # none if it does not wait
    attempts: tuple[AttemptPage, ...]
    estimate_s: float  # run time on the reference GPUs
    estimate_from: str  # `given`, `unknown`, or what the ended jobs behind it share with this one
    estimate_jobs: int  # number of these jobs
    spec: dict[str, Any]  # the job file, with the names of its environment only


class TaskPage(BaseModel):
    """A rank: where it runs, and how it ended once that is known."""

    attempt: int
    rank: int
    node: str
    gpu: int
    code: int | None
    signal: int | None
    ended_s: float | None


class CheckpointPage(BaseModel):
    """A checkpoint."""

    attempt: int
    step: int
    path: str
    digest: str
    at_s: float  # when it was registered


class EventPage(BaseModel):
    """An event."""

    seq: int
    kind: str
    job: str | None
    attempt: int | None
    version: int | None
    was: str
    now: str
    writer: str
    cause: str
    at_s: float


def share_pages(placement: Placement | None) -> tuple[SharePage, ...] | None:
    """Return a placement."""
    return None if placement is None else tuple(SharePage(node=share.node, gpus=share.gpus) for share in placement)


def attempt_page(row: AttemptRow, held: Mapping[int, Placement]) -> AttemptPage:
    """Return an attempt; `held` has the GPUs of attempts with rings, by number."""
    return AttemptPage(
        number=row.number, state=row.state, placement=share_pages(row.placement) or (), contact=row.contact,
        held=share_pages(held.get(row.number, row.placement)) or (),
        opened_s=row.opened_s, started_s=row.started_s, ended_s=row.ended_s, outcome=row.outcome, cause=row.cause,
        cleanup_error=row.cleanup_error, crash=_crash_page(row),
    )  # fmt: skip


def _crash_page(row: AttemptRow) -> CrashPage | None:
    end, places = failed_rank_end(row.ends, row.outcome), rank_places(row)
    if end is None or end.rank >= len(places):  # a job can forge how it ended
        return None
    node, gpu = places[end.rank]
    return CrashPage(rank=end.rank, node=node, gpu=gpu, code=end.code, signal=end.signal)


def rank_places(row: AttemptRow) -> list[tuple[str, int]]:
    """Return the node and the GPU of each rank of an attempt."""
    return [(share.node, gpu) for share in row.placement for gpu in share.gpus]


def job_detail_page(
    row: JobRow, attempts: list[AttemptRow], waiting: Waiting | None, held: Mapping[int, Placement]
) -> JobDetailPage:
    """Return a job with all details; `held` has the GPUs of its attempts with rings, by number."""
    return JobDetailPage(
        **job_page_fields(row), waiting=waiting, attempts=tuple(attempt_page(attempt, held) for attempt in attempts),
        estimate_s=row.estimate_s, estimate_from=row.estimate_from, estimate_jobs=row.estimate_jobs,
        spec=stored_spec_without_secrets(row.spec),
    )  # fmt: skip


def stored_spec_without_secrets(spec: object) -> dict[str, Any]:
    """Return a stored job file in the same way; one that cannot be read is empty."""
    try:
        return spec_without_secrets(stored_job(spec))
    except UnreadableSpecError:
        return spec_without_secrets(StoredJob.model_construct(command=()))


def checkpoint_page(row: CheckpointRow) -> CheckpointPage:
    """Return a checkpoint."""
    return CheckpointPage(attempt=row.number, step=row.step, path=row.path, digest=row.digest, at_s=row.at_s)


def event_page(row: EventRow) -> EventPage:
    """Return an event."""
    return EventPage(
        seq=row.seq, kind=row.kind, job=row.job_id, attempt=row.number, version=row.version, was=row.was, now=row.now,
        writer=row.writer, cause=row.cause, at_s=row.at_s,
    )  # fmt: skip


def visible_owner(caller: Caller) -> str | None:
    """Return the owner whose jobs a caller sees, None for all owners."""
    return None if caller.role is Role.OPERATOR else caller.owner


def find_job(service: Service, caller: Caller, job: str) -> JobRow:
    """Return a job that a caller may see.

    Raises:
        ProblemError: If there is none; the answer is the same for another user's job.
    """
    row = None
    if is_job_id(job):
        with service.store.read() as tx:
            row = get_job(tx, job)
    if row is None or visible_owner(caller) not in (None, row.owner):
        raise ProblemError("no-such-job", f"there is no job {job!r}")
    return row


def _job_of_path(job: Annotated[str, Path(max_length=100)], service: ServiceDep, caller: Reader) -> JobRow:
    return find_job(service, caller, job)


FoundJob = Annotated[JobRow, Depends(_job_of_path)]


def find_attempt(service: Service, row: JobRow, number: int | None) -> AttemptRow:
    """Return an attempt of a job, the last one if no number is given.

    Raises:
        ProblemError: If there is none.
    """
    with service.store.read() as tx:
        mine = [attempt for attempt in attempts_of(tx, row.id) if number in (None, attempt.number)]
    if not mine:
        which = "no attempt yet" if number is None else f"no attempt {number}"
        raise ProblemError("no-such-attempt", f"job {row.id} has {which}")
    return mine[-1]


HOLDING_STATES = (JobState.RUNNING, JobState.STARTING, JobState.STOPPING)
OPEN_STATES = sorted(set(JobState) - FINAL)
MAX_LISTED_JOBS = 1000  # jobs of one answer

router = APIRouter()
Name = Annotated[
    str | None,
    Query(
        pattern=r"^[a-z0-9*-]{1,80}$", description="Only jobs of this name; `*` stands for any text: 1 to 80 small "
        "letters, digits, - and *.",
    ),
]  # fmt: skip
User = Annotated[str | None, Query(max_length=64, description="Only jobs of this owner.")]
States = Annotated[list[JobState] | None, Query(description="Only jobs in one of these states.")]


@router.get("/v1/queue")
def queue(
    service: ServiceDep,
    caller: Reader,
    state: States = None,
    user: User = None,
    name: Name = None,
    limit: Annotated[int, Query(ge=1, le=MAX_LISTED_JOBS)] = 200,
    offset: Annotated[int, Query(ge=0, le=10**9, description="Number of jobs to skip.")] = 0,
) -> QueuePage:
    """List the jobs that have not ended: those that hold GPUs, the queue in its order, and those outside of it."""
    mine = visible_owner(caller)
    if mine is not None and user not in (None, mine):
        return QueuePage(jobs=(), total=0)
    states = [each for each in OPEN_STATES if state is None or each in state]
    with service.store.read() as tx:
        places = service.queue.read(tx, service.now_s())
        ids = ids_in_queue_order(tx, states, mine or user, name, places)
        rows = {row.id: row for row in get_jobs(tx, ids[offset : offset + limit])}
        found = [rows[job] for job in ids[offset : offset + limit] if job in rows]
        return QueuePage(jobs=listed_job_pages(tx, found, service, places), total=len(ids))


def ids_in_queue_order(
    tx: Connection, states: Sequence[JobState], owner: str | None, name: str | None, queue: Queue
) -> list[str]:
    """Return jobs in some states: those that hold GPUs, the queue in its order, and those outside of it."""
    holding = filtered_job_ids(tx, [each for each in states if each in HOLDING_STATES], owner, name)
    waiting = filtered_job_ids(tx, [each for each in states if each not in HOLDING_STATES], owner, name)
    last = len(queue.places) + 1
    return [*holding, *sorted(waiting, key=lambda job: queue.places.get(job, last))]


def listed_job_pages(
    tx: Connection, rows: Sequence[JobRow], service: Service, places: Queue | None = None
) -> tuple[ListedJobPage, ...]:
    """Return jobs as a list shows them; without `places` the queue is read if one of the jobs waits."""
    attempts = last_attempts(tx, [row.id for row in rows])
    if places is None and any(row.state in PENDING_STATES for row in rows):
        places = service.queue.read(tx, service.now_s())
    waiting = {} if places is None else why_jobs_wait(tx, rows, places)
    return tuple(_listed_job_page(row, attempts.get(row.id), waiting.get(row.id)) for row in rows)


def _listed_job_page(row: JobRow, last: AttemptRow | None, waiting: Waiting | None) -> ListedJobPage:
    return ListedJobPage(
        **job_page_fields(row), started_s=last and last.started_s, released_s=last and last.ended_s,
        placement=(share_pages(last.placement) or ()) if last else (), waiting=waiting,
    )  # fmt: skip


ETAG = re.compile(r'"(\d{1,18})(?:-[0-9a-f]{16})?"')


class JobPatch(ExactTypes):
    """Changes of a job; omitted fields stay."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    desired: Desired | None = None
    priority: Priority | None = None


@router.get("/v1/jobs", responses=openapi_problems("bad-cursor"))
def jobs(
    service: ServiceDep,
    caller: Reader,
    state: States = None,
    user: User = None,
    name: Name = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    cursor: Annotated[str | None, Query(max_length=40, description="From the previous page.")] = None,
) -> JobsPage:
    """List jobs, the last submitted first."""
    mine = visible_owner(caller)
    if mine is not None and user not in (None, mine):
        return JobsPage(jobs=(), cursor=None)
    before = None if cursor is None else _seq_of_cursor(cursor)
    with service.store.read() as tx:
        states = None if state is None else sorted(set(state))  # each is a query of its own
        rows = list_jobs(tx, limit=limit, states=states, owner=mine or user, name=name, before_seq=before)
        pages = listed_job_pages(tx, rows, service)
    if len(rows) < limit:
        return JobsPage(jobs=pages, cursor=None)
    more = base64.urlsafe_b64encode(f"jobs:{rows[-1].submit_seq}".encode()).decode().rstrip("=")
    return JobsPage(jobs=pages, cursor=more)


@router.get(
    "/v1/jobs/{job}",
    response_model=JobDetailPage,
    responses={**JOB_PROBLEMS, 304: {"description": "The job matches `If-None-Match`."}},
)
def job(
    row: FoundJob, service: ServiceDep, if_none_match: Annotated[str | None, Header(max_length=1000)] = None
) -> Response:
    """Show a job with its attempts, its place in the queue, and why it waits."""
    return _job_response(service, row, if_none_match)


@router.patch(
    "/v1/jobs/{job}",
    response_model=JobDetailPage,
    responses={
        **JOB_PROBLEMS,
        **openapi_problems("ended", "stale", "unconditional", "bad-header", "bad-request", "too-much", "too-high"),
    },
)
def change_job(
    patch: JobPatch,
    row: FoundJob,
    service: ServiceDep,
    caller: Writer,
    if_match: Annotated[str | None, Header(max_length=100)] = None,
) -> Response:
    """Let a job run, hold it (it is stopped if it runs), cancel it, or give it another priority."""
    if patch.priority is not None:
        check_priority(patch.priority, caller, service)
    version = _version_of(if_match)
    if version not in (None, row.version):
        raise ProblemError("stale", f"job {row.id} has version {row.version}, not {version}")
    if row.state in FINAL or (row.desired is Desired.CANCEL and patch.desired not in (None, Desired.CANCEL)):
        what = row.state if row.state in FINAL else "being cancelled"
        undone = "which only a retry undoes" if row.state is JobState.FAILED else "which nothing undoes"
        raise ProblemError("ended", f"job {row.id} is {what}, {undone}")
    try:
        return _job_response(service, _apply_patch(service, row, patch, version))
    except StaleWriteError as error:
        raise ProblemError("stale", str(error)) from error


@router.delete("/v1/jobs/{job}", status_code=202, responses=JOB_PROBLEMS)
def cancel_job(row: FoundJob, service: ServiceDep, _: Writer) -> JobPage:
    """Cancel a job; safe to repeat, and without effect once it has ended."""
    return job_page(_apply_patch(service, row, JobPatch(desired=Desired.CANCEL), None))


def _apply_patch(service: Service, row: JobRow, patch: JobPatch, version: int | None) -> JobRow:
    at_s = service.now_s()

    def write(tx: Connection) -> None:
        if patch.priority is not None:
            set_priority(tx, row.id, patch.priority, at_s=at_s, writer=API_WRITER, version=version)
        if patch.desired is not None:
            seen = version if patch.priority is None else None  # which was compared above
            set_desired(tx, row.id, patch.desired, at_s=at_s, writer=API_WRITER, version=seen)

    service.store.write(write)
    service.wake()
    return _read_again(service, row)


def _job_response(service: Service, row: JobRow, known: str | None = None) -> Response:
    """Return a job with its ETag: its version, and a digest, as its place in the queue moves without it."""
    with service.store.read() as tx:
        waits = row.state in PENDING_STATES
        waiting = why_jobs_wait(tx, [row], service.queue.read(tx, service.now_s())) if waits else {}
        attempts = attempts_of(tx, row.id)
        held = gpus_held_by_rings(tx, row.id, attempts) if is_ring_job(row.spec) else {}
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


def _seq_of_cursor(cursor: str) -> int:
    try:
        text = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode()
    except (binascii.Error, ValueError):
        text = ""
    found = re.fullmatch(r"jobs:([0-9]{1,18})", text)
    if found is None:
        raise ProblemError("bad-cursor", f"{cursor!r} is no cursor of a list")
    return int(found[1])


AttemptNumber = Annotated[int | None, Query(ge=1, le=1_000_000, description="Default: the last.")]


@router.get("/v1/jobs/{job}/attempts", responses=JOB_PROBLEMS)
def attempts(row: FoundJob, service: ServiceDep) -> list[AttemptPage]:
    """List all attempts of a job."""
    with service.store.read() as tx:
        found = attempts_of(tx, row.id)
        held = gpus_held_by_rings(tx, row.id, found) if is_ring_job(row.spec) else {}
        return [attempt_page(attempt, held) for attempt in found]


@router.get("/v1/jobs/{job}/tasks", responses=openapi_problems("no-such-job", "no-such-attempt"))
def tasks(row: FoundJob, service: ServiceDep, attempt: AttemptNumber = None) -> list[TaskPage]:
    """List the ranks of an attempt, and how they ended."""
    found = find_attempt(service, row, attempt)
    ends = {end.rank: end for end in found.ends}
    pages = []
    for rank, (node, gpu) in enumerate(rank_places(found)):
        end = ends.get(rank)
        code, signal, ended_s = (None, None, None) if end is None else (end.code, end.signal, end.ended_s)
        pages.append(
            TaskPage(attempt=found.number, rank=rank, node=node, gpu=gpu, code=code, signal=signal, ended_s=ended_s)
        )
    return pages


@router.get("/v1/jobs/{job}/events", responses=JOB_PROBLEMS)
def events(
    row: FoundJob,
    service: ServiceDep,
    after: Annotated[int, Query(ge=0, le=2**62, description="`seq` of the last known event.")] = 0,
    limit: Annotated[int, Query(ge=1, le=1000)] = 200,
) -> list[EventPage]:
    """List the events of a job, in their order."""
    with service.store.read() as tx:
        return [event_page(event) for event in events_after(tx, after, limit, row.id)]


class NewCheckpoint(ExactTypes):
    """A complete checkpoint."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    attempt: Annotated[int, Field(ge=1, le=1_000_000, description="Attempt that wrote it.")]
    step: Annotated[int, Field(ge=0, lt=10**15, description="The last step in it.")]
    path: Annotated[
        str,
        Field(
            pattern=r"^[^\x00-\x1f\x7f-\x9f]{1,1024}$",
            description="An absolute path or a URL, 1024 characters at most.",
        ),
    ]
    digest: Annotated[
        str, Field(pattern=r"^([0-9a-f]{8,128})?$", description="8 to 128 digits in hexadecimal, or nothing.")
    ] = ""


@router.get("/v1/jobs/{job}/checkpoints", responses=JOB_PROBLEMS)
def checkpoints(
    row: FoundJob, service: ServiceDep, limit: Annotated[int, Query(ge=1, le=MAX_CHECKPOINTS)] = MAX_CHECKPOINTS
) -> list[CheckpointPage]:
    """List the checkpoints of a job, the newest first; its next attempt begins with the first of them."""
    with service.store.read() as tx:
        return [checkpoint_page(checkpoint) for checkpoint in checkpoints_of(tx, row.id, limit)]


@router.post(
    "/v1/jobs/{job}/checkpoints",
    status_code=201,
    responses={**openapi_problems("no-such-job", "no-such-attempt", "older-attempt", "bad-request", "too-much")},
)
def register_checkpoint(new: NewCheckpoint, row: FoundJob, service: ServiceDep, _: Writer) -> CheckpointPage:
    """Register a checkpoint; those of an attempt that a later one has replaced are refused."""
    find_attempt(service, row, new.attempt)
    made = CheckpointRow(row.id, new.attempt, new.step, new.path, new.digest, service.now_s())
    try:
        service.store.write(partial(store_checkpoint, row=made, writer=API_WRITER))
    except OlderAttemptError as error:
        raise ProblemError("older-attempt", str(error)) from error
    return checkpoint_page(made)


@router.post(
    "/v1/jobs/{job}/retry",
    status_code=202,
    responses={**JOB_PROBLEMS, **openapi_problems("ended", "too-large", "too-many-queued")},
)
def retry_failed_job(row: FoundJob, service: ServiceDep, _: Writer) -> JobPage:
    """Put a failed job back into the queue, or release a held one, with its full number of retries.

    Safe to repeat: a job that is to run does not change.
    """
    _check_may_retry(row)
    check_gpus(row.gpus, service)
    at_s = service.now_s()

    def write(tx: Connection) -> None:
        if row.state is JobState.FAILED:
            check_queued(tx, row.owner, service.settings.limits)
        retry_job(tx, row.id, at_s=at_s, writer=API_WRITER)

    service.store.write(write)
    service.wake()
    return job_page(_read_again(service, row))


def _check_may_retry(row: JobRow) -> None:
    if retry_step(row) is RetryStep.REFUSED:
        what = row.state.value if row.state in FINAL - {JobState.FAILED} else "being cancelled or deleted"
        raise ProblemError("ended", f"job {row.id} is {what}; only a failed or held job can be retried")
    if row.state is JobState.FAILED and is_external(row.spec):
        raise ProblemError(
            "ended", f"job {row.id} was submitted by sbatch, and Slurm has ended it; submit it there again"
        )


def _read_again(service: Service, row: JobRow) -> JobRow:
    with service.store.read() as tx:
        return get_job(tx, row.id) or row


UnknownName = Annotated[str, Path(max_length=100, description="Name of the attempt, from the list.")]
NO_SUCH = openapi_problems("no-such-attempt", "not-ready")


@router.get("/v1/unknown-attempts", responses=openapi_problems("not-ready"))
def unknown_attempts(service: ServiceDep, _: Operator) -> list[UnknownAttemptPage]:
    """List attempts that may run and are not in the store: no job starts on their GPUs. Known to the leader only."""
    check_leads(service)
    return [UnknownAttemptPage.of(attempt) for attempt in service.control.unknown_attempts.unresolved]


@router.post("/v1/unknown-attempts/{attempt}/end", status_code=204, responses=NO_SUCH)
def end_unknown_attempt(attempt: UnknownName, service: ServiceDep, _: Operator) -> Response:
    """Stop an attempt by SIGTERM, and kill it after its grace; its GPUs are free once it is proven dead."""
    check_leads(service)
    return _answer_for_unknown(service, attempt, known=service.control.unknown_attempts.request_end(attempt))


@router.post("/v1/unknown-attempts/{attempt}/disregard", status_code=204, responses=NO_SUCH)
def disregard_unknown_attempt(attempt: UnknownName, service: ServiceDep, _: Operator) -> Response:
    """Let jobs start on the GPUs of an attempt that is not proven dead."""
    check_leads(service)
    return _answer_for_unknown(service, attempt, known=service.control.unknown_attempts.request_disregard(attempt))


def _answer_for_unknown(service: Service, attempt: str, *, known: bool) -> Response:
    if not known:
        raise ProblemError("no-such-attempt", f"there is no unknown attempt {attempt!r} here")
    service.wake()
    return Response(status_code=204)
