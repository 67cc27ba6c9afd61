"""The queue as the store knows it: how many jobs wait, whose they are, and how many stand before another."""

from collections.abc import Collection

from sqlalchemy import Connection, and_, bindparam, func, select

from ..model.states import Desired, JobState
from ..rules.queue_order import Waiting
from .database.schema import job
from .rows.jobs import MANY, is_named

_WAITS = and_(job.c.state == JobState.QUEUED, job.c.desired == Desired.RUN, job.c.not_before_s <= bindparam("now_s"))
_WAITING = select(*(job.c[name] for name in Waiting._fields)).where(_WAITS)
# Held ones too: they come back to the queue when their owner wants.
_QUEUED = select(func.count()).where(
    job.c.owner == bindparam("of_owner"), job.c.state.in_((JobState.QUEUED, JobState.HELD))
)


def queued_of(tx: Connection, owner: str) -> int:
    """Return how many jobs of an owner are queued or held."""
    count: int = tx.execute(_QUEUED, {"of_owner": owner}).scalar_one()
    return count


def waiting_jobs(tx: Connection, now_s: float) -> list[Waiting]:
    """Return all jobs that stand in the queue, in no order."""
    return [Waiting._make(row) for row in tx.execute(_WAITING, {"now_s": now_s})]


def listed_jobs(
    tx: Connection, states: Collection[JobState], owner: str | None = None, name: str | None = None
) -> list[str]:
    """Return the ids of the jobs in some states, in the order of submission.

    Args:
        tx: Transaction.
        states: The states.
        owner: Only those of one owner.
        name: Only those of this name; `*` stands for any text.
    """
    statement = select(job.c.id).where(job.c.state.in_(sorted(states))).order_by(job.c.submit_seq)
    if owner is not None:
        statement = statement.where(job.c.owner == owner)
    if name is not None:
        statement = statement.where(is_named(name))
    return list(tx.execute(statement).scalars())


def owners_of(tx: Connection, jobs: list[str]) -> dict[str, str]:
    """Return the owner of each of some jobs."""
    parts = [jobs[at : at + MANY] for at in range(0, len(jobs), MANY)]
    return {
        row.id: row.owner
        for part in parts
        for row in tx.execute(select(job.c.id, job.c.owner).where(job.c.id.in_(part)))
    }
