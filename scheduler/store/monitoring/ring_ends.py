"""What is kept of rings: how each stood last, and which GPUs it had then. The backend forgets both with its attempt.

Source: docs/failover.md.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import Connection

from ...model.placement import Placement, Share
from ..rows.attempts import AttemptRow
from ..rows.events import such_events
from ..rows.reservations import held_gpus

RING = "ring"  # kind of events
HINT, ENDED = "hint", "ended"


def ring_ends(tx: Connection, job_id: str) -> dict[int, Mapping[str, Any]]:
    """Return what is kept of the rings of a job that ended, by the number of their attempts.

    Each has `report` (failover/wire.py), `places` (backends/protocol.py) and `gpus`: node and index of each.
    """
    events = such_events(tx, job_id, RING, ENDED)
    return {it.number: it.data for it in events if it.number is not None and it.data is not None}


def held_by_rings(tx: Connection, job_id: str, attempts: Iterable[AttemptRow]) -> dict[int, Placement]:
    """Return the GPUs that attempts with rings hold, or held last; others are left out.

    Args:
        tx: Transaction.
        job_id: Of a job with rings.
        attempts: Of that job.
    """
    held = {number: _placement(it["gpus"]) for number, it in ring_ends(tx, job_id).items()}
    living = {row.number for row in attempts if row.ended_s is None}
    now = [it for it in held_gpus(tx) if it.job_id == job_id and it.number in living]
    return held | {number: _placement((it.node, it.gpu) for it in now if it.number == number) for number in living}


def _placement(gpus: Iterable[tuple[str, int]]) -> Placement:
    nodes: dict[str, list[int]] = {}
    for node, gpu in gpus:
        nodes.setdefault(node, []).append(gpu)
    return tuple(Share(node, tuple(sorted(its))) for node, its in nodes.items())
