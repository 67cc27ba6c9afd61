"""Who sees the pages of a scheduler that asks for tokens."""

from collections.abc import Callable
from html.parser import HTMLParser

import httpx
import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute

from longshore.scheduler.access.tokens import Role, add_token, new_token, revoke_token
from longshore.scheduler.api.logs import MAX_LOG_BYTES
from longshore.scheduler.api.tokens import BROWSER_S, CODE_S, Browsers, link_path
from longshore.scheduler.dashboard.entering import MAX_FORM_BYTES, router, static_router
from longshore.scheduler.dashboard.pages import page_router
from longshore.scheduler.dashboard.rendering import is_for_browsers
from longshore.scheduler.service.service import Service
from tests.scheduler.served import until

PAGES = ("/", "/jobs", "/policy", "/events")


@pytest.fixture
def token(service: Service) -> Callable[[Role], str]:
    """Makes a token of a role."""

    def make(role: Role) -> str:
        made = new_token(role.value, "ada", role, 1.0, None)
        service.store.write(lambda tx: add_token(tx, made.row))
        return made.secret

    return make


def test_without_tokens_the_pages_are_open_on_this_machine(api: httpx.Client) -> None:
    assert [api.get(page).status_code for page in (*PAGES, "/metrics")] == [200] * (len(PAGES) + 1)
    assert api.get("/", headers={"Host": "somewhere.example"}).status_code == 403


def test_with_tokens_every_page_leads_to_the_login(api: httpx.Client, token: Callable[[Role], str]) -> None:
    token(Role.OPERATOR)
    for page in PAGES:
        answer = api.get(page)
        assert (answer.status_code, answer.headers["Location"]) == (303, "/login")
    assert api.get("/parts/cluster", headers={"HX-Request": "true"}).headers["HX-Redirect"] == "/login"
    assert "Token" in api.get("/login").text
    assert api.get("/static/dashboard.css").status_code == 200


def test_a_token_lets_in_and_the_cookie_is_good_for_the_pages_alone(
    api: httpx.Client, token: Callable[[Role], str]
) -> None:
    secret = token(Role.OPERATOR)
    answer = api.post("/login", data={"token": f" {secret} "})
    assert (answer.status_code, answer.headers["Location"]) == (303, "/")
    assert secret not in answer.headers["Set-Cookie"]
    assert {"HttpOnly", "SameSite=strict"} <= set(answer.headers["Set-Cookie"].split("; "))
    assert [api.get(page).status_code for page in PAGES] == [200] * len(PAGES)
    assert api.get("/v1/jobs").status_code == 401  # the API takes no cookie
    api.post("/logout", headers={"Origin": str(api.base_url).rstrip("/")})
    assert api.get("/").status_code == 303


@pytest.mark.few(4)
@pytest.mark.parametrize("origin", [{}, {"Origin": "null"}, {"Origin": ""}, {"Origin": "http://elsewhere.example"}])
@pytest.mark.parametrize("path", ["/logout", "/login", f"/jobs/{'0' * 26}/cancel"])
def test_a_form_with_the_cookie_says_where_it_comes_from(
    api: httpx.Client, token: Callable[[Role], str], path: str, origin: dict[str, str]
) -> None:
    api.post("/login", data={"token": token(Role.OPERATOR)})
    assert api.post(path, headers=origin).status_code == 403
    assert api.get("/").status_code == 200


def test_a_browser_shows_a_token_again_after_a_week() -> None:
    browsers = Browsers()
    number = browsers.let_in("ls_x", 1000.0)

    shown = [browsers.token_of(number, 1000.0 + later_s) for later_s in (0.0, BROWSER_S - 1.0, BROWSER_S)]

    assert shown == ["ls_x", "ls_x", None]


@pytest.mark.parametrize(("size", "status"), [(MAX_FORM_BYTES, 303), (MAX_FORM_BYTES + 1, 401)])
def test_a_form_of_more_than_4_kib_is_not_read(
    api: httpx.Client, token: Callable[[Role], str], size: int, status: int
) -> None:
    form = f"token={token(Role.OPERATOR)}&more=".encode()

    answer = api.post("/login", content=form + b"x" * (size - len(form)))

    assert MAX_FORM_BYTES == 4 << 10
    assert (answer.status_code, "Set-Cookie" in answer.headers) == (status, status == 303)


def test_a_token_that_is_none_is_refused_and_not_shown_again(api: httpx.Client, token: Callable[[Role], str]) -> None:
    token(Role.OPERATOR)
    answer = api.post("/login", data={"token": "ls_<wrong>"})
    assert answer.status_code == 401
    assert "Set-Cookie" not in answer.headers
    assert "wrong" not in answer.text
    assert api.get("/").status_code == 303


@pytest.mark.parametrize("role", [Role.USER, Role.READ_ONLY, Role.AGENT])
def test_a_caller_that_may_not_see_all_jobs_does_not_see_the_pages(
    api: httpx.Client, token: Callable[[Role], str], role: Role
) -> None:
    secret = token(role)
    answer = api.post("/login", data={"token": secret})
    assert (answer.status_code, "role operator" in answer.text) == (403, True)
    assert api.get("/", headers={"Authorization": f"Bearer {secret}"}).status_code == 403


def test_a_page_of_another_site_cannot_enter(api: httpx.Client, token: Callable[[Role], str]) -> None:
    secret = token(Role.OPERATOR)
    answer = api.post("/login", data={"token": secret}, headers={"Origin": "http://elsewhere.example"})
    assert (answer.status_code, "Set-Cookie" in answer.headers) == (403, False)


def test_a_cookie_of_another_time_does_not_lock_anybody_out(api: httpx.Client) -> None:
    assert api.get("/", headers={"Cookie": "longshore=old"}).status_code == 200


def test_metrics_take_a_token_where_the_api_does(api: httpx.Client, token: Callable[[Role], str]) -> None:
    token(Role.OPERATOR)
    assert api.get("/metrics").status_code == 401


def test_a_link_logs_one_browser_in_once_as_the_caller_that_requested_it(
    api: httpx.Client, token: Callable[[Role], str]
) -> None:
    headers = {"Authorization": f"Bearer {token(Role.OPERATOR)}"}
    path = api.post("/v1/browser-links", headers=headers).json()["path"]

    answer = api.get(path)

    assert (answer.status_code, answer.headers["Location"]) == (303, "/")
    assert api.get("/").status_code == 200
    api.cookies.clear()
    assert (api.get(path).status_code, api.get("/").status_code) == (401, 303)
    refused = api.post("/v1/browser-links", headers={"Authorization": f"Bearer {token(Role.USER)}"})
    assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")


def test_a_link_ends_with_the_token_and_after_an_hour(
    api: httpx.Client, service: Service, app: FastAPI, token: Callable[[Role], str]
) -> None:
    secret, browsers = token(Role.OPERATOR), app.state.browsers
    old = browsers.code_for(secret, service.now_s() - CODE_S)
    revoked = browsers.code_for(secret, service.now_s())
    service.store.write(lambda tx: revoke_token(tx, "ada", "operator", service.now_s()))

    assert [api.get(link_path(code)).status_code for code in (old, revoked, "", "x")] == [401, 401, 200, 401]


class Links(HTMLParser):
    """Collects the addresses that a page leads to or asks for."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: set[str] = set()
        self.feed(page)

    def handle_starttag(self, _tag: str, attributes: list[tuple[str, str | None]]) -> None:
        named = dict(attributes)
        is_sent = named.get("method") == "post"
        self.found |= {
            named[name] or "" for name in ("href", "src", "hx-get", "action") if name in named and not is_sent
        }


def test_who_has_logged_in_gets_all_that_a_page_leads_to(
    api: httpx.Client, service: Service, token: Callable[[Role], str]
) -> None:
    headers = {"Authorization": f"Bearer {token(Role.OPERATOR)}"}
    service.reconciler.tick()
    lines = MAX_LOG_BYTES // 8 + 20_000
    job = api.post("/v1/jobs", json={"command": ["/usr/bin/seq", "-f", "%07g", str(lines)]}, headers=headers).json()[
        "id"
    ]
    until(
        lambda: service.reconciler.tick() and api.get(f"/v1/jobs/{job}", headers=headers).json()["state"] == "succeeded"
    )
    api.post("/login", data={"token": headers["Authorization"].removeprefix("Bearer ")})
    seen, left = set[str](), {"/", f"/jobs/{job}"}
    while left:
        page = left.pop()
        answer = api.get(page)
        assert answer.status_code in (200, 204), page
        seen.add(page)
        if answer.headers.get("Content-Type", "").startswith("text/html"):
            found = {address.partition("#")[0] for address in Links(answer.text).found}
            left |= {address for address in found - seen if address and not address.startswith("/static/")}

    (whole,) = [page for page in seen if page.endswith("/logs?attempt=1&rank=0")]
    log = api.get(whole)
    assert log.headers["Content-Type"] == "text/plain; charset=utf-8"
    assert log.text.splitlines() == [f"{number:07}" for number in range(1, lines + 1)]
    api.cookies.clear()
    assert api.get(whole).status_code == 303
    assert api.get(whole, headers=headers).status_code == 200
    for refused in (
        whole.replace("rank=0", "rank=7"),
        whole.replace("attempt=1", "attempt=7"),
        "/jobs/x/logs?attempt=1",
    ):
        assert api.get(refused, headers=headers).status_code == 404


REFUSALS = [
    ("GET", "/jobs?before=nobody", {}, 422),
    ("GET", "/jobs?state=nothing", {}, 422),
    ("GET", "/", {"Host": "somewhere.example"}, 403),
    ("GET", "/events", {"Origin": "http://localhost:3000"}, 403),
    ("POST", "/jobs", {}, 405),
    ("POST", "/login", {"Origin": "null"}, 403),
    ("POST", "/logout", {"Origin": "http://elsewhere.example"}, 403),
    ("GET", f"/login?code={'x' * 65}", {}, 422),
    ("GET", "/nothing", {"Accept": "text/html"}, 404),
    ("GET", "/jobs/nobody/hold", {}, 405),
]


@pytest.mark.parametrize(("method", "path", "headers", "status"), REFUSALS)
def test_every_refusal_of_a_page_is_a_page(
    refusing_api: httpx.Client, method: str, path: str, headers: dict[str, str], status: int
) -> None:
    answer = refusing_api.request(method, path, headers=headers)

    assert (answer.status_code, answer.headers["Content-Type"]) == (status, "text/html; charset=utf-8")
    assert "<h1>" in answer.text
    assert answer.headers["Content-Security-Policy"]


def test_a_fault_and_a_body_that_is_too_large_are_shown_on_a_page_too(api: httpx.Client, app: FastAPI) -> None:
    large = api.post("/login", content=b"x" * 300_000)
    del app.state.known
    fault = api.get("/jobs")

    assert [(each.status_code, "<h1>" in each.text) for each in (large, fault)] == [(413, True), (500, True)]


def test_every_page_that_there_is_tells_its_refusals_on_a_page(service: Service) -> None:
    routers = [page_router(service), static_router(), router]
    paths = [item.path for each in routers for item in each.routes if isinstance(item, APIRoute)]

    assert {*PAGES, "/jobs/{job}", "/parts/jobs", "/login", "/static/{name}"} <= set(paths)
    assert [path for path in paths if not is_for_browsers(path)] == []


def test_a_link_of_an_open_scheduler_needs_no_token_whatever_the_request_has(
    api: httpx.Client, token: Callable[[Role], str]
) -> None:
    for headers in ({}, {"Authorization": "Bearer ls_of-an-earlier-scheduler-at-this-port"}):
        path = api.post("/v1/browser-links", headers=headers).json()["path"]
        assert api.get(path).status_code == 200
    secret = token(Role.OPERATOR)
    assert api.post("/v1/browser-links", headers={"Authorization": f"Bearer {secret}"}).json()["path"] != "/"
