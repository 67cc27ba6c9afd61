"""Templates, static files, headers that keep a page to itself, and refusals as pages.

Source: SPEC K8, K11; docs/operate.md, Dashboard.
"""

from functools import cache
from hashlib import sha256
from importlib.resources import files
from pathlib import PurePath
from typing import NamedTuple

from fastapi import Request, Response
from fastapi.responses import HTMLResponse
from jinja2 import Environment, FunctionLoader, StrictUndefined

from ..api.decisions import decision_page
from ..api.problems import CODES
from ..model.job import estimate_source_words
from ..service.service import Service
from .charts import gpu_blocks, gpu_cells
from .views import duration_text, elapsed, indices_text, milliseconds_text, moment, placement_text, sentence


class DashboardPage(NamedTuple):
    """A page that all pages link to. Its parts are below /parts/NAME, and are drawn again while it is open."""

    name: str
    path: str
    title: str  # of the link

    def has(self, path: str) -> bool:
        """Return whether an address belongs to the page."""
        own = [f"/parts/{self.name}", *([self.path] if self.path != "/" else [])]
        return path == self.path or any(path == each or path.startswith(f"{each}/") for each in own)


PAGES = (
    DashboardPage("cluster", "/", "Cluster"),
    DashboardPage("jobs", "/jobs", "Jobs"),
    DashboardPage("policy", "/policy", "Policy"),
    DashboardPage("events", "/events", "Events"),
)

CSP = "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; object-src 'none'"
HEADERS = {
    "Content-Security-Policy": CSP,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",  # without one a form has the origin `null`, like another site
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
MEDIA_TYPES = {
    "css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8", "svg": "image/svg+xml",
    "txt": "text/plain; charset=utf-8", "woff2": "font/woff2",
}  # fmt: skip


class StaticFile(NamedTuple):
    """A file that pages use, as it is in the package."""

    content: bytes
    media_type: str
    digest: str  # part of its address, so that browsers may keep it


@cache
def static_files() -> dict[str, StaticFile]:
    """Return all static files by name; what a style sheet names is named with its digest there."""
    found: dict[str, StaticFile] = {}
    for entry in sorted((files(__package__) / "static").iterdir(), key=lambda entry: entry.name.endswith(".css")):
        media_type = MEDIA_TYPES.get(entry.name.rsplit(".", 1)[-1])
        if media_type is not None:
            content = entry.read_bytes()
            if media_type == MEDIA_TYPES["css"]:
                for name, file in found.items():
                    content = content.replace(f'url("{name}")'.encode(), f'url("{name}?v={file.digest}")'.encode())
            found[entry.name] = StaticFile(content, media_type, sha256(content).hexdigest()[:16])
    return found


def static_url(name: str) -> str:
    """Return the address of a static file."""
    return f"/static/{name}?v={static_files()[name].digest}"


def render(template: str, status_code: int = 200, /, **values: object) -> HTMLResponse:
    """Return a page that shows values; every value is escaped."""
    text = _environment().get_template(template).render(values)
    return HTMLResponse(text, status_code, headers=HEADERS)


def render_with_state(
    service: Service, page: str, template: str, status_code: int = 200, /, **values: object
) -> HTMLResponse:
    """Return a page, or a part of one, with the state of the scheduler.

    Args:
        service: The scheduler.
        page: Name of the page, whose link is marked; "" for none.
        template: Its name.
        status_code: Of the answer.
        values: What else it shows.
    """
    placer = service.control.placer
    return render(
        template, status_code, page=page, now_s=service.now_s(), leads=service.leads(), mode=placer.mode,
        policy=placer.policy, fallback=placer.fallback.name, deadline_s=placer.deadline_s,
        asks_for_tokens=not service.is_open, **values,
    )  # fmt: skip


def unchanged_response() -> Response:
    """Return the answer that leaves a page as it is."""
    return Response(status_code=204, headers=HEADERS)


def no_such_part() -> Response:
    """Return that there is no such part of a page."""
    return Response(status_code=404, headers=HEADERS)


@cache
def _environment() -> Environment:
    folder = files(__package__) / "templates"
    loader = FunctionLoader(lambda name: (folder / name).read_text(encoding="utf-8"))
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(
        duration=duration_text, moment=moment, ms=milliseconds_text, placement=placement_text, indices=indices_text,
        cells=gpu_cells, blocks=gpu_blocks, decision=decision_page, sentence=sentence,
        base=lambda name: PurePath(name).name, percent=lambda number: f"{number:.4g}%",
        share=lambda number: f"{100 * number:.0f} %",
    )  # fmt: skip
    environment.globals.update(static=static_url, elapsed=elapsed, pages=PAGES, estimate_words=estimate_source_words)
    return environment


BESIDE_PAGES = ("/parts/", "/static/", "/login", "/logout")
PROGRAMS = ("/v1/", "/metrics", "/healthz", "/readyz", "/problems/", "/openapi.json")


def is_for_browsers(path: str) -> bool:
    """Return whether an address is for browsers, and not for programs."""
    return path.startswith(BESIDE_PAGES) or any(page.has(path) for page in PAGES)


def refusal_page(request: Request, code: str, detail: str, headers: dict[str, str] | None) -> Response | None:
    """Return an error as a page, None for a program."""
    path = request.url.path
    lost = not path.startswith(PROGRAMS) and "text/html" in request.headers.get("accept", "")
    if not (is_for_browsers(path) or lost):
        return None
    title = code.replace("-", " ").capitalize()
    answer = render("refused.html", CODES[code].status, page="", title=title, detail=detail)
    answer.headers.update(headers or {})
    return answer
