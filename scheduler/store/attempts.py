"""Decisions on jobs, the attempts that come of them, the GPUs that these hold, and their checkpoints.

A decision has what the policy saw, what it chose, and why. A GPU has one reservation at most.

Source: SPEC K4, R9; docs/steps.md.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple, TypedDict

from sqlalchemy import Connection, and_, bindparam, delete, func, insert, select, update
from sqlalchemy.exc import IntegrityError

from ...cluster.model.placement import Placement
from ..model.job import NewEvent, ReservationRow, attempt_name
from ..model.states import OPEN_ATTEMPTS, AttemptState, Contact, RankEnd
from .database import OlderAttemptError, TakenError
from .events import EventRow, append
from .jobs import id_batches
from .schema import attempt, checkpoint, decision, event, job, reservation, upsert_all

CHANGE, CONTACT, CLEANUP, LAUNCH = "attempt", "contact", "cleanup", "launch"  # kinds of events


class NewAttempt(NamedTuple):
    """What an attempt begins with."""

    backend: str
    placement: Placement
    slowdown: float  # run time over work on the placement
    overhead_s: float  # restart cost at its begin


class AttemptRow(NamedTuple):
    """An attempt as the store holds it; the columns of the table describe the fields."""

    job_id: str
    number: int
    state: AttemptState
    version: int
    backend: str
    placement: Placement
    slowdown: float
    overhead_s: float
    opened_s: float
    started_s: float | None
    ended_s: float | None
    contact: Contact
    contact_since_s: float
    outcome: str
    cause: str
    ends: tuple[RankEnd, ...]
    cleanup_error: str

    @property
    def name(self) -> str:
        """Its name at the backend."""
        return attempt_name(self.job_id, self.number)


class AttemptColumns(TypedDict, total=False):
    """What can change with an attempt's state."""

    started_s: float | None
    ended_s: float
    outcome: str
    ends: tuple[RankEnd, ...]
    cleanup_error: str


_ATTEMPTS = select(*(attempt.c[name] for name in AttemptRow._fields)).order_by(attempt.c.job_id, attempt.c.number)
_ATTEMPTS_OF_JOB = _ATTEMPTS.where(attempt.c.job_id == bindparam("of_job"))
_ONE_ATTEMPT = _ATTEMPTS_OF_JOB.where(attempt.c.number == bindparam("at_number"))
_LAST_ATTEMPTS = _ATTEMPTS.join(job, and_(job.c.id == attempt.c.job_id, job.c.attempt == attempt.c.number)).where(
    job.c.id.in_(bindparam("of_jobs", expanding=True))
)
_UNCLOSED_ATTEMPTS = _ATTEMPTS.where(attempt.c.state.in_(sorted(set(AttemptState) - {AttemptState.CLOSED})))


def get_attempt(tx: Connection, job_id: str, number: int) -> AttemptRow | None:
    """Return an attempt, None if there is none."""
    row = tx.execute(_ONE_ATTEMPT, {"of_job": job_id, "at_number": number}).first()
    return None if row is None else AttemptRow._make(row)


def attempts_of(tx: Connection, job_id: str) -> list[AttemptRow]:
    """Return all attempts of a job in their order."""
    return [AttemptRow._make(row) for row in tx.execute(_ATTEMPTS_OF_JOB, {"of_job": job_id})]


def last_attempts(tx: Connection, job_ids: Sequence[str]) -> dict[str, AttemptRow]:
    """Return the last attempt of each of some jobs that have one."""
    return {row.job_id: AttemptRow._make(row) for row in tx.execute(_LAST_ATTEMPTS, {"of_jobs": list(job_ids)})}


def unclosed_attempts(tx: Connection) -> list[AttemptRow]:
    """Return all attempts that still hold something: GPUs, or what they left at the backend."""
    return [AttemptRow._make(row) for row in tx.execute(_UNCLOSED_ATTEMPTS)]


_INSERT_RESERVATION = insert(reservation)
_RESERVATIONS = select(*(reservation.c[name] for name in ReservationRow._fields)).order_by(
    reservation.c.node, reservation.c.gpu
)
_OF_ATTEMPT = (reservation.c.job_id == bindparam("of_job"), reservation.c.number == bindparam("at_number"))
_FREE = delete(reservation).where(*_OF_ATTEMPT)
_RESERVED_GPU = (reservation.c.node == bindparam("at_node"), reservation.c.gpu == bindparam("at_gpu"))
_IS_RESERVED = select(reservation.c.node).where(*_OF_ATTEMPT, *_RESERVED_GPU)
_FREE_ONE = _FREE.where(*_RESERVED_GPU)


def held_gpus(tx: Connection) -> list[ReservationRow]:
    """Return all GPUs that are not free, by node and index."""
    return [ReservationRow._make(row) for row in tx.execute(_RESERVATIONS)]


def reserve(tx: Connection, attempts: Sequence[AttemptRow]) -> None:
    """Reserve all GPUs of attempts.

    Raises:
        TakenError: If one of them is reserved; the caller has to undo the rest.
    """
    rows = [
        ReservationRow(share.node, gpu, row.job_id, row.number, row.opened_s)._asdict()
        for row in attempts
        for share in row.placement
        for gpu in share.gpus
    ]
    try:
        tx.execute(_INSERT_RESERVATION, rows)
    except IntegrityError as error:
        raise TakenError("a GPU of a placement is reserved for another attempt") from error


def reserve_gpu(tx: Connection, row: ReservationRow) -> None:
    """Reserve one GPU more for an attempt.

    Raises:
        TakenError: If it is reserved.
    """
    try:
        tx.execute(_INSERT_RESERVATION, row._asdict())
    except IntegrityError as error:
        raise TakenError(f"GPU {row.gpu} of {row.node} is reserved for another attempt") from error


def is_reserved(tx: Connection, job_id: str, number: int, place: tuple[str, int]) -> bool:
    """Return whether an attempt holds a GPU."""
    of = {"of_job": job_id, "at_number": number, "at_node": place[0], "at_gpu": place[1]}
    return tx.execute(_IS_RESERVED, of).first() is not None


def free_gpus(tx: Connection, job_id: str, number: int, places: Sequence[tuple[str, int]]) -> None:
    """Free some GPUs of an attempt."""
    if places:
        of = {"of_job": job_id, "at_number": number}
        tx.execute(_FREE_ONE, [{**of, "at_node": node, "at_gpu": gpu} for node, gpu in places])


def free(tx: Connection, attempts: Sequence[AttemptRow]) -> None:
    """Free all GPUs of attempts."""
    if attempts:
        tx.execute(_FREE, [{"of_job": row.job_id, "at_number": row.number} for row in attempts])


SAVED = "checkpoint"  # kind of events
MAX_CHECKPOINTS = 100  # of one job, the newest
MAX_CHECKPOINT_EVENTS = 10_000  # events of the checkpoints of one job
LAST_WORDS = "; further checkpoints of this job are kept without an event"


class CheckpointRow(NamedTuple):
    """A checkpoint."""

    job_id: str
    number: int  # of the attempt that wrote it
    step: int  # the last one that it holds
    path: str  # or URL
    digest: str  # in hexadecimal, "" for none
    at_s: float  # Unix time at which it was registered


_ALL_CHECKPOINTS = select(*(checkpoint.c[name] for name in CheckpointRow._fields))
_CHECKPOINTS = (
    _ALL_CHECKPOINTS.where(checkpoint.c.job_id == bindparam("of_job"))
    .order_by(checkpoint.c.number.desc(), checkpoint.c.step.desc())
    .limit(bindparam("most"))
)
_ROWS_BEFORE = _CHECKPOINTS.where(checkpoint.c.number < bindparam("before"))
# FOR NO KEY UPDATE: on PostgreSQL no attempt begins until the transaction ends.
_JOB_OF_CHECKPOINT = (
    select(job.c.attempt, job.c.checkpoint_events)
    .where(job.c.id == bindparam("of_job"))
    .with_for_update(key_share=True)
)
# Counted here and not among the events: there, each registration would read as many as there are.
_COUNT_CHECKPOINT = (
    update(job).where(job.c.id == bindparam("of_job")).values(checkpoint_events=job.c.checkpoint_events + 1)
)
_CHECKPOINT_KEY = (
    checkpoint.c.job_id == bindparam("of_job"),
    checkpoint.c.number == bindparam("at_number"),
    checkpoint.c.step == bindparam("at_step"),
)
_ONE_CHECKPOINT = _ALL_CHECKPOINTS.where(*_CHECKPOINT_KEY)
_DELETE_CHECKPOINT = delete(checkpoint).where(*_CHECKPOINT_KEY)


def store_checkpoint(
    tx: Connection,
    row: CheckpointRow,
    *,
    writer: str,
    fence: int | None = None,
    max_events: int = MAX_CHECKPOINT_EVENTS,
) -> bool:
    """Write down a checkpoint, in place of an earlier one of the same attempt and step.

    It has an event, up to a number of events of the job: what a job reports must not fill the disk.

    Returns:
        Whether it was not known.

    Raises:
        OlderAttemptError: If a later attempt of the job has begun.
        ValueError: If the job has no such attempt.
    """
    last, events = tx.execute(_JOB_OF_CHECKPOINT, {"of_job": row.job_id}).one_or_none() or (0, 0)
    if not 0 < row.number <= last:
        raise ValueError(f"job {row.job_id} has no attempt {row.number}")
    if row.number < last:
        raise OlderAttemptError(f"attempt {last} of job {row.job_id} has begun; attempt {row.number} does not count")
    known = tx.execute(_ONE_CHECKPOINT, {"of_job": row.job_id, "at_number": row.number, "at_step": row.step}).first()
    if known is not None and (known.path, known.digest) == (row.path, row.digest):
        return False
    upsert_all(tx, checkpoint, [row._asdict()])
    if events < max_events:
        tx.execute(_COUNT_CHECKPOINT, {"of_job": row.job_id})
        data = {"step": row.step, "path": row.path, "digest": row.digest}
        cause = f"step {row.step} is saved at {row.path}" + (LAST_WORDS if events == max_events - 1 else "")
        append(tx, NewEvent(SAVED, writer, row.at_s, row.job_id, row.number, fence=fence, cause=cause, data=data))
    for old in checkpoints_of(tx, row.job_id, MAX_CHECKPOINTS + 10)[MAX_CHECKPOINTS:]:
        tx.execute(_DELETE_CHECKPOINT, {"of_job": old.job_id, "at_number": old.number, "at_step": old.step})
    return True


def checkpoints_of(tx: Connection, job_id: str, most: int = MAX_CHECKPOINTS) -> list[CheckpointRow]:
    """Return the checkpoints of a job, the newest first."""
    return [CheckpointRow._make(row) for row in tx.execute(_CHECKPOINTS, {"of_job": job_id, "most": most})]


def starting_checkpoint(tx: Connection, job_id: str, number: int) -> CheckpointRow | None:
    """Return the checkpoint that an attempt begins with: the newest of those before it, which changes no more."""
    row = tx.execute(_ROWS_BEFORE, {"of_job": job_id, "before": number, "most": 1}).first()
    return None if row is None else CheckpointRow._make(row)


class NewDecision(NamedTuple):
    """A decision to be stored."""

    job_id: str
    number: int | None  # of the attempt that came of it, None if none did
    at_s: float  # Unix time
    policy: str
    policy_version: str
    mode: str
    placement: Placement | None  # None if it chose to wait
    fallback: Placement | None
    explanation: Mapping[str, object]
    observation: bytes | None  # little-endian float32, choice by choice
    mask: bytes | None  # one byte an action
    log_probability: bytes | None  # little-endian float32, one an action; -inf where it was closed
    past: bytes | None  # what led to it, as scheduler/mirror/journal.py writes it
    took_s: float


class DecisionRow(NamedTuple):
    """A decision, without what it was made from."""

    seq: int
    job_id: str
    number: int | None
    at_s: float
    policy: str
    policy_version: str
    mode: str
    placement: Placement | None
    fallback: Placement | None
    explanation: Mapping[str, object]
    took_s: float
    outcome: str  # exit class of the attempt that came of it, "" until that is known


class WholeDecision(NamedTuple):
    """A decision with all that one needs to learn from it, and when the attempt began and ended that came of it."""

    row: DecisionRow
    observation: bytes | None
    mask: bytes | None
    log_probability: bytes | None
    past: bytes | None
    opened_s: float | None
    started_s: float | None
    ended_s: float | None


# Without what the policy saw: those columns are large.
_DECISION_FIELDS = [decision.c[name] for name in DecisionRow._fields]
_DECISIONS = select(*_DECISION_FIELDS)
_INSERT_DECISIONS = insert(decision)
_DECISIONS_AFTER = (
    _DECISIONS.where(decision.c.seq > bindparam("after")).order_by(decision.c.seq).limit(bindparam("most"))
)
_LAST_DECISIONS = _DECISIONS.order_by(decision.c.seq.desc()).limit(bindparam("most"))
_LAST_DECISIONS_OF_JOB = _LAST_DECISIONS.where(decision.c.job_id == bindparam("of_job"))
_LAST_DECISION = select(func.coalesce(func.max(decision.c.seq), 0))
_LAST_SEQS = (
    select(func.max(decision.c.seq))
    .where(decision.c.job_id.in_(bindparam("of_jobs", expanding=True)))
    .group_by(decision.c.job_id)
)
_LAST_OF_JOBS = _DECISIONS.where(decision.c.seq.in_(_LAST_SEQS))
_ATTEMPT_OF_DECISION = (attempt.c.job_id == decision.c.job_id) & (attempt.c.number == decision.c.number)
_WHOLE_DECISIONS = (
    select(
        *_DECISION_FIELDS, decision.c.observation, decision.c.mask, decision.c.log_probability, decision.c.past,
        attempt.c.opened_s, attempt.c.started_s, attempt.c.ended_s,
    )
    .select_from(decision.outerjoin(attempt, _ATTEMPT_OF_DECISION))
    .where(decision.c.seq > bindparam("after"))
    .order_by(decision.c.seq)
    .limit(bindparam("most"))
)  # fmt: skip
_SET_OUTCOME = (
    update(decision)
    .where(decision.c.job_id == bindparam("of_job"), decision.c.number == bindparam("of_number"))
    .values(outcome=bindparam("new_outcome"))
)


def add_decisions(tx: Connection, new: Sequence[NewDecision]) -> None:
    """Store decisions, in the transaction of what came of them."""
    if new:
        tx.execute(_INSERT_DECISIONS, [{**each._asdict(), "outcome": ""} for each in new])


def record_outcomes(tx: Connection, outcomes: Sequence[tuple[str, int, str]]) -> None:
    """Write down what came of decisions: of each the job, the number of the attempt, and its exit class."""
    if outcomes:
        tx.execute(
            _SET_OUTCOME,
            [dict(zip(("of_job", "of_number", "new_outcome"), outcome, strict=True)) for outcome in outcomes],
        )


def decisions_after(tx: Connection, seq: int, limit: int) -> list[WholeDecision]:
    """Return the first decisions behind the one of a number, in their order, with all that is kept of them."""
    rows = tx.execute(_WHOLE_DECISIONS, {"after": seq, "most": limit})
    split = len(_DECISION_FIELDS)
    return [WholeDecision(DecisionRow._make(row[:split]), *row[split:]) for row in rows]


def last_decisions_of(tx: Connection, job_ids: Sequence[str]) -> dict[str, DecisionRow]:
    """Return the last decision on each of some jobs on which there is one."""
    rows = [
        DecisionRow._make(row) for part in id_batches(job_ids) for row in tx.execute(_LAST_OF_JOBS, {"of_jobs": part})
    ]
    return {row.job_id: row for row in rows}


class GpuState(StrEnum):
    """What a GPU is doing."""

    FREE = "free"
    STARTING = "starting"  # held for an attempt whose ranks do not all run yet
    RUNNING = "running"
    DRAINING = "draining"  # held until all processes of its attempt are proven gone
    OUT = "out of service"


class OccupiedGpu(NamedTuple):
    """A GPU that is not free."""

    node: str
    gpu: int  # index on the node
    job_id: str
    job: str  # name
    number: int  # of the attempt
    state: GpuState


class Drain(NamedTuple):
    """An attempt that is on its way out."""

    job_id: str
    number: int
    since_s: float  # Unix time
    spec: Mapping[str, object]  # of its job
    gpus: int


_STATES = {
    AttemptState.RESERVED: GpuState.STARTING,
    AttemptState.LAUNCHED: GpuState.STARTING,
    AttemptState.RUNNING: GpuState.RUNNING,
}
_OF_RESERVATION = (attempt.c.job_id == reservation.c.job_id) & (attempt.c.number == reservation.c.number)
_OCCUPIED = (
    select(
        reservation.c.node, reservation.c.gpu, job.c.id, job.c.name, attempt.c.number, attempt.c.state,
    )
    .join(attempt, _OF_RESERVATION)
    .join(job, job.c.id == attempt.c.job_id)
)  # fmt: skip
_UNKNOWN = select(func.count()).where(
    attempt.c.contact == Contact.UNKNOWN,
    attempt.c.state.in_(sorted(OPEN_ATTEMPTS)),  # an index has these few; of those that ended there are many
)
_DRAINS_SINCE = (
    select(func.max(event.c.at_s))
    .where(
        event.c.job_id == attempt.c.job_id, event.c.number == attempt.c.number,
        event.c.now == AttemptState.DRAINING.value,
    )
    .scalar_subquery()
)  # fmt: skip
_DRAINS = (
    select(attempt.c.job_id, attempt.c.number, _DRAINS_SINCE, job.c.spec, attempt.c.placement)
    .join(job, job.c.id == attempt.c.job_id)
    .where(attempt.c.state == AttemptState.DRAINING)
)
_SAVED_EVENTS = (
    select(func.max(event.c.seq).label("seq"), func.count().label("events"))
    .where(event.c.job_id == bindparam("of_job"), event.c.kind == SAVED)
    .group_by(event.c.number)
    .subquery()
)
_LAST_SAVED = select(*(event.c[name] for name in EventRow._fields), _SAVED_EVENTS.c.events).join(
    _SAVED_EVENTS, event.c.seq == _SAVED_EVENTS.c.seq
)


def occupied_gpus(tx: Connection) -> list[OccupiedGpu]:
    """Return all GPUs that are not free, in no order."""
    return [
        OccupiedGpu(node, gpu, job_id, name, number, _STATES.get(state, GpuState.DRAINING))
        for node, gpu, job_id, name, number, state in tx.execute(_OCCUPIED)
    ]


def count_unknown(tx: Connection) -> int:
    """Return how many open attempts cannot be reached."""
    unknown: int = tx.execute(_UNKNOWN).scalar_one()
    return unknown


def draining_attempts(tx: Connection) -> list[Drain]:
    """Return all attempts that are on their way out."""
    return [
        Drain(job_id, number, since_s, spec, sum(len(share.gpus) for share in placement))
        for job_id, number, since_s, spec, placement in tx.execute(_DRAINS)
    ]


def last_checkpoint_events(tx: Connection, job_id: str) -> list[tuple[EventRow, int]]:
    """Return the last event of a checkpoint of each attempt of a job, and how many there are."""
    return [(EventRow._make(row[:-1]), row[-1]) for row in tx.execute(_LAST_SAVED, {"of_job": job_id})]


def last_decisions(tx: Connection, limit: int, job_id: str | None = None) -> list[DecisionRow]:
    """Return decisions, of one job if it is given, the last first."""
    statement = _LAST_DECISIONS if job_id is None else _LAST_DECISIONS_OF_JOB
    return [DecisionRow._make(row) for row in tx.execute(statement, {"most": limit, "of_job": job_id})]


def decision_rows_after(tx: Connection, seq: int, limit: int) -> list[DecisionRow]:
    """Return the first decisions behind one, in their order."""
    return [DecisionRow._make(row) for row in tx.execute(_DECISIONS_AFTER, {"after": seq, "most": limit})]


def last_decision_seq(tx: Connection) -> int:
    """Return the number of the last decision, 0 if there is none."""
    last: int = tx.execute(_LAST_DECISION).scalar_one()
    return last
