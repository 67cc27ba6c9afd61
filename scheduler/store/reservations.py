"""Reservations: one row for each GPU that is not free."""

from collections.abc import Collection, Sequence
from typing import NamedTuple

from sqlalchemy import Connection, bindparam, delete, insert, select, update
from sqlalchemy.exc import IntegrityError

from .attempts import AttemptRow
from .errors import TakenError
from .events import NewEvent, append
from .leases import check_fence
from .schema import Kind, reservation

QUARANTINE = "quarantine"  # kind of events


class ReservationRow(NamedTuple):
    """A GPU that is not free."""

    node: str
    gpu: int  # index on the node
    job_id: str
    number: int  # of the attempt
    kind: Kind
    since_s: float


_INSERT = insert(reservation)
_ROWS = select(*(reservation.c[name] for name in ReservationRow._fields)).order_by(
    reservation.c.node, reservation.c.gpu
)
_OF_ATTEMPT = (reservation.c.job_id == bindparam("of_job"), reservation.c.number == bindparam("at_number"))
_FREE = delete(reservation).where(*_OF_ATTEMPT, reservation.c.kind == Kind.HELD)


def held_gpus(tx: Connection) -> list[ReservationRow]:
    """Return all GPUs that are not free, held or in quarantine, by node and index."""
    return [ReservationRow._make(row) for row in tx.execute(_ROWS)]


def reserve(tx: Connection, attempts: Sequence[AttemptRow]) -> None:
    """Reserve all GPUs of attempts.

    Raises:
        TakenError: If one of them is reserved; the caller has to undo the rest.
    """
    rows = [
        ReservationRow(share.node, gpu, row.job_id, row.number, Kind.HELD, row.opened_s)._asdict()
        for row in attempts
        for share in row.placement
        for gpu in share.gpus
    ]
    try:
        tx.execute(_INSERT, rows)
    except IntegrityError as error:
        raise TakenError("a GPU of a placement is reserved for another attempt") from error


def free(tx: Connection, attempts: Sequence[tuple[AttemptRow, Collection[str]]], at_s: float) -> None:
    """Free the GPUs of attempts, but put those of some nodes into quarantine.

    Args:
        tx: Transaction.
        attempts: Each with the nodes whose GPUs are not freed.
        at_s: Unix time.
    """
    for row, quarantine in attempts:
        if quarantine:
            silent = update(reservation).where(*_OF_ATTEMPT, reservation.c.node.in_(sorted(quarantine)))
            tx.execute(silent.values(kind=Kind.QUARANTINE, since_s=at_s), _named(row))
    if attempts:
        tx.execute(_FREE, [_named(row) for row, _ in attempts])


def _named(row: AttemptRow) -> dict[str, object]:
    return {"of_job": row.job_id, "at_number": row.number}


def free_quarantine(tx: Connection, fence: int, node: str, *, at_s: float, cause: str, writer: str) -> int:
    """Free the GPUs of a node that are in quarantine, once nothing runs there; return how many they were.

    Raises:
        FencedError: If another scheduler has taken over.
    """
    check_fence(tx, fence)
    in_quarantine = delete(reservation).where(reservation.c.node == node, reservation.c.kind == Kind.QUARANTINE)
    gpus = tx.execute(in_quarantine).rowcount
    if gpus:
        entry = NewEvent(QUARANTINE, writer, at_s, was=Kind.QUARANTINE.value, fence=fence, cause=cause)
        append(tx, entry._replace(data={"node": node, "gpus": gpus}))
    return gpus
