"""Attempts that the backend has and the store does not, as after the restore of an older store."""

from typing import Annotated

from fastapi import APIRouter, Path, Response

from ...service.service import Service
from ..http.auth import Operating, Serving
from ..http.problems import ProblemError, problems
from ..views.models import UnknownAttemptPage

router = APIRouter()
Name = Annotated[str, Path(max_length=100, description="Of the attempt, as the list has it.")]
NO_SUCH = problems("no-such-attempt")


@router.get("/v1/unknown-attempts")
def unknown(service: Serving, _: Operating) -> list[UnknownAttemptPage]:
    """List attempts that may run and are not in the store: no job starts on their GPUs. The leading scheduler knows."""
    return [UnknownAttemptPage.of(it) for it in service.control.unknown_attempts()]


@router.post("/v1/unknown-attempts/{attempt}/end", status_code=204, responses=NO_SUCH)
def end(attempt: Name, service: Serving, _: Operating) -> Response:
    """Ask an attempt to stop, and kill it after its grace; its GPUs are free once it is proven gone."""
    return _done(service, attempt, known=service.control.end_unknown(attempt))


@router.post("/v1/unknown-attempts/{attempt}/disregard", status_code=204, responses=NO_SUCH)
def disregard(attempt: Name, service: Serving, _: Operating) -> Response:
    """Let jobs start on the GPUs of an attempt that is not proven gone."""
    return _done(service, attempt, known=service.control.disregard_unknown(attempt))


def _done(service: Service, attempt: str, *, known: bool) -> Response:
    if not known:
        raise ProblemError("no-such-attempt", f"there is no unknown attempt {attempt!r} here")
    service.wake()
    return Response(status_code=204)
