"""The REST API, put together: one module for each kind of resource, and here health, metrics and the codes of errors.

Source: SPEC K8.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import APIRouter, Depends, FastAPI, Response
from fastapi.openapi.utils import get_openapi
from fastapi.responses import PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST

from ..api import decisions, jobs, logs, nodes, rings, streaming, submitting, tokens
from ..api.auth import Scraper, ServiceDep, TokenCache
from ..api.problems import CODES, EVERYWHERE, ProblemDetails, ProblemError, answer_with_problems, openapi_problems
from ..api.streaming import StreamSlots
from ..api.tokens import Browsers
from ..dashboard.entering import add_login, let_operators_in, static_router
from ..dashboard.pages import page_router
from ..dashboard.rendering import refusal_page
from ..service.service import Service
from ..store.database import StoreLostError
from ..store.events import SCHEDULER_LEASE, is_lease_held
from .server import BodyLimit

router = APIRouter()


@router.get("/healthz")
async def healthz() -> dict[str, str]:
    """Answer, without checking anything else."""
    return {"status": "ok"}


@router.get("/readyz", responses=openapi_problems("not-ready"))
def readyz(service: ServiceDep) -> dict[str, str]:
    """Check that the store answers, that a scheduler leads, and that this one makes progress; name the policy.

    `policy` decides. `version` is of it; that of Longshore while the heuristic decides in its place.
    """
    try:
        with service.store.read() as tx:
            leads = is_lease_held(tx, SCHEDULER_LEASE)
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
    return {"status": "ok", "policy": placer.decider, "version": placer.version}


@router.get("/metrics", response_class=PlainTextResponse)
def metrics(service: ServiceDep, _: Scraper) -> Response:
    """Return all metrics for Prometheus."""
    return Response(service.metrics.scrape(), media_type=CONTENT_TYPE_LATEST)


@router.get("/problems/{code}", response_class=PlainTextResponse, responses=openapi_problems("not-found"))
async def problem(code: str) -> PlainTextResponse:
    """Explain the code of an error."""
    if code not in CODES:
        raise ProblemError("not-found", f"no error has the code {code!r}")
    return PlainTextResponse(f"{code}: status {CODES[code].status}. {CODES[code].meaning}\n")


ROUTERS = (
    submitting.router, jobs.router, decisions.router, logs.router, rings.router, nodes.router, streaming.router,
    tokens.router, router,
)  # fmt: skip


def create_app(service: Service) -> FastAPI:
    """Return the application of a scheduler that is not started yet; it starts and ends with the application."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service.start()
        yield
        service.close()

    app = FastAPI(
        title="Longshore", version="1", lifespan=lifespan, docs_url=None, redoc_url=None, responses=EVERYWHERE,
        redirect_slashes=False,
    )  # fmt: skip
    app.state.service, app.state.known = service, TokenCache()
    app.state.in_flight, app.state.streams = submitting.KeysInFlight(), StreamSlots()
    app.state.browsers = Browsers()
    app.add_middleware(BodyLimit, answer=answer_with_problems(app, refusal_page))
    for router in ROUTERS:
        app.include_router(router)
    app.include_router(page_router(service), dependencies=[Depends(let_operators_in)])
    app.include_router(static_router())
    add_login(app)
    _describe_errors(app)
    return app


def _describe_errors(app: FastAPI) -> None:
    """Describe the form of errors to OpenAPI."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = get_openapi(title=app.title, version=app.version, routes=app.routes)
            schema["components"]["schemas"]["ProblemDetails"] = ProblemDetails.model_json_schema()
            schema["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
            schema["security"] = [{"token": []}, {}]
            app.openapi_schema = schema
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]
