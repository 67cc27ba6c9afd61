"""How long history is kept: what is older is deleted in small batches, the files of a job before its rows.

What cannot be deleted is left and logged, and does not keep the rest from going.
"""

import logging
import shutil
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol

from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from ..settings import RetentionChoice
from ..store.engines import StoreError, StoreUnreachableError
from ..store.opening import Store
from ..store.pruning import (
    FIRST_OLD_JOB,
    MAX_ROWS_PRUNED,
    PrunedRows,
    attempt_numbers,
    claim_jobs,
    count_old,
    delete_decisions,
    delete_events,
    delete_events_of,
    delete_jobs,
    old_jobs,
)
from ..store.schema import decision, event, job

log = logging.getLogger(__name__)

DAY_S = 86400.0


class Horizon(NamedTuple):
    """Unix times; what is older is deleted. None keeps all."""

    jobs_s: float | None  # of their ends
    events_s: float | None
    decisions_s: float | None


class DeletePage(Protocol):
    """Deletes the old ones among the next rows of a table."""

    def __call__(self, tx: Connection, before_s: float, after_seq: int) -> PrunedRows:
        """Return what became of them."""
        ...


class Pruned(NamedTuple):
    """How much was deleted; events and decisions that went with their job are not counted."""

    jobs: int
    events: int
    decisions: int


def horizon_of(choice: RetentionChoice, now_s: float) -> Horizon:
    """Return what is to be deleted at a moment."""
    days = (choice.jobs_days, choice.events_days, choice.decisions_days)
    return Horizon(*(None if each is None else now_s - each * DAY_S for each in days))


def prune(store: Store, folder: Path, horizon: Horizon, goes_on: Callable[[], bool] = lambda: True) -> Pruned:
    """Delete what is older than a horizon.

    Args:
        store: Of the scheduler; one that runs is not disturbed.
        folder: Of the scheduler, with the folders of attempts.
        horizon: What is to go.
        goes_on: Asked before each batch.

    Raises:
        StoreError: If the store does not answer.
    """
    jobs = events = decisions = 0
    if horizon.jobs_s is not None:
        jobs = _prune_jobs(store, folder, horizon.jobs_s, goes_on)
    if horizon.events_s is not None:
        events = _prune_pages(store, delete_events, horizon.events_s, goes_on)
    if horizon.decisions_s is not None:
        decisions = _prune_pages(store, delete_decisions, horizon.decisions_s, goes_on)
    if jobs or events or decisions:
        log.info("pruned %d jobs, %d events, %d decisions", jobs, events, decisions)
    return Pruned(jobs, events, decisions)


def count(store: Store, horizon: Horizon) -> Pruned:
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
            numbers = {it.id: attempt_numbers(tx, it.id) for it in batch}
        if not batch:
            break
        last = batch[-1]
        deleted += _delete_batch(store, folder, {it.id: numbers[it.id] for it in batch}, before_s, goes_on)
    return deleted


def _delete_batch(
    store: Store, folder: Path, numbers: Mapping[str, list[int]], before_s: float, goes_on: Callable[[], bool]
) -> int:
    """Delete jobs, of which the numbers of their attempts are given; one by one where all at once cannot be deleted."""
    try:
        # Before their files: a job that is tried again needs them.
        claimed = store.write(partial(claim_jobs, job_ids=list(numbers), before_s=before_s))
        gone = [it for it in claimed if _has_no_files(folder, it, numbers[it])]
        for each in gone:
            _shrink(store, each, goes_on)
        return store.write(partial(delete_jobs, job_ids=gone, before_s=before_s))
    except StoreUnreachableError:
        raise
    except (StoreError, SQLAlchemyError) as error:
        if len(numbers) == 1:
            log.warning("job %s is kept, as its rows cannot be deleted: %s", *numbers, error)
            return 0
    return sum(_delete_batch(store, folder, {job_id: its}, before_s, goes_on) for job_id, its in numbers.items())


def _has_no_files(folder: Path, job_id: str, numbers: list[int]) -> bool:
    """Delete the files of a job, and say whether none is left: without its rows nobody would find them again."""
    try:
        for number in numbers:
            remove_files(folder, f"ls-{job_id}-{number}")
    except OSError as error:
        log.warning("job %s is kept, as its files cannot be deleted: %s", job_id, error)
        return False
    return True


def _shrink(store: Store, job_id: str, goes_on: Callable[[], bool]) -> None:
    """Delete events of a job that has very many: all at once would hold up everybody."""
    while store.write(partial(delete_events_of, job_id=job_id)) == MAX_ROWS_PRUNED and goes_on():
        pass


def _prune_pages(store: Store, delete_page: DeletePage, before_s: float, goes_on: Callable[[], bool]) -> int:
    deleted, page = 0, PrunedRows(0, 0, is_last=False)
    while not page.is_last and goes_on():
        try:
            page = store.write(partial(delete_page, before_s=before_s, after_seq=page.last_seq))
        except StoreUnreachableError:
            raise
        except (StoreError, SQLAlchemyError) as error:
            log.warning("old rows behind number %d are kept, as they cannot be deleted: %s", page.last_seq, error)
            break
        deleted += page.deleted
    return deleted
