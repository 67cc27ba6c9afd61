"""Reservations: one row for each GPU that is not free."""

from collections.abc import Collection
from typing import NamedTuple

from sqlalchemy import Connection, bindparam, delete, insert, select, update
from sqlalchemy.exc import IntegrityError

from ..backends.protocol import Placement
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


def reserve(tx: Connection, job_id: str, number: int, placement: Placement, at_s: float) -> None:
    """Reserve all GPUs of a placement for an attempt.

    Raises:
        TakenError: If one of them is reserved; the caller has to undo the rest.
    """
    rows = [
        ReservationRow(share.node, gpu, job_id, number, Kind.HELD, at_s)._asdict()
        for share in placement
        for gpu in share.gpus
    ]
    try:
        tx.execute(_INSERT, rows)
    except IntegrityError as error:
        raise TakenError(f"a GPU of the placement of job {job_id} is reserved for another attempt") from error


def free(tx: Connection, job_id: str, number: int, quarantine: Collection[str], at_s: float) -> None:
    """Free the GPUs of an attempt, but put those of some nodes into quarantine."""
    parameters = {"of_job": job_id, "at_number": number}
    if quarantine:
        silent = update(reservation).where(*_OF_ATTEMPT, reservation.c.node.in_(sorted(quarantine)))
        tx.execute(silent.values(kind=Kind.QUARANTINE, since_s=at_s), parameters)
    tx.execute(_FREE, parameters)


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
