"""The REST API, put together: one module for each kind of resource; and the duties of a container's first process.

What the first process of a container has to do beside its own work: take in orphans, and let none of them stay.

Supervisors of attempts outlive the scheduler, so their parent is the first process of the PID namespace. Where that is
the scheduler itself, it continues in a child, which reaps its own children.

Source: SPEC K8, K6.
"""

import os
import signal
from collections.abc import AsyncIterator, Set
from contextlib import asynccontextmanager
from typing import Any

from fastapi import Depends, FastAPI
from fastapi.openapi.utils import get_openapi

from ..access.browsers import Browsers
from ..api import health, jobs, logs, nodes, rings, submitting, tokens
from ..api import streaming as changes
from ..api.auth import TokenCache
from ..api.problems import EVERYWHERE, BodyLimit, ProblemDetails, answer_with_problems
from ..api.streaming import StreamSlots
from ..dashboard.entering import ask_for_tokens, let_operators_in, static_router
from ..dashboard.pages import page_router
from ..dashboard.rendering import refusal_page
from ..service.service import Service

ROUTERS = (
    submitting.router, jobs.router, logs.router, rings.router, nodes.router, changes.router, tokens.router,
    health.router,
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
    app.state.in_flight, app.state.streams = submitting.InFlight(), StreamSlots()
    app.state.browsers = Browsers()
    app.add_middleware(BodyLimit, answer=answer_with_problems(app, refusal_page))
    for router in ROUTERS:
        app.include_router(router)
    app.include_router(page_router(service), dependencies=[Depends(let_operators_in)])
    app.include_router(static_router())
    ask_for_tokens(app)
    _describe(app)
    return app


def _describe(app: FastAPI) -> None:
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


_FROM_KERNEL = 0x80  # SI_KERNEL: of a terminal, which has sent it to the child, too
_OWN = {signal.SIGCHLD, signal.SIGTTIN, signal.SIGTTOU, signal.SIGTSTP, signal.SIGKILL, signal.SIGSTOP}


def leave_first_place() -> None:
    """Go on in a child if this process is the first of its PID namespace; it passes on signals, and ends as that does.

    Call it before there is any thread.

    Raises:
        OSError: If there can be no further process.
    """
    if os.getpid() != 1:
        return
    signals = signal.valid_signals() - _OWN
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {*signals, signal.SIGCHLD})
    child = os.fork()
    if child == 0:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return
    status = 1
    try:
        status = _watch(child, signals)
    finally:
        os._exit(status)  # What this process has loaded is the child's to end.


def _watch(child: int, signals: Set[int]) -> int:
    """Pass signals on and reap all children, until the main child has ended; return its status as a shell does."""
    while True:
        came = signal.sigwaitinfo({*signals, signal.SIGCHLD})
        if came.si_signo != signal.SIGCHLD:
            if came.si_code != _FROM_KERNEL:
                os.kill(child, came.si_signo)
            continue
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == child:
                code = os.waitstatus_to_exitcode(ended[1])
                return code if code >= 0 else 128 - code
