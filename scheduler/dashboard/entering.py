"""Who sees the pages: whoever may see all jobs. A browser keeps its token in a cookie that no other site can use.

Source: SPEC K8; docs/dashboard.md.
"""

from urllib.parse import parse_qs

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse

from ..api.problems import ProblemError
from ..api.services import Knowing, Serving, caller_with, who_asks
from ..tokens import Role
from .rendering import render

COOKIE = "longshore"
FOREVER_S = 400 * 86400  # browsers keep none for longer; the token itself may expire before
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
    secret = request.cookies.get(COOKIE)
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
        raise ProblemError("forbidden", "the pages show everybody's jobs: they take a token with the role operator")


def ask_for_tokens(app: FastAPI) -> None:
    """Add the page that asks for a token, and send there who needs one."""
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
    """Keep a token in a cookie, if it is one."""
    form = parse_qs((await request.body()).decode(errors="replace"))
    secret = form.get("token", [""])[0].strip()
    try:
        await caller_with(secret, service, known)
    except ProblemError as problem:
        answer = render("login.html", page="", problem=str(problem))
        answer.status_code = 401
        return answer
    entered = RedirectResponse("/", 303)
    entered.set_cookie(
        COOKIE, secret, max_age=FOREVER_S, httponly=True, samesite="strict", secure=request.url.scheme == "https"
    )  # fmt: skip
    return entered


@router.post("/logout")
async def logout() -> Response:
    """Forget the token."""
    left = RedirectResponse("/login", 303)
    left.delete_cookie(COOKIE, httponly=True, samesite="strict")
    return left
