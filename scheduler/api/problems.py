"""Errors of the API as RFC 9457 problems. docs/api.md has the same table of codes, which a test compares.

Source: SPEC K8.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict
from starlette.exceptions import HTTPException
from starlette.routing import compile_path

from ...cluster.files.errors import LongshoreError
from ...cluster.files.input_problems import MAX_REPORTED, InputProblem, Schema, input_problems
from ..store.database import StoreFullError, StoreUnreachableError


class ErrorCode(NamedTuple):
    """Status and meaning of an error code."""

    status: int  # of HTTP
    meaning: str


CODES = {
    "invalid": ErrorCode(422, "A parameter or the body is not valid; `detail` names the place."),
    "bad-request": ErrorCode(400, "The request is not valid HTTP or JSON."),
    "bad-cursor": ErrorCode(400, "The cursor is not from a list."),
    "bad-header": ErrorCode(400, "A header such as `If-Match` or `Last-Event-ID` cannot be read."),
    "unauthorized": ErrorCode(401, "There is no token, or one that is not valid."),
    "forbidden": ErrorCode(403, "The role of the token does not allow it."),
    "wrong-host": ErrorCode(403, "A browser sent it for another site, or to an open scheduler by another name."),
    "not-found": ErrorCode(404, "There is nothing at this path."),
    "no-such-job": ErrorCode(404, "There is no job of this id, or it is another user's."),
    "no-such-node": ErrorCode(404, "The cluster file has no node of this name."),
    "no-such-attempt": ErrorCode(404, "The job has no attempt of this number, or none yet."),
    "no-such-log": ErrorCode(404, "The attempt has no rank of this number, or its log was deleted."),
    "no-such-token": ErrorCode(404, "Its owner has no valid token of this name."),
    "method-not-allowed": ErrorCode(405, "The path has other methods."),
    "key-in-flight": ErrorCode(409, "A request with this `Idempotency-Key` is in progress; retry soon."),
    "ended": ErrorCode(409, "The job has ended or is being cancelled, which this request cannot undo."),
    "not-in-quarantine": ErrorCode(409, "It is not in quarantine, or cannot be checked while jobs use it."),
    "no-checks": ErrorCode(409, "No checks are available that could clear a quarantine."),
    "older-attempt": ErrorCode(409, "A later attempt of the job has begun, so this one is ignored."),
    "token-exists": ErrorCode(409, "Its owner has a valid token of this name."),
    "stale": ErrorCode(412, "The job has changed since the version of `If-Match`: read it again."),
    "too-much": ErrorCode(413, "The body is larger than allowed: 256 KiB, more for the extender."),
    "compressed": ErrorCode(415, "The extender was sent a compressed body."),
    "beyond-the-end": ErrorCode(416, "The log does not reach to this offset."),
    "key-reused": ErrorCode(422, "This `Idempotency-Key` was used for another job."),
    "too-large": ErrorCode(422, "The job asks for more GPUs than there are, or than one user may have."),
    "too-high": ErrorCode(403, "Only operators may set so high a priority."),
    "unconditional": ErrorCode(428, "A change needs `If-Match`: the job's `ETag`, or `*`."),
    "too-many-queued": ErrorCode(429, "The user has the maximum number of queued jobs."),
    "too-many-followers": ErrorCode(429, "The maximum number of streams is open."),
    "too-many-tokens": ErrorCode(429, "The user has the maximum number of valid tokens; operators may make more."),
    "internal": ErrorCode(500, "A fault of Longshore; its log has the traceback."),
    "store-unreachable": ErrorCode(503, "The store does not answer. Jobs continue."),
    "no-room": ErrorCode(
        507, "The disk of the scheduler is full: no job is accepted. Jobs continue, and can be cancelled."
    ),
    "not-ready": ErrorCode(
        503, "No scheduler leads, it has stopped ticking, or only another one that leads can answer."
    ),
    "not-in-sync": ErrorCode(503, "The extender does not yet know all pods and nodes."),
    "unavailable": ErrorCode(503, "A system that Longshore controls does not answer."),
}


BODY, JSON = "body", "application/json"


def invalid_detail(request: Request, errors: Sequence[Mapping[str, Any]], body: object) -> str:
    """Return the `detail` of a request that is not valid.

    Args:
        request: The request.
        errors: As pydantic lists them.
        body: The body, as far as it could be parsed.
    """
    document = request.app.openapi()
    operation = _openapi_operation(request, document)
    details: list[str] = []
    for error in errors[:MAX_REPORTED]:  # each takes a while
        part, *inside = error["loc"]
        if error["type"] == "json_invalid":
            details.append(f"body: not JSON: {error['ctx']['error']}")
            continue
        data = body if part == BODY else _nested_at(inside, error["input"])
        schema = {**document, **_schema_of_part(operation, str(part))}
        details += [
            _problem_text(problem) for problem in input_problems([{**error, "loc": tuple(inside)}], schema, data)
        ]
    more = len(details) - 1 + len(errors[MAX_REPORTED:])
    return f"{details[0]} ({more} more)" if more else details[0]


def _nested_at(place: Sequence[str | int], value: object) -> object:
    """Return a parameter of a request as nested data, at its place."""
    for part in reversed(place):
        value = [None] * part + [value] if isinstance(part, int) else {part: value}
    return value


def _problem_text(problem: InputProblem) -> str:
    place = ".".join(map(str, problem.place)) or BODY
    return f"{place}: {problem.problem}; {problem.fix}" if problem.fix else f"{place}: {problem.problem}"


def _openapi_operation(request: Request, document: Mapping[str, Any]) -> Mapping[str, Any]:
    route = request.scope.get("route")
    path = document["paths"].get(route.path_format, {}) if isinstance(route, APIRoute) else {}
    found: Mapping[str, Any] = path.get(request.method.lower(), {})
    return found


def _schema_of_part(operation: Mapping[str, Any], part: str) -> Schema:
    """Return the schema in OpenAPI of the body of a request, or of its parameters of one kind."""
    if part == BODY:
        found: Schema = operation.get("requestBody", {}).get("content", {}).get(JSON, {}).get("schema", {})
        return found
    of_part = [parameter for parameter in operation.get("parameters", ()) if parameter["in"] == part]
    return {"type": "object", "properties": {parameter["name"]: parameter["schema"] for parameter in of_part}}


log = logging.getLogger(__name__)

PROBLEM_MEDIA_TYPE = "application/problem+json"
SCHEMA = "#/components/schemas/Problem"
METHOD_NOT_ALLOWED = 405
OF_STATUS = {400: "bad-request", 404: "not-found", METHOD_NOT_ALLOWED: "method-not-allowed"}


class ProblemDetails(BaseModel):
    """An error."""

    model_config = ConfigDict(frozen=True)

    type: str  # path of a page on it
    title: str
    status: int
    detail: str  # for people
    instance: str  # path of the request
    code: str  # for programs


class ProblemError(Exception):
    """An error that is answered as a problem.

    Args:
        code: One of CODES.
        detail: In words.
        headers: Of the answer.
    """

    def __init__(self, code: str, detail: str, **headers: str) -> None:
        super().__init__(detail)
        self.code, self.detail = code, detail
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}
        if code == "unauthorized":
            self.headers["WWW-Authenticate"] = "Bearer"


def _openapi_response(description: str) -> dict[str, Any]:
    return {"description": description, "content": {PROBLEM_MEDIA_TYPE: {"schema": {"$ref": SCHEMA}}}}


def openapi_problems(*codes: str) -> dict[int | str, dict[str, Any]]:
    """Return the errors of an endpoint for OpenAPI, beside those of all endpoints."""
    by_status: dict[int | str, list[str]] = {}
    for code in codes:
        by_status.setdefault(CODES[code].status, []).append(f"`{code}`")
    return {status: _openapi_response(", ".join(names)) for status, names in by_status.items()}


EVERYWHERE = openapi_problems("invalid", "unauthorized", "forbidden", "internal", "store-unreachable", "no-room")


def problem_response(request: Request, code: str, detail: str, headers: dict[str, str] | None = None) -> JSONResponse:
    """Return an error as a response."""
    title = code.replace("-", " ").capitalize()
    problem = ProblemDetails(
        type=f"/problems/{code}", title=title, status=CODES[code].status, detail=detail, instance=request.url.path,
        code=code,
    )  # fmt: skip
    return JSONResponse(problem.model_dump(), problem.status, headers, media_type=PROBLEM_MEDIA_TYPE)


def _methods_of_path(app: FastAPI, path: str) -> str:
    """Return all methods of a path; the router knows those of one endpoint."""
    known = [methods for template, methods in app.openapi()["paths"].items() if compile_path(template)[0].match(path)]
    return ", ".join(sorted({method.upper() for methods in known for method in methods}))


AnswerProblem = Callable[[Request, str, str], Response]
AsPage = Callable[[Request, str, str, dict[str, str] | None], Response | None]


def no_page(request: Request, code: str, detail: str, headers: dict[str, str] | None) -> None:
    """Answer browsers like programs."""


def answer_with_problems(app: FastAPI, as_page: AsPage = no_page) -> AnswerProblem:
    """Let an application answer every error as a problem, or as a page.

    Args:
        app: The application.
        as_page: Returns an error as a page, None to answer it as a problem.

    Returns:
        The function that answers an error.
    """

    def answer(request: Request, code: str, detail: str, headers: dict[str, str] | None = None) -> Response:
        page = as_page(request, code, detail, headers)
        return problem_response(request, code, detail, headers) if page is None else page

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
            headers["Allow"] = _methods_of_path(app, request.url.path) or headers.get("Allow", "")
        return answer(request, OF_STATUS.get(error.status_code, "bad-request"), str(error.detail), headers)

    @app.exception_handler(StoreUnreachableError)
    async def _away(request: Request, error: StoreUnreachableError) -> Response:
        log.warning("%s", error)  # it may name the address of the store, which clients must not see
        if isinstance(error, StoreFullError):
            return answer(request, "no-room", str(error), {"Retry-After": "60"})
        return answer(request, "store-unreachable", "the store does not answer; retry", {"Retry-After": "1"})

    @app.exception_handler(LongshoreError)
    async def _outside(request: Request, error: LongshoreError) -> Response:
        log.warning("%s", error)
        return answer(request, "unavailable", str(error), {"Retry-After": "1"})

    @app.exception_handler(Exception)
    async def _fault(request: Request, error: Exception) -> Response:
        return answer(request, "internal", "a fault of Longshore; its log has more")

    return answer
