"""Decisions: what a policy saw, what it chose, and why; placements can be explained and learned from afterwards."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sqlalchemy import Connection, bindparam, insert, select, update

from ..backends.protocol import Placement
from .leases import check_fence
from .schema import decision


class NewDecision(NamedTuple):
    """A decision to be stored."""

    job_id: str
    number: int | None  # of the attempt that came of it, None if none did
    at_s: float  # Unix time
    policy: str
    policy_version: str
    mode: str
    placement: Placement | None  # None if it chose to wait
    fallback: Placement | None
    explanation: Mapping[str, object]
    observation: bytes | None  # little-endian float32
    mask: bytes | None  # one byte an action
    log_probability: bytes | None  # little-endian float32, one an action
    took_s: float


class DecisionRow(NamedTuple):
    """A decision; the fields are those of NewDecision between its number and what came of it."""

    seq: int
    job_id: str
    number: int | None
    at_s: float
    policy: str
    policy_version: str
    mode: str
    placement: Placement | None
    fallback: Placement | None
    explanation: Mapping[str, object]
    observation: bytes | None
    mask: bytes | None
    log_probability: bytes | None
    took_s: float
    outcome: str  # "" until it is known


_INSERT_ALL = insert(decision)
_ROWS = select(*(decision.c[name] for name in DecisionRow._fields)).order_by(decision.c.seq)
_OF_JOB = _ROWS.where(decision.c.job_id == bindparam("of_job"))
_LAST_OF_JOB = _OF_JOB.order_by(None).order_by(decision.c.seq.desc()).limit(1)
_SETTLE = update(decision).where(decision.c.seq == bindparam("at_seq")).values(outcome=bindparam("outcome"))


def add_decisions(tx: Connection, new: Sequence[NewDecision]) -> None:
    """Store decisions, in the transaction of what came of them."""
    if new:
        tx.execute(_INSERT_ALL, [{**each._asdict(), "outcome": ""} for each in new])


def settle_decision(tx: Connection, fence: int, seq: int, outcome: str) -> None:
    """Write down what came of a decision.

    Raises:
        FencedError: If another scheduler has taken over.
    """
    check_fence(tx, fence)
    tx.execute(_SETTLE, {"at_seq": seq, "outcome": outcome})


def decisions_of(tx: Connection, job_id: str) -> list[DecisionRow]:
    """Return the decisions on a job in their order."""
    return [DecisionRow._make(row) for row in tx.execute(_OF_JOB, {"of_job": job_id})]


def last_decision_of(tx: Connection, job_id: str) -> DecisionRow | None:
    """Return the last decision on a job, None if there is none."""
    row = tx.execute(_LAST_OF_JOB, {"of_job": job_id}).first()
    return None if row is None else DecisionRow._make(row)
