"""Reservations: one row for each GPU that is not free."""

from collections.abc import Sequence

from sqlalchemy import Connection, bindparam, delete, insert, select
from sqlalchemy.exc import IntegrityError

from ...model.placement import ReservationRow
from ..database.errors import TakenError
from ..database.schema import reservation
from .attempts import AttemptRow

_INSERT = insert(reservation)
_ROWS = select(*(reservation.c[name] for name in ReservationRow._fields)).order_by(
    reservation.c.node, reservation.c.gpu
)
_OF_ATTEMPT = (reservation.c.job_id == bindparam("of_job"), reservation.c.number == bindparam("at_number"))
_FREE = delete(reservation).where(*_OF_ATTEMPT)
_PLACE = (reservation.c.node == bindparam("at_node"), reservation.c.gpu == bindparam("at_gpu"))
_IS_RESERVED = select(reservation.c.node).where(*_OF_ATTEMPT, *_PLACE)
_FREE_ONE = _FREE.where(*_PLACE)


def held_gpus(tx: Connection) -> list[ReservationRow]:
    """Return all GPUs that are not free, by node and index."""
    return [ReservationRow._make(row) for row in tx.execute(_ROWS)]


def reserve(tx: Connection, attempts: Sequence[AttemptRow]) -> None:
    """Reserve all GPUs of attempts.

    Raises:
        TakenError: If one of them is reserved; the caller has to undo the rest.
    """
    rows = [
        ReservationRow(share.node, gpu, row.job_id, row.number, row.opened_s)._asdict()
        for row in attempts
        for share in row.placement
        for gpu in share.gpus
    ]
    try:
        tx.execute(_INSERT, rows)
    except IntegrityError as error:
        raise TakenError("a GPU of a placement is reserved for another attempt") from error


def reserve_gpu(tx: Connection, row: ReservationRow) -> None:
    """Reserve one GPU more for an attempt.

    Raises:
        TakenError: If it is reserved.
    """
    try:
        tx.execute(_INSERT, row._asdict())
    except IntegrityError as error:
        raise TakenError(f"GPU {row.gpu} of {row.node} is reserved for another attempt") from error


def is_reserved(tx: Connection, job_id: str, number: int, place: tuple[str, int]) -> bool:
    """Say whether an attempt holds a GPU."""
    of = {"of_job": job_id, "at_number": number, "at_node": place[0], "at_gpu": place[1]}
    return tx.execute(_IS_RESERVED, of).first() is not None


def free_gpus(tx: Connection, job_id: str, number: int, places: Sequence[tuple[str, int]]) -> None:
    """Free some GPUs of an attempt."""
    if places:
        of = {"of_job": job_id, "at_number": number}
        tx.execute(_FREE_ONE, [{**of, "at_node": node, "at_gpu": gpu} for node, gpu in places])


def free(tx: Connection, attempts: Sequence[AttemptRow]) -> None:
    """Free all GPUs of attempts."""
    if attempts:
        tx.execute(_FREE, [{"of_job": row.job_id, "at_number": row.number} for row in attempts])
