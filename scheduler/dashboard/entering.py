"""The login of the dashboard. A browser that has sent a token keeps a random number in its place.

The number is valid for pages alone, and only until the scheduler ends: cookies go to every server of a host.

Source: SPEC K8, K11; docs/operate.md, Dashboard.
"""

from typing import Annotated
from urllib.parse import parse_qs

from fastapi import APIRouter, FastAPI, Query, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse

from ..access.tokens import Caller, Role
from ..api.auth import ServiceDep, TokenCache, TokenCacheDep, caller_of_request, caller_with, is_same_origin
from ..api.problems import CODES, ProblemError
from ..api.tokens import Browsers, BrowsersDep, browsers_of
from ..service.service import Service
from .rendering import no_such_part, render, static_files

COOKIE = "longshore"
OTHER_ORIGIN = "this was sent by another site, or by a proxy that does not forward the `Host` of the request"
USED_LINK = "the link was used, or is more than an hour old; `longshore dashboard` prints another"
MAX_FORM_BYTES = 4096  # a form with a token

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)


class TokenNeededError(Exception):
    """The page needs a token."""


async def let_operators_in(request: Request, service: ServiceDep, known: TokenCacheDep) -> None:
    """Let operators alone see a page, as pages show the jobs of all users; the dependency of all pages.

    Raises:
        TokenNeededError: If the request needs a token, and has no valid one.
        ProblemError: If the caller has another role.
    """
    request.state.caller = caller = await _browser_caller(request, service, known)
    _check_role(caller.role)


async def _browser_caller(request: Request, service: Service, known: TokenCache) -> Caller:
    secret = (await browsers_of(request)).token_of(request.cookies.get(COOKIE, ""), service.now_s())
    try:
        if secret is None or "authorization" in request.headers:
            return await caller_of_request(request, service, known)
        return await caller_with(secret, service, known)
    except ProblemError as problem:
        if problem.code == "unauthorized":
            raise TokenNeededError from problem
        raise


def _check_role(role: Role) -> None:
    if role is not Role.OPERATOR:
        raise ProblemError("forbidden", "pages show the jobs of all users: they take a token with the role operator")


def check_origin(request: Request) -> None:
    """Refuse a form that another site sent.

    Browsers send the origin of each form. One with the cookie and without an origin is refused too.

    Raises:
        ProblemError: If it is one.
    """
    lacks_origin = COOKIE in request.cookies and "origin" not in request.headers
    if lacks_origin or not is_same_origin(request):
        raise ProblemError("wrong-host", OTHER_ORIGIN)


def add_login(app: FastAPI) -> None:
    """Add the login, and send browsers there that need a token."""
    app.include_router(router)

    @app.exception_handler(TokenNeededError)
    async def enter(request: Request, _: Exception) -> Response:
        if request.headers.get("hx-request"):  # part of an open page, which must be left
            return Response(status_code=401, headers={"HX-Redirect": "/login"})
        return RedirectResponse("/login", 303)


@router.get("/login")
async def login(
    request: Request, service: ServiceDep, known: TokenCacheDep, browsers: BrowsersDep,
    code: Annotated[str, Query(max_length=64)] = "",
) -> Response:  # fmt: skip
    """Ask for a token, or log a browser in by a link."""
    if not code:
        return render("login.html", page="", problem="")
    secret = browsers.use(code, service.now_s())
    if secret is None:
        return _login_again("unauthorized", USED_LINK)
    return await _log_in(request, secret, browsers, service, known)


@router.post("/login")
async def enter(request: Request, service: ServiceDep, known: TokenCacheDep, browsers: BrowsersDep) -> Response:
    """Log a browser in that has sent a token."""
    check_origin(request)
    body = await request.body()
    form = parse_qs(body.decode(errors="replace")) if len(body) <= MAX_FORM_BYTES else {}
    return await _log_in(request, form.get("token", [""])[0].strip(), browsers, service, known)


async def _log_in(
    request: Request, secret: str, browsers: Browsers, service: Service, known: TokenCacheDep
) -> Response:
    try:
        caller = await caller_with(secret, service, known)
        _check_role(caller.role)
    except ProblemError as problem:
        return _login_again(problem.code, str(problem))
    entered = RedirectResponse("/", 303, {"Referrer-Policy": "no-referrer", "Cache-Control": "no-store"})
    entered.set_cookie(
        COOKIE,
        browsers.let_in(secret, service.now_s()),
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
    )
    return entered


def _login_again(code: str, detail: str) -> Response:
    return render("login.html", CODES[code].status, page="", problem=detail)


@router.post("/logout")
async def logout(request: Request, browsers: BrowsersDep) -> Response:
    """Log a browser out."""
    check_origin(request)
    browsers.leave(request.cookies.get(COOKIE, ""))
    left = RedirectResponse("/login", 303)
    left.delete_cookie(COOKIE, httponly=True, samesite="strict")
    return left


FOREVER = "public, max-age=31536000, immutable"  # a static file has its digest in its address


def static_router() -> APIRouter:
    """Return the route of static files, which the login needs without a token."""
    router = APIRouter(include_in_schema=False)

    @router.get("/static/{name}")
    def static_file(name: str) -> Response:
        found = static_files().get(name)
        if found is None:
            return no_such_part()
        headers = {"Cache-Control": FOREVER, "X-Content-Type-Options": "nosniff"}
        return Response(found.content, media_type=found.media_type, headers=headers)

    return router
