"""Errors as RFC 9457 problems.

Source: SPEC K8.
"""

import logging
from collections.abc import Callable
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict
from starlette.exceptions import HTTPException
from starlette.routing import compile_path

from ....cluster.files.errors import LongshoreError
from ...store.database.errors import StoreFullError, StoreUnreachableError
from .invalid_requests import invalid_detail
from .problem_codes import CODES

log = logging.getLogger(__name__)

MEDIA_TYPE = "application/problem+json"
SCHEMA = "#/components/schemas/Problem"
METHOD_NOT_ALLOWED = 405
OF_STATUS = {400: "bad-request", 404: "not-found", METHOD_NOT_ALLOWED: "method-not-allowed"}


class Problem(BaseModel):
    """An error."""

    model_config = ConfigDict(frozen=True)

    type: str  # path of a page on it
    title: str
    status: int
    detail: str  # for people
    instance: str  # path of the request
    code: str  # for programs


class ProblemError(Exception):
    """What a request did wrong, or what cannot be done now.

    Args:
        code: One of CODES.
        detail: For people.
        headers: Of the answer.
    """

    def __init__(self, code: str, detail: str, **headers: str) -> None:
        super().__init__(detail)
        self.code, self.detail = code, detail
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}
        if code == "unauthorized":
            self.headers["WWW-Authenticate"] = "Bearer"


def _response(description: str) -> dict[str, Any]:
    return {"description": description, "content": {MEDIA_TYPE: {"schema": {"$ref": SCHEMA}}}}


def problems(*codes: str) -> dict[int | str, dict[str, Any]]:
    """Return what OpenAPI is to know of the errors of an endpoint, beside those that all have."""
    by_status: dict[int | str, list[str]] = {}
    for code in codes:
        by_status.setdefault(CODES[code].status, []).append(f"`{code}`")
    return {status: _response(", ".join(names)) for status, names in by_status.items()}


EVERYWHERE = problems("invalid", "unauthorized", "forbidden", "internal", "store-unreachable", "no-room")


def problem_answer(request: Request, code: str, detail: str, headers: dict[str, str] | None = None) -> JSONResponse:
    """Return the answer that tells an error."""
    title = code.replace("-", " ").capitalize()
    problem = Problem(
        type=f"/problems/{code}", title=title, status=CODES[code].status, detail=detail, instance=request.url.path,
        code=code,
    )  # fmt: skip
    return JSONResponse(problem.model_dump(), problem.status, headers, media_type=MEDIA_TYPE)


def _methods_at(app: FastAPI, path: str) -> str:
    """Return all methods that a path knows; the router knows those of one endpoint."""
    known = [methods for template, methods in app.openapi()["paths"].items() if compile_path(template)[0].match(path)]
    return ", ".join(sorted({method.upper() for methods in known for method in methods}))


Answer = Callable[[Request, str, str], Response]
AsPage = Callable[[Request, str, str, dict[str, str] | None], Response | None]


def no_page(request: Request, code: str, detail: str, headers: dict[str, str] | None) -> None:
    """Tell nothing to browsers in a way of their own."""


def answer_with_problems(app: FastAPI, as_page: AsPage = no_page) -> Answer:
    """Let an application answer every error as a problem, or as a page.

    Args:
        app: The application.
        as_page: Returns the page that tells an error, None where it is to be a problem.

    Returns:
        What answers so.
    """

    def answer(request: Request, code: str, detail: str, headers: dict[str, str] | None = None) -> Response:
        page = as_page(request, code, detail, headers)
        return problem_answer(request, code, detail, headers) if page is None else page

    @app.exception_handler(ProblemError)
    async def _problem(request: Request, error: ProblemError) -> Response:
        return answer(request, error.code, error.detail, error.headers)

    @app.exception_handler(RequestValidationError)
    async def _invalid(request: Request, error: RequestValidationError) -> Response:
        return answer(request, "invalid", invalid_detail(request, error.errors(), error.body))

    @app.exception_handler(HTTPException)
    async def _of_http(request: Request, error: HTTPException) -> Response:
        headers = dict(error.headers or {})
        if error.status_code == METHOD_NOT_ALLOWED:
            headers["Allow"] = _methods_at(app, request.url.path) or headers.get("Allow", "")
        return answer(request, OF_STATUS.get(error.status_code, "bad-request"), str(error.detail), headers)

    @app.exception_handler(StoreUnreachableError)
    async def _away(request: Request, error: StoreUnreachableError) -> Response:
        log.warning("%s", error)  # it may name the store's place, which is nobody's business
        if isinstance(error, StoreFullError):
            return answer(request, "no-room", str(error), {"Retry-After": "60"})
        return answer(request, "store-unreachable", "the store does not answer; ask again", {"Retry-After": "1"})

    @app.exception_handler(LongshoreError)
    async def _outside(request: Request, error: LongshoreError) -> Response:
        log.warning("%s", error)
        return answer(request, "unavailable", str(error), {"Retry-After": "1"})

    @app.exception_handler(Exception)
    async def _fault(request: Request, error: Exception) -> Response:
        return answer(request, "internal", "a fault of Longshore; its log has more")

    return answer
