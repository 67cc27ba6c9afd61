"""What is kept of rings: GPUs that they were given beside those of their start, and the last state of each.

A GPU that a ring holds is reserved as any other; what it gave back is free.

Source: SPEC F7, F8; docs/decisions/0015; docs/failover.md.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Connection, bindparam, select

from ...cluster.model.placement import Placement, Share
from ..model.job import NewEvent, ReservationRow
from ..model.states import AttemptState
from .attempts import AttemptRow, free_gpus, held_gpus, is_reserved, reserve_gpu
from .database import StaleWriteError
from .events import append, changes_to, check_fence
from .schema import attempt, replacement

SEAT_EVENT = "seat"  # kind of events
TAKEN, EMPTY, LEFT, FOUND = "taken", "empty", "left", "found"
CHECKED, REJECTED = "checked", "rejected"
BACKUP, SLOW = "backup", "slow"


class ReplacementRow(NamedTuple):
    """A GPU that a ring was given while it ran."""

    job_id: str
    number: int  # of the attempt
    rank: int  # of the process there, behind those that the attempt began with
    node: str
    gpu: int  # index on the node
    at_s: float  # Unix time
    choice: Mapping[str, Any]  # among whom it was chosen, and by what; docs/failover.md


_REPLACEMENTS = select(*(replacement.c[name] for name in ReplacementRow._fields)).order_by(
    replacement.c.job_id, replacement.c.number, replacement.c.rank
)
_REPLACEMENTS_OF_JOB = _REPLACEMENTS.where(replacement.c.job_id == bindparam("of_job"))
_ATTEMPT_STATE = (
    select(attempt.c.state)
    .where(attempt.c.job_id == bindparam("of_job"), attempt.c.number == bindparam("at_number"))
    .with_for_update(key_share=True)
)


def replacements_of(tx: Connection, job_id: str, number: int | None = None) -> list[ReplacementRow]:
    """Return what the rings of a job were given, by attempt and rank; of one attempt alone if that is named."""
    rows = [ReplacementRow._make(row) for row in tx.execute(_REPLACEMENTS_OF_JOB, {"of_job": job_id})]
    return rows if number is None else [row for row in rows if row.number == number]


def hold_ring_gpu(tx: Connection, row: ReservationRow, event: NewEvent) -> None:
    """Reserve a GPU that is checked before a ring gets it, if it gets it at all.

    Raises:
        FencedError: If another scheduler has taken over.
        StaleWriteError: If the attempt does not run any more.
        TakenError: If the GPU is reserved.
    """
    _check_runs(tx, row.job_id, row.number, event)
    reserve_gpu(tx, row)
    append(tx, event)


def give_ring_gpu(tx: Connection, row: ReplacementRow, event: NewEvent, *, is_held: bool = False) -> None:
    """Reserve a GPU for a ring that runs, unless it is held for it already, and write down why.

    Raises:
        FencedError: If another scheduler has taken over.
        StaleWriteError: If the attempt does not run any more, or does not hold what it should.
        TakenError: If the GPU is reserved.
    """
    _check_runs(tx, row.job_id, row.number, event)
    if not is_held:
        reserve_gpu(tx, ReservationRow(row.node, row.gpu, row.job_id, row.number, row.at_s))
    elif not is_reserved(tx, row.job_id, row.number, (row.node, row.gpu)):
        raise StaleWriteError(f"GPU {row.gpu} of {row.node} is not held by attempt {row.number} of job {row.job_id}")
    tx.execute(replacement.insert(), row._asdict())
    append(tx, event)


def free_ring_gpus(
    tx: Connection, job_id: str, number: int, places: Sequence[tuple[str, int]], event: NewEvent
) -> None:
    """Free GPUs of a ring: all its processes there are proven gone, or there were none, and none will be started.

    Raises:
        FencedError: If another scheduler has taken over.
        StaleWriteError: If the attempt does not run any more.
    """
    _check_runs(tx, job_id, number, event)
    free_gpus(tx, job_id, number, places)
    append(tx, event)


def note_ring_event(tx: Connection, event: NewEvent) -> None:
    """Write down an event about a ring.

    Raises:
        FencedError: If another scheduler has taken over.
        StaleWriteError: If the attempt does not run any more.
    """
    _check_runs(tx, event.job_id or "", event.number or 0, event)
    append(tx, event)


def _check_runs(tx: Connection, job_id: str, number: int, event: NewEvent) -> None:
    if event.fence is None:
        raise ValueError("only the scheduler that leads gives GPUs away")
    check_fence(tx, event.fence)
    if tx.execute(_ATTEMPT_STATE, {"of_job": job_id, "at_number": number}).scalar() is not AttemptState.RUNNING:
        raise StaleWriteError(f"attempt {number} of job {job_id} does not run any more")


RING_EVENT = "ring"  # kind of events
HINT, MOVED, RING_ENDED = "hint", "moved", "ended"


def last_ring_states(tx: Connection, job_id: str) -> dict[int, Mapping[str, Any]]:
    """Return what is kept of the rings of a job that ended, by the number of their attempts.

    Each has `report` (ring/wire.py), `places` (backends/protocol.py) and `gpus`: node and index of each.
    """
    events = changes_to(tx, job_id, RING_EVENT, RING_ENDED)
    return {event.number: event.data for event in events if event.number is not None and event.data is not None}


def gpus_held_by_rings(tx: Connection, job_id: str, attempts: Iterable[AttemptRow]) -> dict[int, Placement]:
    """Return the GPUs that attempts with rings hold, or held last; other attempts are omitted."""
    held = {number: placement_of(end["gpus"]) for number, end in last_ring_states(tx, job_id).items()}
    living = {row.number for row in attempts if row.ended_s is None}
    now = [gpu for gpu in held_gpus(tx) if gpu.job_id == job_id and gpu.number in living]
    return held | {number: placement_of((it.node, it.gpu) for it in now if it.number == number) for number in living}


def placement_of(gpus: Iterable[tuple[str, int]]) -> Placement:
    """Return a placement on some GPUs: node and index of each."""
    nodes: dict[str, list[int]] = {}
    for node, gpu in gpus:
        nodes.setdefault(node, []).append(gpu)
    return tuple(Share(node, tuple(sorted(its))) for node, its in nodes.items())
