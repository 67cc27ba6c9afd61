"""GET /v1/jobs/{id}/ring: how the ring of a job stands that goes on without members that fail."""

from functools import partial

from fastapi import APIRouter

from ...backends.asking import ask
from ...backends.protocol import Seats
from ...control.attempt_driver import attempt_name
from ...failover.wire import Report
from ...store.rows.attempts import attempts_of
from ..http.auth import Serving
from ..views.lookup import NO_JOB, Found

router = APIRouter()


@router.get("/v1/jobs/{job}/ring", responses=NO_JOB)
def ring(row: Found, service: Serving) -> Report | None:
    """Show who sits on which seat, who is gone and why, and the seconds of each recovery; nothing if no ring runs."""
    with service.store.read() as tx:
        attempts = attempts_of(tx, row.id)
    if not attempts or not isinstance(service.backend, Seats):
        return None
    return ask(partial(service.backend.ring, attempt_name(attempts[-1])))
