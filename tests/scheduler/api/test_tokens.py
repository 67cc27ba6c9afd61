"""Tokens, and what each role may see and do."""

import asyncio
import re
import secrets
from collections.abc import Callable
from functools import partial

import httpx
import pytest
from fastapi import FastAPI, Request
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from longshore.scheduler.access.tokens import (
    MAX_EXPIRED_TOKENS,
    MAX_VALID_TOKENS,
    Role,
    add_token,
    new_token,
    revoke_token,
    tokens_of,
)
from longshore.scheduler.api import streaming
from longshore.scheduler.api.auth import caller_of_request
from longshore.scheduler.service.service import Service
from longshore.scheduler.settings import SchedulerSettings
from longshore.scheduler.store.attempts import NewDecision, add_decisions
from tests.support.budgets import examples

SPEC = {"command": ["true"]}
Headers = dict[str, str]


def bearer(secret: str) -> Headers:
    return {"Authorization": f"Bearer {secret}"}


@pytest.fixture
def known(service: Service) -> Callable[..., Headers]:
    """Makes tokens of a user, and returns their headers by role."""

    def make(owner: str, role: Role = Role.USER, expires_s: float | None = None) -> Headers:
        made = new_token(f"t-{role}", owner, role, service.now_s(), expires_s)
        service.store.write(lambda tx: add_token(tx, made.row))
        return bearer(made.secret)

    return make


def submit(api: httpx.Client, headers: Headers) -> str:
    answer = api.post("/v1/jobs", json=SPEC, headers=headers)
    assert answer.status_code == 201
    return str(answer.json()["id"])


def test_without_any_token_every_program_of_this_machine_is_the_user_local(api: httpx.Client) -> None:
    assert api.get(f"/v1/jobs/{submit(api, {})}").json()["owner"] == "local"


def test_once_there_is_a_token_every_request_needs_one(api: httpx.Client, known: Callable[..., Headers]) -> None:
    ada = known("ada")

    answer = api.get("/v1/jobs")

    assert (answer.status_code, answer.json()["code"]) == (401, "unauthorized")
    assert answer.headers["WWW-Authenticate"] == "Bearer"
    assert api.get("/v1/jobs", headers=ada).status_code == 200
    assert api.get("/healthz").status_code == 200


def test_without_a_token_no_request_tells_what_there_is(api: httpx.Client, known: Callable[..., Headers]) -> None:
    known("ada")
    paths = api.get("/openapi.json").json()["paths"]
    asked = [
        (method, re.sub("{.*?}", "1", path))
        for path, each in paths.items()
        if path.startswith("/v1/")
        for method in each
    ]

    answers = {
        (asks, body): api.request(asks[0], asks[1], content=body)
        for asks in asked
        for body in (None, b"{}", b'{"gpus": 0}')
    }

    assert len(asked) > 20
    assert {asks: answer.text for asks, answer in answers.items() if answer.status_code != 401} == {}


@pytest.mark.few(4)
@pytest.mark.parametrize("role", [Role.USER, Role.READ_ONLY, Role.AGENT, Role.SCRAPE])
@pytest.mark.parametrize("what", ["drain", "resume", "report"])
def test_a_caller_that_may_not_change_nodes_does_not_learn_their_names(
    api: httpx.Client, known: Callable[..., Headers], role: Role, what: str
) -> None:
    answer = api.post(f"/v1/nodes/rack0-nod/{what}", json={} if what == "report" else None, headers=known("ada", role))

    assert (answer.status_code, "rack0-node0" in answer.text) == (403, False)


@pytest.mark.parametrize(
    "headers", [bearer("ls_x"), {"Authorization": "Bearer"}, {"Authorization": "Basic YTpi"}, bearer("ls_\xe9")]
)
def test_what_is_no_token_is_refused(api: httpx.Client, known: Callable[..., Headers], headers: Headers) -> None:
    known("ada")

    encoded = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]

    assert api.get("/v1/jobs", headers=encoded).status_code == 401


def test_an_expired_token_is_refused(api: httpx.Client, service: Service, known: Callable[..., Headers]) -> None:
    assert api.get("/v1/jobs", headers=known("ada", expires_s=service.now_s() - 1.0)).status_code == 401


def test_the_last_token_that_is_revoked_does_not_open_the_door(api: httpx.Client, service: Service) -> None:
    made = api.post("/v1/users/me/tokens", json={"name": "laptop"}).json()["token"]

    assert api.delete("/v1/users/me/tokens/laptop", headers=bearer(made)).status_code == 204

    assert api.get("/v1/jobs", headers=bearer(made)).status_code == 401
    assert api.get("/v1/jobs").status_code == 401


def test_a_token_that_is_revoked_in_the_store_is_refused_a_moment_later(
    api: httpx.Client, service: Service, known: Callable[..., Headers]
) -> None:
    ada = known("ada")
    assert api.get("/v1/jobs", headers=ada).status_code == 200

    service.store.write(lambda tx: revoke_token(tx, "ada", "t-user", service.now_s()))

    while api.get("/v1/jobs", headers=ada).status_code == 200:
        pass  # for a second at most


def test_the_use_of_a_token_is_written_down(api: httpx.Client, service: Service, known: Callable[..., Headers]) -> None:
    before_s = service.now_s()
    api.get("/v1/jobs", headers=known("ada"))

    with service.store.read() as tx:
        used_s = tokens_of(tx, "ada")[0].used_s
    assert used_s is not None
    assert before_s <= used_s <= service.now_s()


def test_another_users_job_is_not_found(api: httpx.Client, known: Callable[..., Headers]) -> None:
    ada, bob, operator = known("ada"), known("bob"), known("olga", Role.OPERATOR)
    job = submit(api, ada)
    asked = [f"/v1/jobs/{job}{path}" for path in ("", "/attempts", "/tasks", "/events", "/decisions", "/logs")]

    assert {api.get(path, headers=bob).json()["code"] for path in asked} == {"no-such-job"}
    assert api.delete(f"/v1/jobs/{job}", headers=bob).status_code == 404
    assert api.patch(f"/v1/jobs/{job}", json={"desired": "hold"}, headers={**bob, "If-Match": "*"}).status_code == 404
    assert api.get("/v1/jobs", headers=bob).json()["jobs"] == []
    assert api.get("/v1/jobs", params={"user": "ada"}, headers=bob).json()["jobs"] == []
    assert [each["id"] for each in api.get("/v1/jobs", params={"user": "ada"}, headers=operator).json()["jobs"]] == [
        job
    ]
    assert api.get(f"/v1/jobs/{job}", headers=operator).status_code == 200


def test_a_decision_does_not_show_which_job_of_another_user_the_policy_preferred(
    api: httpx.Client, service: Service, known: Callable[..., Headers]
) -> None:
    ada, bob, operator = known("ada"), known("bob"), known("olga", Role.OPERATOR)
    mine, also_mine, his = submit(api, ada), submit(api, ada), submit(api, bob)
    received = [
        {"proposal": {"job": job}, "proposal_expected": {"slowdown": 1.0, "end_s": 9.0}, "decided_by": "patient"}
        for job in (mine, also_mine, his)
    ]
    rows = [
        NewDecision(mine, None, 1.0, "p", "1", "shadow", None, None, each, None, None, None, None, 0.0)
        for each in received
    ]
    service.store.write(lambda tx: add_decisions(tx, rows))

    def seen(headers: Headers) -> list[tuple[str, bool]]:
        pages = api.get(f"/v1/jobs/{mine}/decisions", headers=headers).json()
        return [(each["proposal"]["job"], each["proposal"]["expected"] is not None) for each in pages]

    assert seen(ada) == [(mine, True), (also_mine, True), ("-", False)]
    assert seen(operator) == [(mine, True), (also_mine, True), (his, True)]


def test_keys_of_two_users_are_two_keys(api: httpx.Client, known: Callable[..., Headers]) -> None:
    key = {"Idempotency-Key": "k"}

    assert submit(api, {**known("ada"), **key}) != submit(api, {**known("bob"), **key})


def test_a_caller_that_may_only_read_changes_nothing(api: httpx.Client, known: Callable[..., Headers]) -> None:
    job, reads = submit(api, known("ada")), known("ada", Role.READ_ONLY)

    changes = [
        api.post("/v1/jobs", json=SPEC, headers=reads),
        api.delete(f"/v1/jobs/{job}", headers=reads),
        api.patch(f"/v1/jobs/{job}", json={"desired": "hold"}, headers={**reads, "If-Match": "*"}),
        api.post("/v1/users/me/tokens", json={"name": "more"}, headers=reads),
        api.delete("/v1/users/me/tokens/t-user", headers=reads),
    ]

    assert {(answer.status_code, answer.json()["code"]) for answer in changes} == {(403, "forbidden")}
    assert api.get(f"/v1/jobs/{job}", headers=reads).status_code == 200


def test_only_operators_make_operators_and_handle_the_tokens_of_others(
    api: httpx.Client, known: Callable[..., Headers]
) -> None:
    ada, olga, path = known("ada"), known("olga", Role.OPERATOR), "/v1/users/me/tokens"

    refused = [
        api.post(path, json={"name": "a", "role": "operator"}, headers=ada),
        api.post(path, json={"name": "a", "owner": "bob"}, headers=ada),
        api.get(path, params={"owner": "olga"}, headers=ada),
        api.delete(f"{path}/t-operator", params={"owner": "olga"}, headers=ada),
    ]
    made = api.post(path, json={"name": "a", "owner": "bob", "role": "operator", "days": 1}, headers=olga)

    assert {answer.status_code for answer in refused} == {403}
    assert made.status_code == 201
    assert api.get("/v1/jobs", headers=bearer(made.json()["token"])).status_code == 200


def test_a_token_is_shown_once_and_stored_as_its_digest_alone(api: httpx.Client, service: Service) -> None:
    made = api.post("/v1/users/me/tokens", json={"name": "laptop"})
    secret = made.json()["token"]

    assert secret.startswith("ls_")
    assert len(secret) == len("ls_") + 43  # 256 bits
    assert secret not in api.get("/v1/users/me/tokens", headers=bearer(secret)).text
    stored = b"".join(path.read_bytes() for path in service.settings.folder.rglob("*") if path.is_file())
    assert secret.encode() not in stored
    again = api.post("/v1/users/me/tokens", json={"name": "laptop"}, headers=bearer(secret))
    assert (again.status_code, again.json()["code"]) == (409, "token-exists")


def test_a_user_makes_so_many_tokens_and_old_ones_are_forgotten(
    api: httpx.Client, service: Service, known: Callable[..., Headers]
) -> None:
    ada, olga, path = known("ada"), known("olga", Role.OPERATOR), "/v1/users/me/tokens"
    for number in range(MAX_VALID_TOKENS - 3):
        row = new_token(f"own{number}", "ada", Role.USER, service.now_s(), None).row
        service.store.write(lambda tx, row=row: add_token(tx, row))  # type: ignore[misc]

    made = [api.post(path, json={"name": f"n{number}"}, headers=ada) for number in range(3)]
    more = api.post(path, json={"name": "more", "owner": "ada"}, headers=olga)

    assert [each.status_code for each in made] == [201, 201, 429]
    assert (made[-1].json()["code"], "revoke one" in made[-1].json()["detail"]) == ("too-many-tokens", True)
    assert more.status_code == 201
    for number in range(MAX_EXPIRED_TOKENS + 5):
        row = new_token(f"old{number}", "ada", Role.USER, service.now_s(), float(number)).row
        service.store.write(lambda tx, row=row: add_token(tx, row))  # type: ignore[misc]
    assert len(api.get(path, headers=ada).json()) == MAX_EXPIRED_TOKENS + 1 + MAX_VALID_TOKENS
    assert not {"old0", "old4"} & {each["name"] for each in api.get(path, headers=ada).json()}


def test_a_token_that_is_not_there_cannot_be_revoked(api: httpx.Client) -> None:
    answer = api.delete("/v1/users/me/tokens/nobody")

    assert (answer.status_code, answer.json()["code"]) == (404, "no-such-token")


def test_a_stream_ends_when_its_token_is_revoked(app: FastAPI, service: Service, known: Callable[..., Headers]) -> None:
    [(_, shown)] = known("ada").items()
    request = Request({"type": "http", "app": app, "headers": [(b"authorization", shown.encode())]})

    async def follow() -> list[object]:
        knows = app.state.known
        caller = await caller_of_request(request, service, knows)
        check = partial(caller_of_request, request, service, knows)
        stream = streaming.open_stream(app.state.streams, caller, check, service, list, check_s=0.0)
        received = aiter(stream.body_iterator)
        first = await anext(received)
        service.store.write(lambda tx: revoke_token(tx, "ada", "t-user", service.now_s()))
        knows.forget()
        return [first, *[each async for each in received]]

    assert asyncio.run(asyncio.wait_for(follow(), 60.0)) == [streaming.HEARTBEAT]
    assert app.state.streams.count_open("ada") == 0


def test_only_operators_give_a_priority_above_the_limit(api: httpx.Client, known: Callable[..., Headers]) -> None:
    ada, olga = known("ada"), known("olga", Role.OPERATOR)
    job = submit(api, ada)
    path, high = f"/v1/jobs/{job}", {"priority": 101}

    refused = api.post("/v1/jobs", json={**SPEC, **high}, headers=ada)
    changed = api.patch(path, json=high, headers={**ada, "If-Match": "*"})
    by_operator = api.patch(path, json=high, headers={**olga, "If-Match": "*"})

    assert [answer.status_code for answer in (refused, changed, by_operator)] == [403, 403, 200]
    assert refused.json()["code"] == changed.json()["code"] == "too-high"
    assert api.post("/v1/jobs", json={**SPEC, "priority": 100}, headers=ada).status_code == 201


MAY = {  # a request: the roles that may ask it
    "GET /metrics": {Role.OPERATOR, Role.SCRAPE},
    "GET /v1/nodes": {Role.OPERATOR, Role.USER, Role.READ_ONLY},
    "GET /v1/jobs": {Role.OPERATOR, Role.USER, Role.READ_ONLY},
    "GET /v1/users/me/tokens": {Role.OPERATOR, Role.USER, Role.READ_ONLY},
    "POST /v1/jobs": {Role.OPERATOR, Role.USER},
    "POST /v1/nodes/rack0-node0/drain": {Role.OPERATOR},
    "POST /v1/nodes/rack0-node0/report": {Role.OPERATOR, Role.AGENT},
    "POST /v1/browser-links": {Role.OPERATOR},
    "GET /": {Role.OPERATOR},
}


@pytest.mark.parametrize("request_", MAY)
def test_each_role_may_what_the_page_on_security_says(api: httpx.Client, service: Service, request_: str) -> None:
    method, path = request_.split()
    allowed = set()
    for role in Role:
        made = new_token("t", role.value, role, service.now_s(), None, "rack0-node0" if role is Role.AGENT else None)
        service.store.write(lambda tx, row=made.row: add_token(tx, row))  # type: ignore[misc]
        body: dict[str, object] | None = None if method == "GET" else {}
        body = {**SPEC} if request_ == "POST /v1/jobs" else body
        answer = api.request(method, path, headers=bearer(made.secret), json=body)
        assert answer.is_success or answer.status_code == 403
        if answer.is_success:
            allowed.add(role)

    assert allowed == MAY[request_]


@given(own_days=st.none() | st.floats(0.01, 1000.0), days=st.none() | st.floats(0.001, 36500.0))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(50))
def test_no_token_outlives_the_one_that_made_it(
    api: httpx.Client, service: Service, own_days: float | None, days: float | None
) -> None:
    name, now_s = f"t{secrets.token_hex(8)}", service.now_s()
    own_s = None if own_days is None else now_s + own_days * 86400.0
    own = new_token(name, "ada", Role.USER, now_s, own_s)
    service.store.write(lambda tx: add_token(tx, own.row))

    body = {"name": f"{name}-child", **({} if days is None else {"days": days})}
    answer = api.post("/v1/users/me/tokens", json=body, headers=bearer(own.secret))

    if answer.status_code == 201:
        ends_s = answer.json()["expires_s"]
        assert own_s is None or (ends_s is not None and ends_s <= own_s)
    else:
        assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
        assert own_days is not None
        assert days is not None
        assert days > own_days * 0.999


@given(by=st.sampled_from(Role), wanted=st.sampled_from(Role), somebody_else=st.booleans())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_token_makes_one_that_may_more(
    api: httpx.Client,
    service: Service,
    by: Role,
    wanted: Role,
    somebody_else: bool,  # noqa: FBT001
) -> None:
    name = f"t{secrets.token_hex(8)}"
    own = new_token(name, "ada", by, service.now_s(), None, "rack0-node0" if by is Role.AGENT else None)
    service.store.write(lambda tx: add_token(tx, own.row))

    body = {
        "name": f"{name}-child", "role": wanted, "owner": "bob" if somebody_else else "ada",
        **({"node": "rack0-node1"} if wanted is Role.AGENT else {}),
    }  # fmt: skip
    made = api.post("/v1/users/me/tokens", json=body, headers=bearer(own.secret)).status_code == 201

    may = by is Role.OPERATOR or (by is Role.USER and wanted in (Role.USER, Role.READ_ONLY) and not somebody_else)
    assert made == may


@pytest.mark.parametrize(
    ("wish", "status", "code"),
    [
        ({"role": "agent"}, 422, "invalid"),
        ({"role": "agent", "node": "rack0-nod1"}, 404, "no-such-node"),
        ({"role": "user", "node": "rack0-node1"}, 422, "invalid"),
        ({"role": "agent", "node": "rack0-node1"}, 201, None),
    ],
)
def test_the_token_of_an_agent_is_for_one_node_that_there_is(
    api: httpx.Client, wish: dict[str, str], status: int, code: str | None
) -> None:
    answer = api.post("/v1/users/me/tokens", json={"name": "agent", **wish})

    assert (answer.status_code, answer.json().get("code")) == (status, code)


def test_only_operators_go_before_others_unless_it_is_allowed() -> None:
    assert SchedulerSettings().limits.priority == 0
