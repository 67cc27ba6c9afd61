"""What a browser is shown in place of a page: every refusal outside of the API is a page itself."""

from fastapi import Request, Response

from ..api.http.problem_codes import CODES
from .pages.registry import is_of, registered_pages
from .rendering import render

BESIDE_PAGES = ("/parts/", "/static/", "/login", "/logout")
PROGRAMS = ("/v1/", "/metrics", "/healthz", "/readyz", "/problems/", "/openapi.json")


def is_of_browsers(path: str) -> bool:
    """Say whether browsers ask for an address, and no programs."""
    return path.startswith(BESIDE_PAGES) or any(is_of(page, path) for page in registered_pages())


def refusal_page(request: Request, code: str, detail: str, headers: dict[str, str] | None) -> Response | None:
    """Return the page that tells an error, None where a program asks."""
    path = request.url.path
    lost = not path.startswith(PROGRAMS) and "text/html" in request.headers.get("accept", "")
    if not (is_of_browsers(path) or lost):
        return None
    title = code.replace("-", " ").capitalize()
    answer = render("refused.html", CODES[code].status, page="", title=title, detail=detail)
    answer.headers.update(headers or {})
    return answer
