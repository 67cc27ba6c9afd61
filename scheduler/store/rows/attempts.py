"""Attempts and the GPUs that they hold. A GPU has one reservation at most, whoever asks for it."""

from collections.abc import Sequence
from typing import NamedTuple, TypedDict

from sqlalchemy import Connection, and_, bindparam, select

from ...model.placement import Placement
from ...model.run import RankEnd
from ...model.states import AttemptState, Contact
from ..database.schema import attempt, job

CHANGE, CONTACT, CLEANUP, LAUNCH = "attempt", "contact", "cleanup", "launch"  # kinds of events


class Opening(NamedTuple):
    """What an attempt begins with."""

    backend: str
    placement: Placement
    slowdown: float  # run time over work on the placement
    overhead_s: float  # restart cost at its begin


class AttemptRow(NamedTuple):
    """An attempt as the store holds it; the columns of the table say what each field is."""

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


class AttemptColumns(TypedDict, total=False):
    """What can change with an attempt's state."""

    started_s: float | None
    ended_s: float
    outcome: str
    ends: tuple[RankEnd, ...]
    cleanup_error: str


_ROWS = select(*(attempt.c[name] for name in AttemptRow._fields)).order_by(attempt.c.job_id, attempt.c.number)
_OF_JOB = _ROWS.where(attempt.c.job_id == bindparam("of_job"))
_ONE = _OF_JOB.where(attempt.c.number == bindparam("at_number"))
_LAST = _ROWS.join(job, and_(job.c.id == attempt.c.job_id, job.c.attempt == attempt.c.number)).where(
    job.c.id.in_(bindparam("of_jobs", expanding=True))
)
_UNCLOSED = _ROWS.where(attempt.c.state.in_(sorted(set(AttemptState) - {AttemptState.CLOSED})))


def get_attempt(tx: Connection, job_id: str, number: int) -> AttemptRow | None:
    """Return an attempt, None if there is none."""
    row = tx.execute(_ONE, {"of_job": job_id, "at_number": number}).first()
    return None if row is None else AttemptRow._make(row)


def attempts_of(tx: Connection, job_id: str) -> list[AttemptRow]:
    """Return all attempts of a job in their order."""
    return [AttemptRow._make(row) for row in tx.execute(_OF_JOB, {"of_job": job_id})]


def last_attempts(tx: Connection, job_ids: Sequence[str]) -> dict[str, AttemptRow]:
    """Return the last attempt of each of some jobs that have one."""
    return {row.job_id: AttemptRow._make(row) for row in tx.execute(_LAST, {"of_jobs": list(job_ids)})}


def unclosed_attempts(tx: Connection) -> list[AttemptRow]:
    """Return all attempts that still hold something: GPUs, or what they left at the backend."""
    return [AttemptRow._make(row) for row in tx.execute(_UNCLOSED)]
