"""Routes of all pages, and who sees which. A browser that has shown a token keeps a number in its place.

Who sees which page. A browser that has told a token keeps a number in its place.

The number is good for the pages alone, and only until the scheduler ends: cookies go to every server of a host.

Source: SPEC K8, K11; docs/operate.md, Dashboard.
"""

import logging
from collections.abc import Awaitable, Callable, Collection, Iterator
from typing import Annotated
from urllib.parse import parse_qs

from fastapi import APIRouter, FastAPI, Query, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from fastapi.routing import APIRoute

from ...cluster.files.errors import PluginError
from ..access.browsers import Browsers
from ..access.tokens import Caller, Role
from ..api.auth import Knowing, Known, Serving, caller_with, has_own_origin, who_asks
from ..api.problems import CODES, ProblemError
from ..api.tokens import Letting, browsers_of
from ..service.service import Service
from .pages import OPERATORS, Page, is_of, registered_pages
from .rendering import draw, no_part, render, static_files

COOKIE = "longshore"
OTHER_ORIGIN = "this was sent by another site, or by a proxy that does not pass the `Host` of the request on"
USED = "the link was used, or is more than an hour old; `longshore dashboard` prints another"
MOST_FORM_BYTES = 4096  # a form with a token

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)


class TokenNeededError(Exception):
    """Nobody may see a page without a token."""


def looking(seen_by: Collection[Role]) -> Callable[..., Awaitable[None]]:
    """Return the dependency that lets in who has one of some roles, and tells the page who it is.

    It raises TokenNeededError if the request has no valid token, and needs one; ProblemError if whoever asks has
    another role.
    """

    async def look(request: Request, service: Serving, known: Knowing) -> None:
        request.state.caller = caller = await _caller(request, service, known)
        if caller.role not in seen_by:
            raise ProblemError("forbidden", _refused(seen_by))

    return look


async def _caller(request: Request, service: Service, known: Known) -> Caller:
    secret = (await browsers_of(request)).token_of(request.cookies.get(COOKIE, ""), service.now_s())
    try:
        if secret is None or "authorization" in request.headers:
            return await who_asks(request, service, known)
        return await caller_with(secret, service, known)
    except ProblemError as problem:
        if problem.code == "unauthorized":
            raise TokenNeededError from problem
        raise


def _refused(seen_by: Collection[Role]) -> str:
    if seen_by == OPERATORS:
        return "the pages show everybody's jobs: they take a token with the role operator"
    return f"this page takes a token with the role {' or '.join(sorted(seen_by))}"


def check_origin(request: Request) -> None:
    """Refuse a form that another site sent: its pages may name any address.

    Browsers say with each form where it came from. One that comes with the cookie and does not say it is refused too.

    Raises:
        ProblemError: If it is one.
    """
    is_mute = COOKIE in request.cookies and "origin" not in request.headers
    if is_mute or not has_own_origin(request):
        raise ProblemError("wrong-host", OTHER_ORIGIN)


def ask_for_tokens(app: FastAPI) -> None:
    """Add the page that asks for a token, and send there who needs one."""
    app.include_router(router)

    @app.exception_handler(TokenNeededError)
    async def enter(request: Request, _: Exception) -> Response:
        if request.headers.get("hx-request"):  # part of a page that is open: it has to be left
            return Response(status_code=401, headers={"HX-Redirect": "/login"})
        return RedirectResponse("/login", 303)


@router.get("/login")
async def login(
    request: Request, service: Serving, known: Knowing, browsers: Letting,
    code: Annotated[str, Query(max_length=64)] = "",
) -> Response:  # fmt: skip
    """Ask for a token, or let a browser in by a link."""
    if not code:
        return render("login.html", page="", problem="")
    secret = browsers.use(code, service.now_s())
    if secret is None:
        return _asked_again("unauthorized", USED)
    return await _let_in(request, secret, browsers, service, known)


@router.post("/login")
async def enter(request: Request, service: Serving, known: Knowing, browsers: Letting) -> Response:
    """Know a browser again that has told a token."""
    check_origin(request)
    body = await request.body()
    form = parse_qs(body.decode(errors="replace")) if len(body) <= MOST_FORM_BYTES else {}
    return await _let_in(request, form.get("token", [""])[0].strip(), browsers, service, known)


async def _let_in(request: Request, secret: str, browsers: Browsers, service: Service, known: Knowing) -> Response:
    try:
        caller = await caller_with(secret, service, known)
        first = _first_page(caller.role)
    except ProblemError as problem:
        return _asked_again(problem.code, str(problem))
    entered = RedirectResponse(first, 303, {"Referrer-Policy": "no-referrer", "Cache-Control": "no-store"})
    entered.set_cookie(
        COOKIE,
        browsers.let_in(secret, service.now_s()),
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
    )
    return entered


def _first_page(role: Role) -> str:
    """Return the address at which a role begins.

    Raises:
        ProblemError: If there is no page for it.
    """
    pages = registered_pages()
    first = next((page.path for page in pages if role in page.seen_by), None)
    if first is None:
        raise ProblemError("forbidden", _refused(frozenset(seen for page in pages for seen in page.seen_by)))
    return first


def _asked_again(code: str, detail: str) -> Response:
    return render("login.html", CODES[code].status, page="", problem=detail)


@router.post("/logout")
async def logout(request: Request, browsers: Letting) -> Response:
    """Know a browser no more."""
    check_origin(request)
    browsers.leave(request.cookies.get(COOKIE, ""))
    left = RedirectResponse("/login", 303)
    left.delete_cookie(COOKIE, httponly=True, samesite="strict")
    return left


log = logging.getLogger(__name__)

KEPT = "public, max-age=31536000, immutable"


def page_routers(service: Service) -> Iterator[tuple[Page, APIRouter]]:
    """Yield all pages of a scheduler, each with its routes, which nobody guards yet."""
    for page in registered_pages():
        try:
            yield page, router_of(page, service)
        except Exception as error:  # a stranger's code may fail in any way
            log.exception("the dashboard cannot show page %r", page.name)
            yield page, _router_of_broken(page, service, str(error))


def router_of(page: Page, service: Service) -> APIRouter:
    """Return the routes of a page.

    Raises:
        PluginError: If one lies elsewhere than at the page and below, or nothing is at the page.
    """
    router = _empty_router()
    page.add(router, service)
    if any(not isinstance(route, APIRoute) for route in router.routes):
        raise PluginError("it has routes that nothing guards; add them by get, post and the like")
    paths = [route.path for route in router.routes if isinstance(route, APIRoute)]
    elsewhere = [path for path in paths if not is_of(page, path)]
    if elsewhere:
        raise PluginError(f"{elsewhere[0]} is neither below {page.path} nor below /parts/{page.name}")
    if page.path not in paths:
        raise PluginError(f"nothing is at {page.path}")
    return router


def _router_of_broken(page: Page, service: Service, problem: str) -> APIRouter:
    router = _empty_router()

    @router.get(page.path)
    def broken() -> Response:
        what = f"The page {page.name!r} cannot be shown: {problem}"
        return draw(service, page.name, "missing.html", 500, what=what)

    return router


def _empty_router() -> APIRouter:
    return APIRouter(include_in_schema=False, default_response_class=HTMLResponse)


def static_router() -> APIRouter:
    """Return the route of static files, which the page that asks for a token needs itself."""
    router = _empty_router()

    @router.get("/static/{name}")
    def static_file(name: str) -> Response:
        found = static_files().get(name)
        if found is None:
            return no_part()
        headers = {"Cache-Control": KEPT, "X-Content-Type-Options": "nosniff"}
        return Response(found.content, media_type=found.media_type, headers=headers)

    return router
