"""How long the iterations of each job computed on each type of node.

Source: SPEC F1, F2.
"""

from collections.abc import Mapping
from typing import NamedTuple

from sqlalchemy import Connection, bindparam, select

from ..database.schema import compute_record
from ..rows.upsert import put_all


class ComputeRecord(NamedTuple):
    """How long iterations of a job computed on one type of node, over all its attempts."""

    job_id: str
    kind: str  # node type
    iterations: int
    mean_s: float
    last_s: tuple[float, ...]  # the newest last


_OF_JOB = (
    select(*(compute_record.c[name] for name in ComputeRecord._fields))
    .where(compute_record.c.job_id == bindparam("of_job"))
    .order_by(compute_record.c.kind)
)


def records_of(tx: Connection, job_id: str) -> list[ComputeRecord]:
    """Return what is recorded of a job, by node type."""
    rows = tx.execute(_OF_JOB, {"of_job": job_id})
    return [ComputeRecord(row.job_id, row.kind, row.iterations, row.mean_s, tuple(row.last_s)) for row in rows]


def put_records(tx: Connection, job_id: str, records: Mapping[str, tuple[int, float, tuple[float, ...]]]) -> None:
    """Write what is recorded of a job now, by node type."""
    rows = [
        {"job_id": job_id, "kind": kind, "iterations": count, "mean_s": mean_s, "last_s": list(last_s)}
        for kind, (count, mean_s, last_s) in sorted(records.items())
    ]
    put_all(tx, compute_record, rows)
