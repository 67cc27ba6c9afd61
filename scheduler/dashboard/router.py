"""Routes of all pages, each page's apart, so that one dependency can guard it.

Source: SPEC K8, K11; docs/dashboard.md.
"""

import logging
from collections.abc import Iterator

from fastapi import APIRouter, Response
from fastapi.responses import HTMLResponse
from fastapi.routing import APIRoute

from ...cluster.files.errors import PluginError
from ..service.service import Service
from .pages.page import Page
from .pages.registry import is_of, registered_pages
from .rendering import draw, no_part, static_files

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
