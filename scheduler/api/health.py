"""Liveness and readiness, both without a token; and metrics."""

from fastapi import APIRouter, Response
from fastapi.responses import PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel, ConfigDict

from ..store.database import StoreLostError
from ..store.events import SCHEDULER_LEASE, is_held
from .auth import Scraper, ServiceDep
from .problems import CODES, ProblemError, problems

router = APIRouter()


class HealthReply(BaseModel):
    """The process answers."""

    model_config = ConfigDict(frozen=True)

    status: str


class ReadinessReply(BaseModel):
    """The scheduler works, with this policy."""

    model_config = ConfigDict(frozen=True)

    status: str
    policy: str  # that decides
    version: str  # of it; that of Longshore while the heuristic decides in its place


@router.get("/healthz")
async def healthz() -> HealthReply:
    """Answer, without checking anything else."""
    return HealthReply(status="ok")


@router.get("/readyz", responses=problems("not-ready"))
def readyz(service: ServiceDep) -> ReadinessReply:
    """Check that the store answers, that a scheduler leads, and that this one makes progress; name the policy."""
    try:
        with service.store.read() as tx:
            leads = is_held(tx, SCHEDULER_LEASE)
    except StoreLostError as error:
        raise ProblemError("not-ready", str(error), Retry_After="5") from error
    missing = service.failures.reason
    if not missing and not leads:
        missing = "no scheduler leads"
    elif not missing and service.is_stalled:
        missing = "the scheduler's loop is stalled"
    if missing:
        raise ProblemError("not-ready", missing, Retry_After="5")
    placer = service.control.placer
    return ReadinessReply(status="ok", policy=placer.decides, version=placer.version)


@router.get("/metrics", response_class=PlainTextResponse)
def metrics(service: ServiceDep, _: Scraper) -> Response:
    """Return all metrics for Prometheus."""
    return Response(service.metrics.scrape(), media_type=CONTENT_TYPE_LATEST)


@router.get("/problems/{code}", response_class=PlainTextResponse, responses=problems("not-found"))
async def problem(code: str) -> PlainTextResponse:
    """Explain the code of an error."""
    if code not in CODES:
        raise ProblemError("not-found", f"no error has the code {code!r}")
    return PlainTextResponse(f"{code}: status {CODES[code].status}. {CODES[code].meaning}\n")
