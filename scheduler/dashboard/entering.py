"""Who sees the pages: whoever may see all jobs. A browser that has told a token keeps a number in its place.

The number is good for the pages alone, and only until the scheduler ends: cookies go to every server of a host.

Source: SPEC K8; docs/dashboard.md.
"""

import secrets
from urllib.parse import parse_qs, urlsplit

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse

from ..api.problem_codes import CODES
from ..api.problems import ProblemError
from ..api.services import Knowing, Serving, caller_with, who_asks
from ..tokens import Role
from .rendering import render

COOKIE = "longshore"
MOST = 1000  # browsers that are known at a time
NOT_ALL = "the pages show everybody's jobs: they take a token with the role operator"
OPEN = "/static/"  # what the page that asks for a token needs itself

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)


class TokenNeededError(Exception):
    """Nobody may see a page without a token."""


async def looking(request: Request, service: Serving, known: Knowing) -> None:
    """Let in who may see all jobs.

    Raises:
        TokenNeededError: If the request has no valid token, and needs one.
        ProblemError: If whoever asks may see only some.
    """
    if request.url.path.startswith(OPEN):
        return
    secret = _sessions(request).get(request.cookies.get(COOKIE, ""))
    try:
        if secret is None or "authorization" in request.headers:
            caller = await who_asks(request, service, known)
        else:
            caller = await caller_with(secret, service, known)
    except ProblemError as problem:
        if problem.code == "unauthorized":
            raise TokenNeededError from problem
        raise
    if caller.role is not Role.OPERATOR:
        raise ProblemError("forbidden", NOT_ALL)


def _sessions(request: Request) -> dict[str, str]:
    """Return the tokens of browsers that are known, by their numbers."""
    sessions: dict[str, str] = request.app.state.sessions
    return sessions


def ask_for_tokens(app: FastAPI) -> None:
    """Add the page that asks for a token, and send there who needs one."""
    app.state.sessions = dict[str, str]()
    app.include_router(router)

    @app.exception_handler(TokenNeededError)
    async def enter(request: Request, _: Exception) -> Response:
        if request.headers.get("hx-request"):  # part of a page that is open: it has to be left
            return Response(status_code=401, headers={"HX-Redirect": "/login"})
        return RedirectResponse("/login", 303)


@router.get("/login")
async def login() -> HTMLResponse:
    """Ask for a token."""
    return render("login.html", page="", problem="")


@router.post("/login")
async def enter(request: Request, service: Serving, known: Knowing) -> Response:
    """Know a browser again that has told a token."""
    origin = request.headers.get("origin")
    if origin and urlsplit(origin).netloc != request.headers.get("host"):
        raise ProblemError("wrong-host", "only the page of this scheduler can ask for this")
    form = parse_qs((await request.body()).decode(errors="replace"))
    secret = form.get("token", [""])[0].strip()
    try:
        caller = await caller_with(secret, service, known)
        if caller.role is not Role.OPERATOR:
            raise ProblemError("forbidden", NOT_ALL)
    except ProblemError as problem:
        answer = render("login.html", page="", problem=str(problem))
        answer.status_code = CODES[problem.code].status
        return answer
    sessions, number = _sessions(request), secrets.token_urlsafe(32)
    if len(sessions) >= MOST:
        del sessions[next(iter(sessions))]
    sessions[number] = secret
    entered = RedirectResponse("/", 303)
    entered.set_cookie(COOKIE, number, httponly=True, samesite="strict", secure=request.url.scheme == "https")
    return entered


@router.post("/logout")
async def logout(request: Request) -> Response:
    """Know a browser no more."""
    _sessions(request).pop(request.cookies.get(COOKIE, ""), None)
    left = RedirectResponse("/login", 303)
    left.delete_cookie(COOKIE, httponly=True, samesite="strict")
    return left
