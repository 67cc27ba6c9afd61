"""What every page of the dashboard must do (longshore.scheduler.dashboard.pages)."""

import asyncio
import re
import tempfile
from html.parser import HTMLParser
from pathlib import Path

import httpx
from fastapi import FastAPI

from ..scheduler.api.problems import answer_with_problems
from ..scheduler.dashboard.entering import router_of
from ..scheduler.dashboard.pages import Page
from ..scheduler.dashboard.rendering import HEADERS, refusal_page
from ..scheduler.model.job import new_job_id
from ..scheduler.service.service import Service
from ..scheduler.settings import SchedulerSettings, ServeOptions
from ..scheduler.store.events import last_seq
from ..scheduler.store.jobs import NewJob, insert_job

HOSTILE = '<script>alert("x")</script>'  # the name of a job
OWN = re.compile(r"/(?!/)|#")


def check_page(page: Page) -> None:
    """Check a page of the dashboard, on a scheduler that does not run and has jobs with hostile names in its queue.

    The page must extend base.html, so that it has the links to all pages and a heading, and must be registered. It must
    keep to the scheduler's own address: no style or script stands in it, and nothing comes from elsewhere. It must show
    what users wrote as text. Parts that it draws anew must answer as well. Looking must change nothing.

    Args:
        page: What is registered.

    Raises:
        AssertionError: Saying what is broken.
        PluginError: If a route of it lies elsewhere than at the page and below.
    """
    assert isinstance(page, Page), f"it is {type(page).__name__}, not a Page"
    assert page.title, "its title is empty"
    assert page.seen_by, "nobody may see it"
    with tempfile.TemporaryDirectory() as folder:
        service = Service(ServeOptions(SchedulerSettings(folder=Path(folder), open=True)))
        try:
            asyncio.run(_check_answers(page, service))
        finally:
            service.close()


async def _check_answers(page: Page, service: Service) -> None:
    app = FastAPI()
    answer_with_problems(app, refusal_page)
    app.include_router(router_of(page, service))
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(
        transport=transport, base_url="http://here", headers={"Accept": "text/html"}
    ) as client:
        _submit(service)
        before = _seq(service)
        text = _checked(await client.get(page.path), page.path)
        _check_frame(page, text)
        parts = [address for address in _Tags(text).parts if "{" not in address]
        assert _seq(service) == before, "looking at the page changes the store"
        _submit(service)
        for address in parts:
            _checked(await client.get(address), address)


def _submit(service: Service) -> None:
    new = NewJob(new_job_id(1e9), HOSTILE, HOSTILE, {"command": [HOSTILE]}, 0, 1, 60.0, 1e9)
    service.store.write(lambda tx: insert_job(tx, new, writer="api"))


def _seq(service: Service) -> int:
    with service.store.read() as tx:
        return last_seq(tx)


def _check_frame(page: Page, text: str) -> None:
    assert '<main id="content"' in text, "it does not extend base.html"
    assert "<h1" in text, "it has no heading (h1)"
    link = f'<a href="{page.path}" aria-current="page">{page.title}</a>'
    assert link in text, f"its own link is not marked as the present page: {link}; is it registered?"


def _checked(answer: httpx.Response, address: str) -> str:
    """Return what a page or a part answered, which is nothing where nothing is new."""
    assert answer.status_code in (200, 204), f"{address} answers {answer.status_code}: {answer.text[-300:]}"
    for name, value in HEADERS.items():
        assert answer.headers.get(name) == value, f"{address} has no {name}: return what `draw` gives"
    tags = _Tags(answer.text)
    assert not tags.inline, f"{address} has {tags.inline[0]!r} in the page, which browsers refuse"
    elsewhere = [it for it in tags.addresses if not OWN.match(it)]
    assert not elsewhere, f"{address} leads to another site: {elsewhere[0]}"
    assert "<script>alert" not in answer.text, f"{address} does not escape what users wrote"
    return answer.text


class _Tags(HTMLParser):
    """What stands in a page that browsers refuse, and what it leads to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.inline: list[str] = []
        self.addresses: list[str] = []
        self.parts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        """Note a tag."""
        named = dict(attributes)
        if tag == "style" or "style" in named or (tag == "script" and "src" not in named):
            self.inline.append(tag)
        self.inline += [name for name in named if name.startswith(("on", "hx-on"))]
        self.addresses += [named[name] or "" for name in ("src", "href", "hx-get", "action") if name in named]
        self.parts += [named["hx-get"] or ""] if "hx-get" in named else []
