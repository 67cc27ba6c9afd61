"""Leases: who may write as what. A lease that has expired can be taken, and each taking raises its token.

The token is the fence of all that its holder writes: a holder that wakes up after another took over still has the
old token, and `check_fence` refuses it.
"""

import time
from typing import NamedTuple

from sqlalchemy import BindParameter, Connection, and_, bindparam, func, or_, select, update

from .engines import FencedError
from .schema import insert_if_absent, lease

SCHEDULER_LEASE = "scheduler"


class LeaseRow(NamedTuple):
    """A lease as it stands."""

    owner: str  # the last holder, "" if there was none
    token: int
    expires_s: float  # Unix time by `clock`; 0 if it was given up, or never taken


NO_LEASE_ROW = LeaseRow("", 0, 0.0)

_LEASE_NAME: BindParameter[str] = bindparam("held_name")
_TOKEN: BindParameter[int] = bindparam("held_token")
# FOR SHARE: on PostgreSQL a takeover waits for the transactions that the old holder has begun.
_HELD = select(lease.c.token).where(lease.c.name == _LEASE_NAME, lease.c.token == _TOKEN).with_for_update(read=True)
_LEASE_ROW = select(*(lease.c[name] for name in LeaseRow._fields)).where(lease.c.name == _LEASE_NAME)
_LEFT = and_(*(lease.c[name] == bindparam(f"left_{name}") for name in LeaseRow._fields))
_TAKE = (
    update(lease)
    .where(lease.c.name == _LEASE_NAME, or_(lease.c.expires_s <= bindparam("now_s"), _LEFT))
    .values(owner=bindparam("owner"), token=lease.c.token + 1, expires_s=bindparam("expires_s"))
    .returning(lease.c.token)
)
_EXTEND = (
    update(lease)
    .where(lease.c.name == _LEASE_NAME, lease.c.token == _TOKEN)
    .values(expires_s=bindparam("expires_s"))
    .returning(lease.c.token)
)
_EXPIRES = select(lease.c.expires_s).where(lease.c.name == _LEASE_NAME)
_CLOCK = select(func.extract("epoch", func.clock_timestamp()))


def clock(tx: Connection) -> float:
    """Return the time of the database's host, the only one by which leases are compared: Unix time in seconds."""
    if tx.dialect.name == "sqlite":
        return time.time()
    return float(tx.execute(_CLOCK).scalar_one())


def lease_row(tx: Connection, name: str) -> LeaseRow:
    """Return how a lease stands."""
    row = tx.execute(_LEASE_ROW, {"held_name": name}).first()
    return NO_LEASE_ROW if row is None else LeaseRow._make(row)


def is_held(tx: Connection, name: str) -> bool:
    """Return whether a lease is held."""
    expires_s = tx.execute(_EXPIRES, {"held_name": name}).scalar_one_or_none()
    return expires_s is not None and expires_s > clock(tx)


def acquire(
    tx: Connection, name: str, owner: str, now_s: float, ttl_s: float, *, left: LeaseRow = NO_LEASE_ROW
) -> int | None:
    """Take a lease that is free.

    Args:
        tx: Transaction.
        name: Of the lease.
        owner: Who takes it, for people.
        now_s: By `clock`.
        ttl_s: Seconds until it expires if it is not renewed.
        left: The lease as it was read by one who knows that its owner is gone; if it still stands so, it can be taken
            before it expires.

    Returns:
        The token, larger than all before; None if the lease is held.
    """
    insert_if_absent(tx, lease, {"name": name, "owner": "", "token": 0, "expires_s": 0.0})
    parameters = {"held_name": name, "owner": owner, "now_s": now_s, "expires_s": now_s + ttl_s}
    parameters |= {f"left_{field}": value for field, value in left._asdict().items()}
    return tx.execute(_TAKE, parameters).scalar_one_or_none()


def renew(tx: Connection, name: str, token: int, now_s: float, ttl_s: float) -> bool:
    """Hold a lease for longer and return whether it still was held; one that expired untaken goes on as well."""
    return _extend(tx, name, token, now_s + ttl_s)


def give_up(tx: Connection, name: str, token: int) -> bool:
    """Let others take a lease at once and return whether it still was held."""
    return _extend(tx, name, token, 0.0)


def check_fence(tx: Connection, fence: int, name: str = SCHEDULER_LEASE) -> None:
    """Make sure that a lease still carries a token, until the transaction ends.

    Raises:
        FencedError: If another holder has taken the lease.
    """
    if tx.execute(_HELD, {"held_name": name, "held_token": fence}).first() is None:
        raise FencedError(f"the lease {name!r} does not carry token {fence} any more: another process holds it")


def _extend(tx: Connection, name: str, token: int, expires_s: float) -> bool:
    parameters = {"held_name": name, "held_token": token, "expires_s": expires_s}
    return tx.execute(_EXTEND, parameters).first() is not None
