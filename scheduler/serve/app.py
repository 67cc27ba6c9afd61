"""The REST API, put together: one module for each kind of resource.

Source: SPEC K8.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import Depends, FastAPI
from fastapi.openapi.utils import get_openapi

from ..access.browsers import Browsers
from ..api.http.bodies import BodyLimit
from ..api.http.problems import EVERYWHERE, Problem, answer_with_problems
from ..api.http.stream_slots import StreamSlots
from ..api.http.token_cache import Known
from ..api.monitoring import cluster, faults, quarantine, rings, sub_tasks, training
from ..api.routes import (
    browser_links,
    checkpoints,
    health,
    history,
    jobs,
    logs,
    nodes,
    retrying,
    submitting,
    tokens,
    unknown,
)
from ..api.routes import event_stream as changes
from ..api.views import listing
from ..dashboard.entering import ask_for_tokens, looking
from ..dashboard.refusing import refusal_page
from ..dashboard.router import page_routers, static_router
from ..service.service import Service

ROUTERS = (
    submitting.router, jobs.router, listing.router, retrying.router, history.router, checkpoints.router, logs.router,
    rings.router, faults.router, training.router, sub_tasks.router, cluster.router,
    changes.router, nodes.router, quarantine.router, tokens.router,
    browser_links.router, unknown.router, health.router,
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
    app.state.service, app.state.known = service, Known()
    app.state.in_flight, app.state.streams = submitting.InFlight(), StreamSlots()
    app.state.browsers = Browsers()
    app.add_middleware(BodyLimit, answer=answer_with_problems(app, refusal_page))
    for router in ROUTERS:
        app.include_router(router)
    for page, router in page_routers(service):
        app.include_router(router, dependencies=[Depends(looking(page.seen_by))])
    app.include_router(static_router())
    ask_for_tokens(app)
    _describe(app)
    return app


def _describe(app: FastAPI) -> None:
    """Let OpenAPI know what errors look like."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = get_openapi(title=app.title, version=app.version, routes=app.routes)
            schema["components"]["schemas"]["Problem"] = Problem.model_json_schema()
            schema["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
            schema["security"] = [{"token": []}, {}]
            app.openapi_schema = schema
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]
