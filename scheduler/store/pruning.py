"""Deleting what is older than anybody wants to keep, in batches so small that no other writer waits for long.

Nothing of a job that has not ended is ever deleted, nor of one of whose attempts something is still to be cleaned up.
What the scheduler adds up over all jobs is kept in the table `pruned`.
"""

from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy import ColumnElement, Connection, Table, and_, bindparam, delete, exists, func, or_, select, update

from ..model.states import FINAL, AttemptState, Desired, JobState
from .jobs import ESTIMATE_S
from .schema import attempt, checkpoint, compute_record, decision, event, insert_if_absent, job, pruned, replacement

MAX_JOBS_PRUNED, MAX_ROWS_PRUNED = 20, 500  # in one transaction

_OPEN_STATES = sorted(set(JobState) - FINAL)
_IS_CLEAN = ~exists().where(attempt.c.job_id == job.c.id, attempt.c.state != AttemptState.CLOSED)
_IS_OLD = and_(job.c.ended_s < bindparam("before_s"), job.c.state.in_(sorted(FINAL)), _IS_CLEAN)
_IS_BEHIND = or_(
    job.c.ended_s > bindparam("after_s"),
    and_(job.c.ended_s == bindparam("after_s"), job.c.submit_seq > bindparam("after_seq")),
)
_OLD_JOBS = (
    select(job.c.id, job.c.ended_s, job.c.submit_seq)
    .where(_IS_OLD, _IS_BEHIND)
    .order_by(job.c.ended_s, job.c.submit_seq)
    .limit(bindparam("most"))
)
_COUNT_JOBS = select(func.count()).select_from(job).where(_IS_OLD)
_IS_WANTED = job.c.id.in_(bindparam("wanted", expanding=True))
# Only one that failed can be tried again, and not while its owner wants it cancelled.
_CLAIM = (
    update(job)
    .where(_IS_WANTED, _IS_OLD, job.c.state == JobState.FAILED, job.c.desired != Desired.CANCEL)
    .values(desired=Desired.CANCEL, version=job.c.version + 1)
)
_CLAIMED = select(job.c.id).where(_IS_WANTED, _IS_OLD)
# Locked (SQLite has one writer anyway): a job that two delete at once would count twice.
_STILL_OLD = select(job.c.id, ESTIMATE_S.label("estimate_s")).where(_IS_WANTED, _IS_OLD).with_for_update()
_ATTEMPT_NUMBERS = (
    select(attempt.c.number).where(attempt.c.job_id == bindparam("of_job")).order_by(attempt.c.number)
)  # fmt: skip
# The last event stays, whatever it tells: who follows events goes on from its number.
_LAST_EVENT = select(func.max(event.c.seq)).scalar_subquery()
_EVENTS_OF_JOB = (
    select(event.c.seq)
    .where(event.c.job_id == bindparam("of_job"), event.c.seq < _LAST_EVENT)
    .limit(bindparam("most"))
    .scalar_subquery()
)
_SHRINK = delete(event).where(event.c.seq.in_(_EVENTS_OF_JOB))
_ADD = update(pruned).values(
    jobs=pruned.c.jobs + bindparam("more"), estimates_s=pruned.c.estimates_s + bindparam("more_s")
)


class OldJob(NamedTuple):
    """A job that can be deleted; such jobs are in the order of their ends."""

    id: str
    ended_s: float
    submit_seq: int


FIRST_OLD_JOB = OldJob("", float("-inf"), 0)  # before all others


class PrunedRows(NamedTuple):
    """What became of some rows, in their order."""

    last_seq: int  # of the last that was looked at
    deleted: int
    is_last: bool  # what follows is younger, or nothing


def old_jobs(tx: Connection, before_s: float, after: OldJob = FIRST_OLD_JOB) -> list[OldJob]:
    """Return the next jobs that ended before a Unix time and have nothing left to be cleaned up."""
    values = {"before_s": before_s, "after_s": after.ended_s, "after_seq": after.submit_seq, "most": MAX_JOBS_PRUNED}
    return [OldJob._make(row) for row in tx.execute(_OLD_JOBS, values)]


def attempt_numbers(tx: Connection, job_id: str) -> list[int]:
    """Return the numbers of a job's attempts."""
    return list(tx.execute(_ATTEMPT_NUMBERS, {"of_job": job_id}).scalars())


def delete_events_of(tx: Connection, job_id: str) -> int:
    """Delete some events of a job, and return how many: fewer than MAX_ROWS_PRUNED when few or none are left."""
    return tx.execute(_SHRINK, {"of_job": job_id, "most": MAX_ROWS_PRUNED}).rowcount


def claim_jobs(tx: Connection, job_ids: Sequence[str], before_s: float) -> list[str]:
    """Return those of some jobs that still can be deleted, and from now on: none of them is tried again."""
    values = {"wanted": list(job_ids), "before_s": before_s}
    tx.execute(_CLAIM, values)
    return list(tx.execute(_CLAIMED, values).scalars())


def delete_jobs(tx: Connection, job_ids: Sequence[str], before_s: float) -> int:
    """Delete those of some jobs that ended before a Unix time, with all that belongs to them, and return how many."""
    rows = tx.execute(_STILL_OLD, {"wanted": list(job_ids), "before_s": before_s}).all()
    ids = [row.id for row in rows]
    if not ids:
        return 0
    for table in (decision, checkpoint, compute_record, replacement, attempt):
        tx.execute(delete(table).where(table.c.job_id.in_(ids)))
    tx.execute(delete(event).where(event.c.job_id.in_(ids), event.c.seq < _LAST_EVENT))
    tx.execute(delete(job).where(job.c.id.in_(ids)))
    insert_if_absent(tx, pruned, {"one": 1, "jobs": 0, "estimates_s": 0.0})
    tx.execute(_ADD, {"more": len(ids), "more_s": sum(row.estimate_s for row in rows)})
    return len(ids)


def delete_events(tx: Connection, before_s: float, after_seq: int) -> PrunedRows:
    """Delete the events among the next ones that are older than a Unix time, but for those of jobs not yet ended."""
    return _delete_page(tx, event, before_s, after_seq, event.c.seq < _LAST_EVENT)


def delete_decisions(tx: Connection, before_s: float, after_seq: int) -> PrunedRows:
    """Delete the decisions among the next ones that are older than a Unix time, but for those of jobs not yet ended."""
    return _delete_page(tx, decision, before_s, after_seq)


def count_old(tx: Connection, table: Table, before_s: float) -> int:
    """Return how many jobs, events or decisions could be deleted; reads all of them."""
    if table is job:
        return int(tx.execute(_COUNT_JOBS, {"before_s": before_s}).scalar_one())
    alone = (event.c.seq < _LAST_EVENT,) if table is event else ()
    old = select(func.count()).select_from(table).where(table.c.at_s < before_s, _ended(table), *alone)
    return int(tx.execute(old).scalar_one())


def _delete_page(
    tx: Connection, table: Table, before_s: float, after_seq: int, *conditions: ColumnElement[bool]
) -> PrunedRows:
    """Delete the old ones among the next rows of a table that is numbered in the order of time."""
    rows = tx.execute(
        select(table.c.seq, table.c.at_s).where(table.c.seq > after_seq).order_by(table.c.seq).limit(MAX_ROWS_PRUNED)
    ).all()
    if not rows:
        return PrunedRows(after_seq, 0, is_last=True)
    last = rows[-1].seq
    within = (table.c.seq > after_seq, table.c.seq <= last, table.c.at_s < before_s)
    deleted = tx.execute(delete(table).where(*within, _ended(table), *conditions)).rowcount
    return PrunedRows(last, deleted, is_last=len(rows) < MAX_ROWS_PRUNED or rows[-1].at_s >= before_s)


def _ended(table: Table) -> ColumnElement[bool]:
    """Return the condition that a row belongs to no job that has not ended."""
    return ~exists().where(job.c.id == table.c.job_id, job.c.state.in_(_OPEN_STATES))
