"""The queue as the store knows it: how many jobs wait, whose they are, and which of them stand before another."""

from sqlalchemy import Connection, and_, bindparam, case, func, or_, select

from ..states import Desired, JobState
from .jobs import JobRow
from .schema import job

LAST = 2**62  # a number of submission that no job has yet

_WAITS = and_(job.c.state == JobState.QUEUED, job.c.desired == Desired.RUN, job.c.not_before_s <= bindparam("now_s"))
# The order of `recall.queue_key`: by priority, stopped ones first, the last to come back before the others.
_STOPPED = job.c.attempt > 0
_BACK_S = case((job.c.not_before_s > job.c.entered_s, job.c.not_before_s), else_=job.c.entered_s)
_BEFORE_A_STOPPED_ONE = and_(
    _STOPPED,
    or_(
        bindparam("back_s") < _BACK_S,
        and_(bindparam("back_s") == _BACK_S, job.c.submit_seq > bindparam("submit_seq")),
    ),
)
_BEFORE_ANOTHER = or_(_STOPPED, job.c.submit_seq < bindparam("submit_seq"))
_AHEAD = select(func.count()).where(_WAITS)
_HIGHER, _SAME = job.c.priority > bindparam("priority"), job.c.priority == bindparam("priority")
_AHEAD_OF_A_STOPPED_ONE = _AHEAD.where(
    job.c.id != bindparam("of_job"), or_(_HIGHER, and_(_SAME, _BEFORE_A_STOPPED_ONE))
)
_AHEAD_OF_ANOTHER = _AHEAD.where(or_(_HIGHER, and_(_SAME, _BEFORE_ANOTHER)))
_QUEUED = select(func.count()).where(job.c.owner == bindparam("of_owner"), job.c.state == JobState.QUEUED)


def queued_of(tx: Connection, owner: str) -> int:
    """Return how many jobs of an owner are queued."""
    count: int = tx.execute(_QUEUED, {"of_owner": owner}).scalar_one()
    return count


def jobs_ahead(tx: Connection, row: JobRow, now_s: float) -> int:
    """Return how many waiting jobs stand before one in the queue; a regime of order may let others pass."""
    if not row.attempt:
        return jobs_before(tx, row.priority, row.submit_seq, now_s)
    values = {
        "of_job": row.id, "now_s": now_s, "priority": row.priority, "submit_seq": row.submit_seq,
        "back_s": max(row.entered_s, row.not_before_s),
    }  # fmt: skip
    count: int = tx.execute(_AHEAD_OF_A_STOPPED_ONE, values).scalar_one()
    return count


def jobs_before(tx: Connection, priority: int, submit_seq: int, now_s: float) -> int:
    """Return how many waiting jobs stand before one that has never run, which may not even be submitted."""
    values = {"now_s": now_s, "priority": priority, "submit_seq": submit_seq}
    count: int = tx.execute(_AHEAD_OF_ANOTHER, values).scalar_one()
    return count


def owners_of(tx: Connection, jobs: list[str]) -> dict[str, str]:
    """Return the owner of each of some jobs."""
    return {row.id: row.owner for row in tx.execute(select(job.c.id, job.c.owner).where(job.c.id.in_(jobs)))}
