"""What the API says, as models. Values of a job's environment are in none of them: they may be secrets."""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict

from ...control.unknown_attempts import UnknownAttempt
from ...model.job import JobRow
from ...model.job_spec import JobFile, StoredJob
from ...model.placement import Placement
from ...model.stored_spec import UnreadableSpecError, stored_job
from ...rules.retry_policy import rank_to_look_at
from ...store.rows.attempts import AttemptRow
from ...store.rows.checkpoints import CheckpointRow
from ...store.rows.events import EventRow
from ...store.rows.user_tokens import TokenRow

OTHERS = "-"  # in place of the id of somebody else's job


class Page(BaseModel):
    """A part of an answer."""

    model_config = ConfigDict(frozen=True)


class SharePage(Page):
    """GPUs of one node."""

    node: str
    gpus: tuple[int, ...]


class CrashPage(Page):
    """The rank that explains why an attempt failed."""

    rank: int
    node: str
    gpu: int
    code: int
    signal: int


class AttemptPage(Page):
    """One try to run a job."""

    number: int
    state: str
    placement: tuple[SharePage, ...]  # by rank, as it began
    held: tuple[SharePage, ...]  # GPUs that it has, or had last: a ring leaves some and gets others
    contact: str
    opened_s: float
    started_s: float | None
    ended_s: float | None
    outcome: str
    cause: str
    cleanup_error: str
    crash: CrashPage | None  # none of an attempt that no rank made fail


class UnknownAttemptPage(Page):
    """An attempt that the store does not have."""

    attempt: str  # its name at the backend
    job: str
    placement: tuple[SharePage, ...]  # none where nobody knows its GPUs: nothing starts then
    found_s: float

    @classmethod
    def of(cls, it: UnknownAttempt) -> "UnknownAttemptPage":
        """Return the page of one."""
        return cls(attempt=it.name, job=it.job, placement=share_pages(it.placement) or (), found_s=it.found_s)


class JobPage(Page):
    """A job."""

    id: str
    name: str
    owner: str
    state: str
    desired: str
    gpus: int
    priority: int
    submitted_s: float
    ended_s: float | None
    version: int
    cause: str
    cause_class: str


class WaitingPage(Page):
    """Why a job does not run yet."""

    position: int | None  # in the queue, from 1; none outside of it
    turn: int | None  # users whose turn comes before its owner's at its priority; none outside, or without turns
    reason: str


class ListedJobPage(JobPage):
    """A job in a list, with where it runs or why it does not."""

    started_s: float | None  # when all ranks of the last attempt were seen
    released_s: float | None  # when that attempt gave its GPUs back
    placement: tuple[SharePage, ...]  # of that attempt; none before the first
    waiting: WaitingPage | None  # none if it does not wait


class JobsPage(Page):
    """Some jobs, the last submitted first."""

    jobs: tuple[ListedJobPage, ...]
    cursor: str | None  # of the next page


class QueuePage(Page):
    """Some jobs that have not ended, in their order."""

    jobs: tuple[ListedJobPage, ...]
    total: int  # of all that were asked for


class JobDetailPage(JobPage):
    """A job with all that is known of it."""

    waiting: WaitingPage | None  # none if it does not wait
    attempts: tuple[AttemptPage, ...]
    estimate_s: float  # run time on the reference GPUs
    estimate_from: str  # `given`, or what the ended jobs that it is from have in common with it, or `unknown`
    estimate_jobs: int  # how many these are
    spec: dict[str, Any]  # the job file, with the names of its environment only


class PlanPage(Page):
    """What would become of a job."""

    spec: dict[str, Any]
    jobs_ahead: int
    free_gpus: int
    would_fit: bool  # on the GPUs that are free


class TaskPage(Page):
    """A rank: where it runs, and how it ended once that is known."""

    attempt: int
    rank: int
    node: str
    gpu: int
    code: int | None
    signal: int | None
    ended_s: float | None


class CheckpointPage(Page):
    """A checkpoint."""

    attempt: int
    step: int
    path: str
    digest: str
    at_s: float  # when it was registered


class EventPage(Page):
    """Something that happened."""

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


class TokenPage(Page):
    """A token, but for what is secret of it."""

    name: str
    owner: str
    role: str
    node: str | None  # that an agent reports on
    made_s: float
    expires_s: float | None
    used_s: float | None


class NewTokenPage(TokenPage):
    """A token that was just made."""

    token: str  # never shown again


def share_pages(placement: Placement | None) -> tuple[SharePage, ...] | None:
    """Return what is said of a placement."""
    return None if placement is None else tuple(SharePage(node=it.node, gpus=it.gpus) for it in placement)


def attempt_page(row: AttemptRow, held: Mapping[int, Placement]) -> AttemptPage:
    """Return what is said of an attempt.

    Args:
        row: The attempt.
        held: GPUs of attempts with rings, by number.
    """
    return AttemptPage(
        number=row.number, state=row.state, placement=share_pages(row.placement) or (), contact=row.contact,
        held=share_pages(held.get(row.number, row.placement)) or (),
        opened_s=row.opened_s, started_s=row.started_s, ended_s=row.ended_s, outcome=row.outcome, cause=row.cause,
        cleanup_error=row.cleanup_error, crash=_crash_page(row),
    )  # fmt: skip


def _crash_page(row: AttemptRow) -> CrashPage | None:
    end, places = rank_to_look_at(row.ends, row.outcome), places_of(row)
    if end is None or end.rank >= len(places):  # a job can forge how it ended
        return None
    node, gpu = places[end.rank]
    return CrashPage(rank=end.rank, node=node, gpu=gpu, code=end.code, signal=end.signal)


def places_of(row: AttemptRow) -> list[tuple[str, int]]:
    """Return the node and the GPU of each rank of an attempt."""
    return [(share.node, gpu) for share in row.placement for gpu in share.gpus]


def job_page(row: JobRow) -> JobPage:
    """Return what is said of a job in a list."""
    return JobPage(**_of_job(row))


def listed_job_page(row: JobRow, last: AttemptRow | None, waiting: WaitingPage | None) -> ListedJobPage:
    """Return what is said of a job in a list with more than its row.

    Args:
        row: The job.
        last: Its last attempt.
        waiting: Why it waits.
    """
    return ListedJobPage(
        **_of_job(row), started_s=last and last.started_s, released_s=last and last.ended_s,
        placement=(share_pages(last.placement) or ()) if last else (), waiting=waiting,
    )  # fmt: skip


def job_detail_page(
    row: JobRow, attempts: list[AttemptRow], waiting: WaitingPage | None, held: Mapping[int, Placement]
) -> JobDetailPage:
    """Return all that is said of a job.

    Args:
        row: The job.
        attempts: Of it.
        waiting: Why it waits.
        held: GPUs of its attempts with rings, by number.
    """
    return JobDetailPage(
        **_of_job(row), waiting=waiting, attempts=tuple(attempt_page(it, held) for it in attempts),
        estimate_s=row.estimate_s, estimate_from=row.estimate_from, estimate_jobs=row.estimate_jobs,
        spec=shown_stored(row.spec),
    )  # fmt: skip


def _of_job(row: JobRow) -> dict[str, Any]:
    return {name: getattr(row, name) for name in JobPage.model_fields}


def shown_spec(spec: JobFile) -> dict[str, Any]:
    """Return a job file without the values of its environment."""
    return {**spec.model_dump(mode="json"), "environment": sorted(spec.environment)}


def shown_stored(spec: object) -> dict[str, Any]:
    """Return a stored job file in the same way; with no command and all else left out if it cannot be read."""
    try:
        return shown_spec(stored_job(spec))
    except UnreadableSpecError:
        return shown_spec(StoredJob.model_construct(command=()))


def task_pages(row: AttemptRow) -> list[TaskPage]:
    """Return what is said of the ranks of an attempt."""
    places = places_of(row)
    ends = {end.rank: end for end in row.ends}
    pages = []
    for rank, (node, gpu) in enumerate(places):
        end = ends.get(rank)
        code, signal, ended_s = (None, None, None) if end is None else (end.code, end.signal, end.ended_s)
        pages.append(
            TaskPage(attempt=row.number, rank=rank, node=node, gpu=gpu, code=code, signal=signal, ended_s=ended_s)
        )
    return pages


def checkpoint_page(row: CheckpointRow) -> CheckpointPage:
    """Return what is said of a checkpoint."""
    return CheckpointPage(attempt=row.number, step=row.step, path=row.path, digest=row.digest, at_s=row.at_s)


def event_page(row: EventRow) -> EventPage:
    """Return what is said of an event."""
    return EventPage(
        seq=row.seq, kind=row.kind, job=row.job_id, attempt=row.number, version=row.version, was=row.was, now=row.now,
        writer=row.writer, cause=row.cause, at_s=row.at_s,
    )  # fmt: skip


def token_page(row: TokenRow) -> TokenPage:
    """Return what is said of a token."""
    return TokenPage(**{name: getattr(row, name) for name in TokenPage.model_fields})
