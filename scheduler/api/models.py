"""Answers of the API, as models. None has values of a job's environment: they may be secrets."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict
from sqlalchemy import Connection

from ...cluster.model.placement import Placement
from ...cluster.model.topology import ANYTHING, NodeNeeds
from ..access.tokens import TokenRow
from ..control.adoption import UnknownAttempt
from ..control.state_cache import needs_of
from ..model.job import JobRow
from ..model.job_spec import JobFile, Shape, StoredJob, UnreadableSpecError, is_shaped, stored_job, stored_or_usual
from ..model.states import Desired, JobState
from ..policy_host.process import MISS_WORDS, Miss
from ..rules.attempts import rank_to_look_at
from ..service.queue_now import Queue
from ..store.attempts import AttemptRow, CheckpointRow, DecisionRow, last_decisions_of
from ..store.events import EventRow

HIDDEN_JOB = "-"  # in place of the id of another user's job


class ApiModel(BaseModel):
    """A part of an answer."""

    model_config = ConfigDict(frozen=True)


class SharePage(ApiModel):
    """GPUs of one node."""

    node: str
    gpus: tuple[int, ...]


class CrashPage(ApiModel):
    """The rank that failed first."""

    rank: int
    node: str
    gpu: int
    code: int
    signal: int


class AttemptPage(ApiModel):
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


class UnknownAttemptPage(ApiModel):
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


class JobPage(ApiModel):
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


class WaitingPage(ApiModel):
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


class JobsPage(ApiModel):
    """Some jobs, the last submitted first."""

    jobs: tuple[ListedJobPage, ...]
    cursor: str | None  # of the next page


class QueuePage(ApiModel):
    """Some jobs that have not ended, in their order."""

    jobs: tuple[ListedJobPage, ...]
    total: int  # of all that match


class JobDetailPage(JobPage):
    """A job with all that is known of it."""

    waiting: WaitingPage | None  # none if it does not wait
    attempts: tuple[AttemptPage, ...]
    estimate_s: float  # run time on the reference GPUs
    estimate_from: str  # `given`, `unknown`, or what the ended jobs behind it share with this one
    estimate_jobs: int  # number of these jobs
    spec: dict[str, Any]  # the job file, with the names of its environment only


class PlanPage(ApiModel):
    """What a submission would do (`dry_run`)."""

    spec: dict[str, Any]
    jobs_ahead: int
    free_gpus: int
    would_fit: bool  # on the GPUs that are free


class TaskPage(ApiModel):
    """A rank: where it runs, and how it ended once that is known."""

    attempt: int
    rank: int
    node: str
    gpu: int
    code: int | None
    signal: int | None
    ended_s: float | None


class CheckpointPage(ApiModel):
    """A checkpoint."""

    attempt: int
    step: int
    path: str
    digest: str
    at_s: float  # when it was registered


class EventPage(ApiModel):
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


class TokenPage(ApiModel):
    """A token without its secret."""

    name: str
    owner: str
    role: str
    node: str | None  # that an agent reports on
    made_s: float
    expires_s: float | None
    used_s: float | None


class NewTokenPage(TokenPage):
    """A new token, with its secret."""

    token: str  # never shown again


def share_pages(placement: Placement | None) -> tuple[SharePage, ...] | None:
    """Return a placement."""
    return None if placement is None else tuple(SharePage(node=share.node, gpus=share.gpus) for share in placement)


def attempt_page(row: AttemptRow, held: Mapping[int, Placement]) -> AttemptPage:
    """Return an attempt.

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
    """Return a job."""
    return JobPage(**_of_job(row))


def listed_job_page(row: JobRow, last: AttemptRow | None, waiting: WaitingPage | None) -> ListedJobPage:
    """Return a job of a list, with where it runs or why it does not.

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
    """Return a job with all details.

    Args:
        row: The job.
        attempts: Of it.
        waiting: Why it waits.
        held: GPUs of its attempts with rings, by number.
    """
    return JobDetailPage(
        **_of_job(row), waiting=waiting, attempts=tuple(attempt_page(attempt, held) for attempt in attempts),
        estimate_s=row.estimate_s, estimate_from=row.estimate_from, estimate_jobs=row.estimate_jobs,
        spec=shown_stored(row.spec),
    )  # fmt: skip


def _of_job(row: JobRow) -> dict[str, Any]:
    return {name: getattr(row, name) for name in JobPage.model_fields}


def shown_spec(spec: JobFile) -> dict[str, Any]:
    """Return a job file without the values of its environment."""
    return {**spec.model_dump(mode="json"), "environment": sorted(spec.environment)}


def shown_stored(spec: object) -> dict[str, Any]:
    """Return a stored job file in the same way; one that cannot be read is empty."""
    try:
        return shown_spec(stored_job(spec))
    except UnreadableSpecError:
        return shown_spec(StoredJob.model_construct(command=()))


def task_pages(row: AttemptRow) -> list[TaskPage]:
    """Return the ranks of an attempt."""
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
    """Return a checkpoint."""
    return CheckpointPage(attempt=row.number, step=row.step, path=row.path, digest=row.digest, at_s=row.at_s)


def event_page(row: EventRow) -> EventPage:
    """Return an event."""
    return EventPage(
        seq=row.seq, kind=row.kind, job=row.job_id, attempt=row.number, version=row.version, was=row.was, now=row.now,
        writer=row.writer, cause=row.cause, at_s=row.at_s,
    )  # fmt: skip


def token_page(row: TokenRow) -> TokenPage:
    """Return a token."""
    return TokenPage(**{name: getattr(row, name) for name in TokenPage.model_fields})


class ExpectedPage(ApiModel):
    """What is expected of a start, by the job's estimate."""

    slowdown: float  # run time over that on the reference GPUs
    end_s: float


class ProposalPage(ApiModel):
    """What a policy would do, whether that is carried out or not."""

    job: str  # the one that is due, or another that may pass it; `-` for another user's
    placement: tuple[SharePage, ...] | None  # none to wait, and of another user's job
    expected: ExpectedPage | None  # of the start
    agrees: bool  # whether the heuristic would do the same
    probability: float | None  # by the policy's network, if it has one
    options: int | None  # number of moves to choose from


class DecisionPage(ApiModel):
    """A decision on a job."""

    at_s: float
    attempt: int | None  # that the decision opened, none if the job waited
    policy: str
    version: str
    mode: str
    heuristic: str  # that decides where the policy does not
    decided_by: str  # the policy, or the heuristic in its place
    policy_error: str  # why there is no usable proposal, if there is none
    placement: tuple[SharePage, ...] | None  # none to wait
    fallback: tuple[SharePage, ...] | None  # what the heuristic would have chosen; none of another user's job
    fallback_job: str  # for which: the one that was due; `-` for another user's, empty if unknown
    took_s: float
    expected: ExpectedPage | None  # of the start
    fallback_expected: ExpectedPage | None
    proposal: ProposalPage | None  # of the policy; none if there is none, or no usable one


def decision_page(row: DecisionRow) -> DecisionPage:
    """Return a decision."""
    explanation: Mapping[str, Any] = row.explanation
    return DecisionPage(
        at_s=row.at_s, attempt=row.number, policy=row.policy, version=row.policy_version, mode=row.mode,
        decided_by=str(row.explanation.get("obeyed", "")), policy_error=str(row.explanation.get("missed", "")),
        placement=share_pages(row.placement), fallback=share_pages(row.fallback), took_s=row.took_s,
        heuristic=str(explanation.get("fallback", "")), fallback_job=_fallback_job(row),
        proposal=_proposal_page(explanation),
        **{name: explanation.get(name) for name in ("expected", "fallback_expected")},
    )  # fmt: skip


def _fallback_job(row: DecisionRow) -> str:
    """Return the job that the heuristic decided about, "" where that was not recorded."""
    found = row.explanation
    may_differ = found.get("agrees") is False and found.get("obeyed") != found.get("fallback")
    return str(found.get("fallback_job", "" if may_differ else row.job_id))


def _proposal_page(explanation: Mapping[str, Any]) -> ProposalPage | None:
    proposal = explanation.get("said")
    if proposal is None:
        return None
    return ProposalPage(
        job=proposal["job"], placement=explanation.get("said_placement"), expected=explanation.get("said_expected"),
        agrees=bool(explanation.get("agrees")), probability=explanation.get("probability"),
        options=explanation.get("options"),
    )  # fmt: skip


def users_decision_page(row: DecisionRow, own: Collection[str]) -> DecisionPage:
    """Return a decision for a caller who may not see all jobs: nothing of other users' jobs.

    Args:
        row: The decision.
        own: Jobs that the caller may see.
    """
    page = decision_page(row)
    if page.fallback_job not in {row.job_id, *own}:
        hidden = {"fallback_job": HIDDEN_JOB, "fallback": None, "fallback_expected": None}
        page = page.model_copy(update=hidden)
    proposal, error = page.proposal, page.policy_error
    if proposal is not None and proposal.job not in own:
        proposal = proposal.model_copy(update={"job": HIDDEN_JOB, "placement": None, "expected": None})
    if error:
        kind = str(row.explanation.get("kind"))
        error = MISS_WORDS[Miss(kind)] if kind in set(Miss) else "it gave no usable answer"
    return page.model_copy(update={"proposal": proposal, "policy_error": error})


WAITS = (JobState.QUEUED, JobState.HELD, JobState.STARTING)


def waiting_pages(tx: Connection, rows: Sequence[JobRow], queue: Queue) -> dict[str, WaitingPage]:
    """Return the places in the queue of waiting jobs, and why they wait, by id."""
    last = last_decisions_of(tx, [row.id for row in rows if row.state in WAITS and row.id in queue.places])
    return {row.id: _waiting_page(row, queue, last.get(row.id)) for row in rows if row.state in WAITS}


def _waiting_page(row: JobRow, queue: Queue, last: DecisionRow | None) -> WaitingPage:
    place = queue.places.get(row.id)
    outside = _why_outside(row, queue)
    if outside or place is None:
        return WaitingPage(position=None, turn=None, reason=outside or "it is decided about next")
    turn = queue.turns.get((row.owner, row.priority))
    return WaitingPage(position=place, turn=turn, reason=_why_in_queue(row, queue, place, last))


def _why_outside(row: JobRow, queue: Queue) -> str:
    """Return why a job is not in the queue, nothing if it is."""
    if row.state is JobState.STARTING and (error := queue.why_not_launched(row.id) or queue.errors.last_error(row.id)):
        return f"its GPUs are reserved, and it could not be launched yet, which is tried again: {error}"
    if row.state is JobState.STARTING:
        going_on = "its nodes are being checked" if row.id in queue.checked else "its processes are being started"
        return f"its GPUs are reserved, and {going_on}"
    if row.desired is Desired.CANCEL:
        return "it is being cancelled"
    if row.desired is Desired.HOLD:
        return "it is held until its owner releases it"
    if row.state is JobState.HELD:
        return row.cause or "it is held"
    if row.not_before_s > queue.now_s:
        return f"it is tried again in {row.not_before_s - queue.now_s:.0f} s, after: {row.cause}"
    return ""


def _why_in_queue(row: JobRow, queue: Queue, place: int, last: DecisionRow | None) -> str:
    needs = needs_of(row)
    room = queue.room if needs == ANYTHING else queue.room.on(queue.layout.nodes_for(needs))
    asks = f"it asks for {_gpus(row.gpus)} {needs.words}".rstrip()
    error = queue.errors.why_resting(row.id, queue.now_s)
    if queue.held_back or error:
        return queue.held_back or f"it could not be handled, and is tried again: {error}"
    if row.gpus > room.in_service:
        return f"{asks}, and only {room.in_service} of {room.gpus}{_such(needs)} are in service"
    if queue.most is not None and queue.held[row.owner] + row.gpus > queue.most:
        return f"{asks}, its owner's jobs hold {queue.held[row.owner]}, and one user may have {queue.most}"
    if row.gpus > room.free:
        return f"{asks}, and {room.free or _none(needs)}{_such(needs)} {'is' if room.free == 1 else 'are'} free"
    if (shape := _shape(row)) is not None and not room.has(shape.nodes, shape.gpus_per_node):
        return f"it asks for {shape.words}, and the free GPUs do not lie so"
    if last is not None and last.placement is None:
        return f"{last.explanation.get('obeyed')} lets it wait for better GPUs"
    if place == 1:
        return "it is decided about next"
    before = "1 job stands before it" if place == 2 else f"{place - 1} jobs stand before it"
    return f"{before}, {_turn(row, queue)}".removesuffix(", ")


def _turn(row: JobRow, queue: Queue) -> str:
    """Return whose turn it is at a job's priority; "" without turns, and with one user alone."""
    before = queue.turns.get((row.owner, row.priority))
    if before is None or sum(priority == row.priority for _, priority in queue.turns) < 2:
        return ""
    if before == 0:
        return "and it is its owner's turn"
    return "and 1 other user has a turn first" if before == 1 else f"and {before} other users have their turns first"


def _such(needs: NodeNeeds) -> str:
    return "" if needs == ANYTHING else " of these"


def _none(needs: NodeNeeds) -> str:
    return "0" if needs == ANYTHING else "none"


def _shape(row: JobRow) -> Shape | None:
    return stored_or_usual(row.spec).shape if is_shaped(row.spec) else None


def _gpus(count: int) -> str:
    return "1 GPU" if count == 1 else f"{count} GPUs"
