"""What a page of the dashboard is, and all pages by name.

All pages: ours and those that other packages register.

A page that cannot be used is left out, and the log tells so once: no package keeps a scheduler from its jobs.
"""

import logging
import re
from collections.abc import Callable
from functools import cache
from typing import Annotated, NamedTuple

from fastapi import APIRouter, Query

from ...cluster.files.errors import PluginError
from ...cluster.files.plugins import load, registered
from ..access.tokens import Role
from ..service.service import Service

OPERATORS = frozenset({Role.OPERATOR})
Seen = Annotated[str, Query(max_length=64)]  # state of the page that asks
Before = Annotated[int | None, Query(ge=1, le=2**62)]  # number of the last row of the page before


class Page(NamedTuple):
    """A page, with all that belongs to it: parts that are drawn anew, pages below it, forms."""

    name: str  # that it is registered under
    path: str  # "/", or one word, such as "/energy"
    title: str  # of the link to it
    place: int  # links stand in the order of these numbers
    seen_by: frozenset[Role]  # whose tokens let in; operators alone where it shows everybody's jobs
    add: Callable[[APIRouter, Service], None]  # adds its routes: at its path and below, and below /parts/NAME


log = logging.getLogger(__name__)

PATH = re.compile(r"/[a-z0-9-]*")
TAKEN = frozenset(  # by what is no page
    {"/v1", "/metrics", "/healthz", "/readyz", "/problems", "/static", "/parts", "/login", "/logout"}
)


def registered_pages() -> tuple[Page, ...]:
    """Return all pages that can be used, in the order of their links."""
    return _usable(tuple((name, point.value) for name, point in registered("pages").items()))


@cache
def _usable(points: tuple[tuple[str, str], ...]) -> tuple[Page, ...]:
    """Return the pages that can be used of those that are registered, each with where it comes from."""
    found = []
    for name, where in points:
        try:
            found.append(_page(name, where))
        except PluginError as error:
            log.error("the dashboard goes without a page: %s", error)
    by_path: dict[str, Page] = {}
    for page in sorted(found, key=lambda page: (page.place, page.name)):
        first = by_path.setdefault(page.path, page)
        if first is not page:
            log.error("the dashboard goes without page %r: page %r is at %s", page.name, first.name, page.path)
    return tuple(by_path.values())


def _page(name: str, where: str) -> Page:
    found: object = load("pages", name)
    if not isinstance(found, Page):
        raise PluginError(f"dashboard page {name!r} ({where}) is {type(found).__name__}, not a Page")
    if found.name != name:
        raise PluginError(f"dashboard page {name!r} ({where}) calls itself {found.name!r}; register it so")
    if not PATH.fullmatch(found.path) or found.path in TAKEN:
        raise PluginError(
            f"dashboard page {name!r} ({where}) is at {found.path!r}; give it one word of small letters, such as "
            f"'/{name}', that is not taken"
        )
    return found


def is_of(page: Page, path: str) -> bool:
    """Say whether an address belongs to a page."""
    own = [f"/parts/{page.name}", *([page.path] if page.path != "/" else [])]
    return path == page.path or any(path == it or path.startswith(f"{it}/") for it in own)
