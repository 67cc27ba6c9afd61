"""Retention: history past its retention time is deleted, in batches so small that no other writer waits for long.

The files of a job are deleted before its rows. Nothing of a job that has not ended is ever deleted, nor of one with an
attempt that is still to be cleaned up. What cannot be deleted is kept and logged, and does not hold up the rest. What
the scheduler sums up over all jobs is kept in the table `pruned`.
"""

import logging
import shutil
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from sqlalchemy import ColumnElement, Connection, Table, and_, bindparam, delete, exists, func, or_, select, update
from sqlalchemy.exc import SQLAlchemyError

from ..model.states import FINAL, AttemptState, Desired, JobState
from ..settings import RetentionChoice
from ..store.database import Store, StoreError, StoreUnreachableError
from ..store.jobs import ESTIMATE_S
from ..store.schema import (
    attempt,
    checkpoint,
    compute_record,
    decision,
    event,
    insert_if_absent,
    job,
    pruned,
    replacement,
)

log = logging.getLogger(__name__)

DAY_S = 86400.0


class Horizon(NamedTuple):
    """Unix times; what is older is deleted. None keeps all."""

    jobs_s: float | None  # of their ends
    events_s: float | None
    decisions_s: float | None


class Pruned(NamedTuple):
    """How much was deleted; events and decisions that went with their job are not counted."""

    jobs: int
    events: int
    decisions: int


class OldJob(NamedTuple):
    """A job that can be deleted; such jobs are in the order of their ends."""

    id: str
    ended_s: float
    submit_seq: int


FIRST_OLD_JOB = OldJob("", float("-inf"), 0)  # before all others


class PrunedRows(NamedTuple):
    """What became of some rows, in their order."""

    last_seq: int  # of the last that was read
    deleted: int
    is_last: bool  # what follows is younger, or nothing


def horizon_of(choice: RetentionChoice, now_s: float) -> Horizon:
    """Return what is to be deleted at a moment."""
    days = (choice.jobs_days, choice.events_days, choice.decisions_days)
    return Horizon(*(None if each is None else now_s - each * DAY_S for each in days))


def prune(store: Store, folder: Path, horizon: Horizon, goes_on: Callable[[], bool] = lambda: True) -> Pruned:
    """Delete what is older than a horizon.

    Args:
        store: Of the scheduler; one that runs is not disturbed.
        folder: Of the scheduler, with the folders of attempts.
        horizon: What to delete.
        goes_on: Returns whether to continue, before each batch.

    Raises:
        StoreError: If the store does not answer.
    """
    jobs = events = decisions = 0
    if horizon.jobs_s is not None:
        jobs = _prune_jobs(store, folder, horizon.jobs_s, goes_on)
    if horizon.events_s is not None:
        events = _prune_pages(store, event, horizon.events_s, goes_on)
    if horizon.decisions_s is not None:
        decisions = _prune_pages(store, decision, horizon.decisions_s, goes_on)
    if jobs or events or decisions:
        log.info("pruned %d jobs, %d events, %d decisions", jobs, events, decisions)
    return Pruned(jobs, events, decisions)


def count_prunable(store: Store, horizon: Horizon) -> Pruned:
    """Return how much would be deleted, with what would go with its job."""
    tables = (job, event, decision)
    with store.read() as tx:
        return Pruned(
            *(0 if before_s is None else count_old(tx, table, before_s)
              for table, before_s in zip(tables, horizon, strict=True))
        )  # fmt: skip


def remove_files(folder: Path, attempt: str) -> None:
    """Delete all that is left of an attempt in a scheduler's folder: its logs, and the proof that it ended.

    Each backend keeps what it has of an attempt in a folder of its own there, under the attempt's name.

    Raises:
        OSError: If something cannot be deleted.
    """
    for path in folder.glob(f"*/{attempt}"):
        shutil.rmtree(path)


def _prune_jobs(store: Store, folder: Path, before_s: float, goes_on: Callable[[], bool]) -> int:
    deleted, last = 0, FIRST_OLD_JOB
    while goes_on():
        with store.read() as tx:
            batch = old_jobs(tx, before_s, last)
            numbers = {job.id: attempt_numbers(tx, job.id) for job in batch}
        if not batch:
            break
        last = batch[-1]
        deleted += _delete_batch(store, folder, {job.id: numbers[job.id] for job in batch}, before_s, goes_on)
    return deleted


def _delete_batch(
    store: Store, folder: Path, numbers: Mapping[str, list[int]], before_s: float, goes_on: Callable[[], bool]
) -> int:
    """Delete jobs, of which the numbers of their attempts are given; one by one where all at once cannot be deleted."""
    try:
        # Before their files: a job that is tried again needs them.
        claimed = store.write(partial(claim_jobs, job_ids=list(numbers), before_s=before_s))
        gone = [job for job in claimed if _delete_job_files(folder, job, numbers[job])]
        for each in gone:
            _delete_many_events(store, each, goes_on)
        return store.write(partial(delete_jobs, job_ids=gone, before_s=before_s))
    except StoreUnreachableError:
        raise
    except (StoreError, SQLAlchemyError) as error:
        if len(numbers) == 1:
            log.warning("job %s is kept, as its rows cannot be deleted: %s", *numbers, error)
            return 0
    return sum(_delete_batch(store, folder, {job_id: its}, before_s, goes_on) for job_id, its in numbers.items())


def _delete_job_files(folder: Path, job_id: str, numbers: list[int]) -> bool:
    """Delete the files of a job, and return whether none is left: without its rows they could not be found again."""
    try:
        for number in numbers:
            remove_files(folder, f"ls-{job_id}-{number}")
    except OSError as error:
        log.warning("job %s is kept, as its files cannot be deleted: %s", job_id, error)
        return False
    return True


def _delete_many_events(store: Store, job_id: str, goes_on: Callable[[], bool]) -> None:
    """Delete events of a job that has very many: all at once would hold up other writers."""
    while store.write(partial(delete_events_of, job_id=job_id)) == MAX_ROWS_PRUNED and goes_on():
        pass


def _prune_pages(store: Store, table: Table, before_s: float, goes_on: Callable[[], bool]) -> int:
    deleted, page = 0, PrunedRows(0, 0, is_last=False)
    while not page.is_last and goes_on():
        try:
            page = store.write(partial(delete_page, table=table, before_s=before_s, after_seq=page.last_seq))
        except StoreUnreachableError:
            raise
        except (StoreError, SQLAlchemyError) as error:
            log.warning("old rows behind number %d are kept, as they cannot be deleted: %s", page.last_seq, error)
            break
        deleted += page.deleted
    return deleted


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
# The last event always stays: readers of events continue from its number.
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


def count_old(tx: Connection, table: Table, before_s: float) -> int:
    """Return how many jobs, events or decisions could be deleted; reads all of them."""
    if table is job:
        return int(tx.execute(_COUNT_JOBS, {"before_s": before_s}).scalar_one())
    old = select(func.count()).select_from(table).where(table.c.at_s < before_s, *_deletable_conditions(table))
    return int(tx.execute(old).scalar_one())


def delete_page(tx: Connection, table: Table, before_s: float, after_seq: int) -> PrunedRows:
    """Delete the events or decisions among the next ones that are older than a Unix time and of no unended job."""
    rows = tx.execute(
        select(table.c.seq, table.c.at_s).where(table.c.seq > after_seq).order_by(table.c.seq).limit(MAX_ROWS_PRUNED)
    ).all()
    if not rows:
        return PrunedRows(after_seq, 0, is_last=True)
    last = rows[-1].seq
    within = (table.c.seq > after_seq, table.c.seq <= last, table.c.at_s < before_s)
    deleted = tx.execute(delete(table).where(*within, *_deletable_conditions(table))).rowcount
    return PrunedRows(last, deleted, is_last=len(rows) < MAX_ROWS_PRUNED or rows[-1].at_s >= before_s)


def _deletable_conditions(table: Table) -> tuple[ColumnElement[bool], ...]:
    """Return the conditions that a row belongs to no job that has not ended, and is not the last event."""
    is_of_no_open_job = ~exists().where(job.c.id == table.c.job_id, job.c.state.in_(_OPEN_STATES))
    return (is_of_no_open_job, event.c.seq < _LAST_EVENT) if table is event else (is_of_no_open_job,)
