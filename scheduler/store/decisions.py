"""Decisions: what a policy saw, what it chose, and why; placements can be explained and learned from afterwards.

Source: SPEC R9.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sqlalchemy import Connection, bindparam, func, insert, select, update

from ...cluster.model.placement import Placement
from .jobs import MANY
from .schema import attempt, decision


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
    observation: bytes | None  # little-endian float32, choice by choice
    mask: bytes | None  # one byte an action
    log_probability: bytes | None  # little-endian float32, one an action; -inf where it was closed
    past: bytes | None  # what led to it, as scheduler/mirror/journal.py writes it
    took_s: float


class DecisionRow(NamedTuple):
    """A decision, without what it was made from."""

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
    took_s: float
    outcome: str  # exit class of the attempt that came of it, "" until that is known


class WholeDecision(NamedTuple):
    """A decision with all that one needs to learn from it, and when the attempt began and ended that came of it."""

    row: DecisionRow
    observation: bytes | None
    mask: bytes | None
    log_probability: bytes | None
    past: bytes | None
    opened_s: float | None
    started_s: float | None
    ended_s: float | None


_DECISION_FIELDS = [decision.c[name] for name in DecisionRow._fields]
_INSERT_ALL = insert(decision)
_DECISIONS_OF_JOB = select(*_DECISION_FIELDS).where(decision.c.job_id == bindparam("of_job")).order_by(decision.c.seq)
_LAST_SEQS = (
    select(func.max(decision.c.seq))
    .where(decision.c.job_id.in_(bindparam("of_jobs", expanding=True)))
    .group_by(decision.c.job_id)
)
_LAST_OF_JOBS = select(*_DECISION_FIELDS).where(decision.c.seq.in_(_LAST_SEQS))
_ATTEMPT_OF_DECISION = (attempt.c.job_id == decision.c.job_id) & (attempt.c.number == decision.c.number)
_WHOLE_DECISIONS = (
    select(
        *_DECISION_FIELDS, decision.c.observation, decision.c.mask, decision.c.log_probability, decision.c.past,
        attempt.c.opened_s, attempt.c.started_s, attempt.c.ended_s,
    )
    .select_from(decision.outerjoin(attempt, _ATTEMPT_OF_DECISION))
    .where(decision.c.seq > bindparam("after"))
    .order_by(decision.c.seq)
    .limit(bindparam("most"))
)  # fmt: skip
_SETTLE = (
    update(decision)
    .where(decision.c.job_id == bindparam("of_job"), decision.c.number == bindparam("of_number"))
    .values(outcome=bindparam("new_outcome"))
)


def add_decisions(tx: Connection, new: Sequence[NewDecision]) -> None:
    """Store decisions, in the transaction of what came of them."""
    if new:
        tx.execute(_INSERT_ALL, [{**each._asdict(), "outcome": ""} for each in new])


def settle_decisions(tx: Connection, outcomes: Sequence[tuple[str, int, str]]) -> None:
    """Write down what came of decisions: of each the job, the number of the attempt, and its exit class."""
    if outcomes:
        tx.execute(
            _SETTLE, [dict(zip(("of_job", "of_number", "new_outcome"), outcome, strict=True)) for outcome in outcomes]
        )


def decisions_of(tx: Connection, job_id: str) -> list[DecisionRow]:
    """Return the decisions on a job in their order."""
    return [DecisionRow._make(row) for row in tx.execute(_DECISIONS_OF_JOB, {"of_job": job_id})]


def decisions_after(tx: Connection, seq: int, limit: int) -> list[WholeDecision]:
    """Return the first decisions behind one, in their order, with all that is kept of them.

    Args:
        tx: Transaction.
        seq: Number of the last one that is known, 0 for none.
        limit: Most decisions to return.
    """
    rows = tx.execute(_WHOLE_DECISIONS, {"after": seq, "most": limit})
    split = len(_DECISION_FIELDS)
    return [WholeDecision(DecisionRow._make(row[:split]), *row[split:]) for row in rows]


def last_decisions_of(tx: Connection, job_ids: Sequence[str]) -> dict[str, DecisionRow]:
    """Return the last decision on each of some jobs on which there is one."""
    parts = [job_ids[at : at + MANY] for at in range(0, len(job_ids), MANY)]
    rows = [DecisionRow._make(row) for part in parts for row in tx.execute(_LAST_OF_JOBS, {"of_jobs": part})]
    return {row.job_id: row for row in rows}
