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
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ...cluster.files.errors import LongshoreError
from ...cluster.files.input_problems import MOST_TOLD, InputProblem, Schema, input_problems
from ..store.engines import StoreFullError, StoreUnreachableError


class Known(NamedTuple):
    """An error."""

    status: int  # of HTTP
    meaning: str


CODES = {
    "invalid": Known(422, "A parameter or the body is not as it should be; `detail` names the place."),
    "bad-request": Known(400, "The request is no HTTP or JSON that can be read."),
    "bad-cursor": Known(400, "The cursor is not one that a list has given."),
    "bad-header": Known(400, "A header such as `If-Match` or `Last-Event-ID` cannot be read."),
    "unauthorized": Known(401, "There is no token, or one that is not valid."),
    "forbidden": Known(403, "The role of the token does not allow it."),
    "wrong-host": Known(403, "A browser sent it for another site, or an open scheduler was asked by another name."),
    "not-found": Known(404, "There is nothing at this path."),
    "no-such-job": Known(404, "There is no job of this id, or it is somebody else's."),
    "no-such-node": Known(404, "The cluster file has no node of this name."),
    "no-such-attempt": Known(404, "The job has no attempt of this number, or none yet."),
    "no-such-log": Known(404, "The attempt has no rank of this number, or its log is gone."),
    "no-such-token": Known(404, "Its owner has no valid token of this name."),
    "method-not-allowed": Known(405, "The path knows other methods."),
    "key-in-flight": Known(409, "A request with this `Idempotency-Key` is being worked on; ask again soon."),
    "ended": Known(409, "The job has ended or is being cancelled, which this request cannot undo."),
    "not-in-quarantine": Known(409, "It is not in quarantine, or cannot be checked while jobs use it."),
    "no-checks": Known(409, "No checks are available that could clear a quarantine."),
    "older-attempt": Known(409, "A later attempt of the job has begun, so what this one says does not count."),
    "token-exists": Known(409, "Its owner has a valid token of this name."),
    "stale": Known(412, "The job is not what `If-Match` says any more: read it again."),
    "too-much": Known(413, "The body is larger than is allowed: 256 KiB, for the extender more."),
    "compressed": Known(415, "The extender was sent a compressed body."),
    "beyond-the-end": Known(416, "The log does not reach to this offset."),
    "key-reused": Known(422, "This `Idempotency-Key` was used for another job."),
    "too-large": Known(422, "The job asks for more GPUs than there are, or than one user may have."),
    "too-high": Known(403, "Only operators give a job so high a priority."),
    "unconditional": Known(428, "A change needs `If-Match`: the job's `ETag`, or `*`."),
    "too-many-queued": Known(429, "The user has as many queued jobs as are allowed."),
    "too-many-followers": Known(429, "As many streams are open as are allowed."),
    "too-many-tokens": Known(429, "The user has as many valid tokens as are allowed; operators may make more."),
    "internal": Known(500, "A fault of Longshore; its log has the traceback."),
    "store-unreachable": Known(503, "The store does not answer. Jobs run on."),
    "no-room": Known(507, "The disk of the scheduler is full: no job is taken in. Jobs run on, and can be cancelled."),
    "not-ready": Known(503, "No scheduler leads, or it has stopped ticking."),
    "not-in-sync": Known(503, "The extender has not yet been told of all pods and nodes."),
    "unavailable": Known(503, "Something that Longshore drives does not answer."),
}


BODY, JSON = "body", "application/json"


def invalid_detail(request: Request, errors: Sequence[Mapping[str, Any]], body: object) -> str:
    """Return what to tell whoever sent a request that cannot be used.

    Args:
        request: The request.
        errors: As pydantic lists them.
        body: What was sent, as far as it could be read.
    """
    document = request.app.openapi()
    operation = _operation(request, document)
    told = []
    for error in errors[:MOST_TOLD]:  # each takes a while to put into words
        part, *inside = error["loc"]
        if error["type"] == "json_invalid":
            told.append(f"body: it is no JSON: {error['ctx']['error']}")
            continue
        data = body if part == BODY else _parameter(inside, error["input"])
        schema = {**document, **_expected(operation, str(part))}
        told += [_words(it) for it in input_problems([{**error, "loc": tuple(inside)}], schema, data)]
    more = len(told) - 1 + len(errors[MOST_TOLD:])
    return f"{told[0]} ({more} more)" if more else told[0]


def _parameter(place: Sequence[str | int], value: object) -> object:
    """Return a parameter of a request as data that has it at its place."""
    for part in reversed(place):
        value = [None] * part + [value] if isinstance(part, int) else {part: value}
    return value


def _words(it: InputProblem) -> str:
    place = ".".join(map(str, it.place)) or BODY
    return f"{place}: {it.problem}; {it.fix}" if it.fix else f"{place}: {it.problem}"


def _operation(request: Request, document: Mapping[str, Any]) -> Mapping[str, Any]:
    route = request.scope.get("route")
    path = document["paths"].get(route.path_format, {}) if isinstance(route, APIRoute) else {}
    found: Mapping[str, Any] = path.get(request.method.lower(), {})
    return found


def _expected(operation: Mapping[str, Any], part: str) -> Schema:
    """Return what OpenAPI says of the body of a request, or of its parameters of one kind."""
    if part == BODY:
        found: Schema = operation.get("requestBody", {}).get("content", {}).get(JSON, {}).get("schema", {})
        return found
    of_part = [it for it in operation.get("parameters", ()) if it["in"] == part]
    return {"type": "object", "properties": {it["name"]: it["schema"] for it in of_part}}


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


MOST_BYTES = 256 * 1024


class BodyLimit:
    """Reads the body of a request, and refuses one that is too large.

    Args:
        app: What answers.
        answer: Returns the answer that tells an error.
    """

    def __init__(self, app: ASGIApp, answer: Answer) -> None:
        self._app, self._answer = app, answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http" or scope["method"] in ("GET", "HEAD", "OPTIONS"):
            await self._app(scope, receive, send)
            return
        try:
            body = await _body(receive)
        except _GoneError:
            return
        if body is None:
            detail = f"the body is larger than {MOST_BYTES // 1024} KiB"
            await self._answer(Request(scope), "too-much", detail)(scope, receive, send)
            return
        read = False

        async def again() -> Message:
            nonlocal read
            if read:
                return await receive()
            read = True
            return {"type": "http.request", "body": body, "more_body": False}

        await self._app(scope, again, send)


class _GoneError(Exception):
    """The client went before it had sent all."""


async def _body(receive: Receive) -> bytes | None:
    """Return all that a client sends, None if it is too much."""
    parts, size, more = [], 0, True
    while more:
        message = await receive()
        if message["type"] != "http.request":
            raise _GoneError
        more = message.get("more_body", False)
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > MOST_BYTES:
            return None
    return b"".join(parts)
