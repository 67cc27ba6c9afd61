"""What every page of the dashboard must do, whoever wrote it, and where one more appears."""

from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from fastapi import APIRouter, Response

from longshore.cluster.files.errors import PluginError
from longshore.cluster.files.plugins import load, registered
from longshore.scheduler.access.tokens import Role, new_token
from longshore.scheduler.dashboard.pages import OPERATORS, Page, is_of, registered_pages
from longshore.scheduler.dashboard.rendering import draw, template_of
from longshore.scheduler.serve.app import create_app
from longshore.scheduler.service.service import Service
from longshore.scheduler.settings import SchedulerSettings, ServeOptions
from longshore.scheduler.store.tokens import add_token
from longshore.testing import check_page
from tests.packages import install

OURS = ["cluster", "jobs", "policy", "events"]
THEIRS = """
from fastapi import Request
from longshore.scheduler.access.tokens import Role
from longshore.scheduler.dashboard.pages import OPERATORS, Page
from longshore.scheduler.dashboard.rendering import draw, template_of
from longshore.scheduler.store.queries import count_jobs

TEMPLATE = template_of('''
{% extends "base.html" %}
{% block title %}Energy{% endblock %}
{% block content %}<h1>Energy</h1><p>{{ who }}: {{ jobs }} jobs, decided by {{ fallback }}</p>{% endblock %}
''')

def add(router, service):
    @router.get("/energy")
    def energy(request: Request):
        with service.store.read() as tx:
            jobs = sum(count_jobs(tx).values())
        return draw(service, "energy", TEMPLATE, jobs=jobs, who=getattr(request.state, "caller", None))

def fails(router, service):
    raise RuntimeError("no licence")

def strays(router, service):
    @router.get("/v1/jobs")
    def steals():
        return None

ENERGY = Page("energy", "/energy", "Energy", 35, OPERATORS, add)
OPEN = ENERGY._replace(seen_by=frozenset(Role))
BROKEN = Page("broken", "/broken", "Broken", 50, OPERATORS, fails)
STRAYING = Page("straying", "/straying", "Straying", 51, OPERATORS, strays)
TAKEN = Page("taken", "/metrics", "Taken", 52, OPERATORS, add)
DEEP = Page("deep", "/a/b", "Deep", 53, OPERATORS, add)
SECOND = Page("second", "/energy", "Second", 54, OPERATORS, add)
NO_PAGE = add
"""


@pytest.mark.parametrize("name", registered("pages"))
def test_a_page_keeps_to_its_own_address_and_shows_what_users_wrote_as_text(name: str) -> None:
    check_page(load("pages", name))


def test_ours_stand_in_the_order_of_their_places() -> None:
    assert [page.name for page in registered_pages()] == OURS


def test_an_address_belongs_to_one_page() -> None:
    page = registered_pages()[1]
    assert [is_of(page, it) for it in ("/jobs", "/jobs/x", "/parts/jobs", "/parts/jobs/x/logs")] == [True] * 4
    assert [is_of(page, it) for it in ("/", "/jobsx", "/parts/jobsx", "/parts", "/events")] == [False] * 5
    assert [is_of(registered_pages()[0], it) for it in ("/", "/parts/cluster", "/jobs")] == [True, True, False]


async def get(service: Service, path: str, secret: str | None = None) -> httpx.Response:
    headers = {"Accept": "text/html"} | ({} if secret is None else {"Authorization": f"Bearer {secret}"})
    transport = httpx.ASGITransport(create_app(service), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        return await client.get(path, headers=headers)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    made = Service(ServeOptions(SchedulerSettings(folder=tmp_path / "served", open=True)))
    yield made
    made.close()


@pytest.fixture
def theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def register(**points: str) -> None:
        values = {name: f"their_pages:{value}" for name, value in points.items()}
        install(tmp_path / "theirs", monkeypatch, "pages", values, their_pages=THEIRS)

    return register


@pytest.mark.anyio
async def test_a_page_of_another_package_is_served_and_linked_from_all_pages(
    service: Service, theirs: Callable[..., None]
) -> None:
    theirs(energy="ENERGY")
    page = await get(service, "/energy")
    assert (page.status_code, "0 jobs, decided by patient" in page.text) == (200, True)
    for path in ("/", "/jobs", "/energy"):
        text = (await get(service, path)).text
        links = [text.index(f'<a href="{it}"') for it in ("/policy", "/energy", "/events")]
        assert links == sorted(links)


def test_a_page_of_another_package_passes_the_check(theirs: Callable[..., None]) -> None:
    theirs(energy="ENERGY")
    check_page(load("pages", "energy"))


@pytest.mark.anyio
@pytest.mark.parametrize(("value", "statuses"), [("ENERGY", (303, 200, 403)), ("OPEN", (303, 200, 200))])
async def test_the_login_guards_a_page_by_whom_it_says_may_see_it(
    service: Service, theirs: Callable[..., None], value: str, statuses: tuple[int, ...]
) -> None:
    theirs(energy=value)
    secrets: list[str | None] = [None]
    for role in (Role.OPERATOR, Role.USER):
        made = new_token(role.value, "ada", role, 1.0, None)
        service.store.write(lambda tx, row=made.row: add_token(tx, row))  # type: ignore[misc]
        secrets.append(made.secret)
    assert tuple([(await get(service, "/energy", secret)).status_code for secret in secrets]) == statuses
    assert (await get(service, "/jobs", secrets[2])).status_code == 403
    entered = await enter(service, secrets[2] or "")
    if value == "OPEN":
        assert (entered.status_code, entered.headers["Location"]) == (303, "/energy")
        assert "owner=&#39;ada&#39;" in (await get(service, "/energy", secrets[2])).text
    else:
        assert (entered.status_code, "role operator" in entered.text) == (403, True)


async def enter(service: Service, secret: str) -> httpx.Response:
    """Tell the page that asks for one a token."""
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(create_app(service)), base_url="http://127.0.0.1"
    ) as client:
        return await client.post("/login", data={"token": secret})


@pytest.mark.anyio
async def test_a_page_that_cannot_be_used_is_told_in_the_log_and_harms_no_other(
    service: Service, theirs: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    theirs(
        energy="ENERGY", broken="BROKEN", straying="STRAYING", taken="TAKEN", deep="DEEP", second="SECOND",
        misnamed="ENERGY", no_page="NO_PAGE", gone="GONE", jobs="ENERGY",
    )  # fmt: skip
    assert [page.name for page in registered_pages()] == [
        "cluster",
        "jobs",
        "policy",
        "energy",
        "events",
        "broken",
        "straying",
    ]
    for told in (
        "page 'no_page' (their_pages:NO_PAGE) is function, not a Page",
        "page 'misnamed' (their_pages:ENERGY) calls itself 'energy'; register it so",
        "page 'taken' (their_pages:TAKEN) is at '/metrics'; give it one word",
        "page 'deep' (their_pages:DEEP) is at '/a/b'; give it one word",
        "page 'second': page 'energy' is at /energy",
        "page 'gone' (their_pages:GONE) cannot be imported",
    ):
        assert told in caplog.text
    assert (await get(service, "/")).status_code == 200
    for path, why in (("/broken", "no licence"), ("/straying", "/v1/jobs is neither below /straying nor below")):
        answer = await get(service, path)
        assert (answer.status_code, why in answer.text) == (500, True)


PAGE = registered_pages()[3]


def with_text(content: str, **values: object) -> Page:
    """Return the page of events with another content."""

    def add(router: APIRouter, service: Service) -> None:
        template = template_of(f'{{% extends "base.html" %}}{{% block content %}}{content}{{% endblock %}}')

        @router.get(PAGE.path)
        def page() -> Response:
            with service.store.read() as tx:
                from longshore.scheduler.store.jobs import list_jobs

                jobs = list_jobs(tx, limit=10)
            return draw(service, "events", template, jobs=jobs, **values)

    return PAGE._replace(add=add)


def bare(router: APIRouter, service: Service) -> None:
    @router.get(PAGE.path)
    def page() -> str:
        return "<h1>x</h1>"


def strays(router: APIRouter, service: Service) -> None:
    @router.get("/v1/jobs")
    def page() -> str:
        return ""


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        (None, "it is NoneType, not a Page"),
        (PAGE._replace(title=""), "its title is empty"),
        (PAGE._replace(seen_by=frozenset()), "nobody may see it"),
        (PAGE._replace(add=bare), "/events has no Content-Security-Policy: return what `draw` gives"),
        (PAGE._replace(title="Other"), "its own link is not marked as the present page"),
        (with_text("<p>x</p>"), r"it has no heading \(h1\)"),
        (with_text("<h1>x</h1><style>p {}</style>"), "/events has 'style' in the page"),
        (with_text('<h1 onclick="x">x</h1>'), "/events has 'onclick' in the page"),
        (with_text("<h1>x</h1><script>x</script>"), "/events has 'script' in the page"),
        (with_text('<h1>x</h1><img src="https://else.example/x.png">'), "leads to another site: https://else.example"),
        (with_text('<h1>x</h1><p hx-get="/parts/events/x">x</p>'), "/parts/events/x answers 404"),
        (with_text("<h1>x</h1>{{ jobs[0].name|safe }}"), "has 'script' in the page"),
    ],
)
def test_the_check_says_what_is_broken(broken: Page, says: str) -> None:
    with pytest.raises(AssertionError, match=says):
        check_page(broken)


def test_the_check_refuses_routes_elsewhere() -> None:
    with pytest.raises(PluginError, match="/v1/jobs is neither below /events nor below /parts/events"):
        check_page(PAGE._replace(add=strays))


def test_operators_see_all_of_ours() -> None:
    assert {page.seen_by for page in registered_pages()} == {OPERATORS}
