"""What a browser is shown in place of a page: every refusal outside of the API is a page itself."""

from fastapi import Request, Response

from ..api.http.problem_codes import CODES
from .rendering import render

PAGES = ("/jobs", "/policy", "/events", "/parts/", "/static/", "/login", "/logout")  # and / itself
PROGRAMS = ("/v1/", "/metrics", "/healthz", "/readyz", "/problems/", "/openapi.json")


def refusal_page(request: Request, code: str, detail: str, headers: dict[str, str] | None) -> Response | None:
    """Return the page that tells an error, None where a program asks."""
    path = request.url.path
    lost = not path.startswith(PROGRAMS) and "text/html" in request.headers.get("accept", "")
    if not (path == "/" or path.startswith(PAGES) or lost):
        return None
    title = code.replace("-", " ").capitalize()
    answer = render("refused.html", page="", title=title, detail=detail, status=CODES[code].status)
    answer.status_code = CODES[code].status
    answer.headers.update(headers or {})
    return answer
