"""Whether a store takes changes at all: tried with a job that nobody submitted and nobody ever sees."""

from contextlib import suppress

from sqlalchemy import Connection

from ..model.placement import Share
from ..model.states import AttemptState
from .opening import Store
from .rows.attempts import AttemptColumns, Opening
from .rows.decisions import NewDecision
from .rows.jobs import NewJob, insert_job
from .transitions import AttemptChange, Changes, Opened, opened_attempt, write_changes

NOBODY = ""  # no job has this id, and no node this name


class _UndoError(Exception):
    """What was tried is to leave no trace."""


def try_out(store: Store, fence: int, at_s: float, writer: str) -> None:
    """Submit a job, start it, and take all of it back: it writes to each table to which changes of jobs write.

    Args:
        store: The store.
        fence: Token of the scheduler's lease.
        at_s: Unix time.
        writer: Role that writes.

    Raises:
        FencedError: If another scheduler has taken over.
        Exception: What the store has against it; it would have the same against any job.
    """

    def work(tx: Connection) -> None:
        job = insert_job(tx, NewJob(NOBODY, NOBODY, NOBODY, {}, 0, 1, 1.0, at_s), writer=writer)
        opened = Opened(job, Opening(NOBODY, (Share(NOBODY, (0,)),), 1.0, 0.0), "")
        decision = NewDecision(job.id, 1, at_s, "", "", "", None, None, {}, None, None, None, None, 0.0)
        attempt = opened_attempt(opened, at_s)
        launched = AttemptChange(attempt, AttemptState.LAUNCHED, attempt.contact, "", AttemptColumns())
        for changes in (Changes(opened=[opened], decisions=[decision]), Changes(attempts=[launched])):
            write_changes(tx, fence, changes, at_s=at_s, writer=writer)
        raise _UndoError

    with suppress(_UndoError):
        store.write(work)
