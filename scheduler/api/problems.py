"""Errors as RFC 9457 problems.

Source: SPEC K8.
"""

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse

from ..store.errors import StaleWriteError, StoreUnreachableError

MEDIA_TYPE = "application/problem+json"


class ProblemError(Exception):
    """What a request did wrong, or what cannot be done now.

    Args:
        status: HTTP status.
        code: For programs.
        detail: For people.
    """

    def __init__(self, status: int, code: str, detail: str) -> None:
        super().__init__(detail)
        self.status, self.code, self.detail = status, code, detail


def _answer(status: int, code: str, detail: str) -> JSONResponse:
    title = code.replace("-", " ").capitalize()
    body = {"type": f"/problems/{code}", "title": title, "status": status, "code": code, "detail": detail}
    return JSONResponse(body, status, media_type=MEDIA_TYPE)


def answer_with_problems(app: FastAPI) -> None:
    """Let an application answer every error as a problem."""

    @app.exception_handler(ProblemError)
    async def _problem(request: Request, error: ProblemError) -> JSONResponse:
        return _answer(error.status, error.code, error.detail)

    @app.exception_handler(RequestValidationError)
    async def _invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"] if part != "body")
        return _answer(422, "invalid", f"{place or 'body'}: {first['msg']}")

    @app.exception_handler(StoreUnreachableError)
    async def _away(request: Request, error: StoreUnreachableError) -> JSONResponse:
        return _answer(503, "store-unreachable", str(error))

    @app.exception_handler(StaleWriteError)
    async def _stale(request: Request, error: StaleWriteError) -> JSONResponse:
        return _answer(409, "stale", str(error))
