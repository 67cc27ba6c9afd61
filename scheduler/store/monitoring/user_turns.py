"""When users last had their turns in the queue, at each priority.

Source: SPEC C9.
"""

from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy import Connection, delete, func, select

from ..database.schema import job, user_turn
from ..rows.upsert import put_all


class UserTurn(NamedTuple):
    """The last turns of a user: when, and their numbers, by which turns of one moment are told apart; 0 for none."""

    owner: str
    priority: int
    led_s: float  # a job of theirs started that passed none
    led: int
    started_s: float  # a job of theirs started
    started: int


_ALL = select(*(user_turn.c[name] for name in UserTurn._fields))


def user_turns(tx: Connection) -> dict[tuple[str, int], UserTurn]:
    """Return the last turns of all users, by owner and priority."""
    return {row[:2]: row for row in (UserTurn._make(it) for it in tx.execute(_ALL))}


def put_turns(tx: Connection, turns: Sequence[UserTurn]) -> None:
    """Write the last turns of some users; of one that is named twice, the later."""
    last = {row[:2]: row for row in turns}
    put_all(tx, user_turn, [row._asdict() for row in last.values()])


def delete_turns(tx: Connection, before_s: float) -> int:
    """Delete the turns before a Unix time of users who have no job any more, and return how many users these are."""
    has_jobs = select(func.count()).where(job.c.owner == user_turn.c.owner).scalar_subquery() > 0
    return tx.execute(delete(user_turn).where(user_turn.c.started_s < before_s, ~has_jobs)).rowcount
