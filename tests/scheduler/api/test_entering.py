"""Who sees the pages of a scheduler that asks for tokens."""

from collections.abc import Callable

import httpx
import pytest

from longshore.scheduler.service import Service
from longshore.scheduler.store.user_tokens import add_token
from longshore.scheduler.tokens import Role, new_token

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


def test_with_tokens_every_page_leads_to_the_one_that_asks_for_one(
    api: httpx.Client, token: Callable[[Role], str]
) -> None:
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
    api.post("/logout")
    assert api.get("/").status_code == 303


def test_a_token_that_is_none_is_refused_and_not_shown_again(api: httpx.Client, token: Callable[[Role], str]) -> None:
    token(Role.OPERATOR)
    answer = api.post("/login", data={"token": "ls_<wrong>"})
    assert answer.status_code == 401
    assert "Set-Cookie" not in answer.headers
    assert "wrong" not in answer.text
    assert api.get("/").status_code == 303


@pytest.mark.parametrize("role", [Role.USER, Role.READ_ONLY])
def test_who_may_not_see_all_jobs_does_not_see_the_pages(
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
    secret = token(Role.READ_ONLY)
    assert api.get("/metrics").status_code == 401
    assert api.get("/metrics", headers={"Authorization": f"Bearer {secret}"}).status_code == 200
