"""What a page of the dashboard is."""

from collections.abc import Callable
from typing import Annotated, NamedTuple

from fastapi import APIRouter, Query

from ...access.tokens import Role
from ...service.service import Service

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
