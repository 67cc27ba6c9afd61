"""The job that a path names, as whoever asks may see it."""

from typing import Annotated

from fastapi import Depends, Path

from ...access.tokens import Caller, Role
from ...model.job import JobRow
from ...model.job_id import is_job_id
from ...service.service import Service
from ...store.rows.attempts import AttemptRow, attempts_of
from ...store.rows.jobs import get_job
from ..http.auth import Asking, Serving
from ..http.problems import ProblemError, problems

Number = Annotated[int, Path(ge=1, le=1_000_000)]
NO_JOB = problems("no-such-job")


def seen_owner(caller: Caller) -> str | None:
    """Return whose jobs somebody sees, None for those of all."""
    return None if caller.role is Role.OPERATOR else caller.owner


def find_job(service: Service, caller: Caller, job: str) -> JobRow:
    """Return a job that somebody may see.

    Raises:
        ProblemError: If there is none; somebody else's is as if it were not there.
    """
    row = None
    if is_job_id(job):
        with service.store.read() as tx:
            row = get_job(tx, job)
    if row is None or seen_owner(caller) not in (None, row.owner):
        raise ProblemError("no-such-job", f"there is no job {job!r}")
    return row


def _found(job: Annotated[str, Path(max_length=100)], service: Serving, caller: Asking) -> JobRow:
    return find_job(service, caller, job)


Found = Annotated[JobRow, Depends(_found)]


def find_attempt(service: Service, row: JobRow, number: int | None) -> AttemptRow:
    """Return an attempt of a job, the last one if no number is given.

    Raises:
        ProblemError: If there is none.
    """
    with service.store.read() as tx:
        mine = [it for it in attempts_of(tx, row.id) if number in (None, it.number)]
    if not mine:
        which = "no attempt yet" if number is None else f"no attempt {number}"
        raise ProblemError("no-such-attempt", f"job {row.id} has {which}")
    return mine[-1]
