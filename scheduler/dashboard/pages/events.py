"""The page of everything that happened."""

from fastapi import APIRouter, Response

from ...service.service import Service
from ...store.queries import last_events
from ...store.rows.events import last_seq
from ..folding import ROWS, page_of
from ..rendering import draw, nothing_new
from .page import OPERATORS, Before, Page, Seen


def add_events(router: APIRouter, service: Service) -> None:
    """Add the page."""

    def page(template: str, before: int | None, seen: str) -> Response:
        with service.store.read() as tx:
            now = str(last_seq(tx))
            if now == seen:
                return nothing_new()
            lines, more = page_of(lambda seq: last_events(tx, ROWS, before_seq=seq), before)
        return draw(service, "events", template, lines=lines, seen=now, before=before, more=more)

    @router.get("/events")
    def events(before: Before = None) -> Response:
        return page("events.html", before, "")

    @router.get("/parts/events")
    def events_part(seen: Seen = "") -> Response:
        return page("events_part.html", None, seen)


PAGE = Page("events", "/events", "Events", 40, OPERATORS, add_events)
