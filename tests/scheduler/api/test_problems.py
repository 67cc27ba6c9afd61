"""Errors: one form for all, one table of codes, and never a word of the inside."""

import ast
import re
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from longshore.scheduler.api.problems import CODES, OF_STATUS
from longshore.scheduler.service.service import Service

ROOT = Path(__file__).parents[3]
PATHS = [
    ("GET", "/nothing", 404, "not-found"),
    ("GET", "/v1/jobs/", 404, "not-found"),
    ("PUT", "/v1/jobs", 405, "method-not-allowed"),
    ("GET", "/v1/jobs?limit=0", 422, "invalid"),
    ("GET", "/v1/jobs/nobody", 404, "no-such-job"),
    ("GET", "/problems/none", 404, "not-found"),
    ("GET", "/readyz", 503, "not-ready"),
]


@pytest.mark.parametrize(("method", "path", "status", "code"), PATHS)
def test_every_error_is_a_problem(refusing_api: httpx.Client, method: str, path: str, status: int, code: str) -> None:
    answer = refusing_api.request(method, path)

    problem = answer.json()
    assert (answer.status_code, problem["status"], problem["code"]) == (status, status, code)
    assert set(problem) == {"type", "title", "status", "detail", "instance", "code"}
    assert problem["instance"] == path.partition("?")[0]
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert refusing_api.get(problem["type"]).status_code == 200


def test_a_path_names_all_its_methods(refusing_api: httpx.Client) -> None:
    assert refusing_api.put("/v1/jobs/x").headers["Allow"] == "DELETE, GET, PATCH"


def test_a_fault_of_ours_tells_nothing_of_the_inside(api: httpx.Client, app: FastAPI) -> None:
    del app.state.known

    answer = api.get("/v1/jobs")

    assert (answer.status_code, answer.json()["code"]) == (500, "internal")
    assert not re.search("Traceback|AttributeError|known", answer.text)


def test_a_scheduler_that_leads_is_ready(api: httpx.Client, service: Service) -> None:
    service.reconciler.tick()

    assert api.get("/readyz").json()["policy"] == "patient"


def test_the_page_on_the_api_has_every_code_and_no_other() -> None:
    page = (ROOT / "docs" / "api.md").read_text()

    rows = re.findall(r"^\| `([a-z-]+)` \| (\d+) \| (.+) \|$", page, re.MULTILINE)

    assert {code: (int(status), meaning) for code, status, meaning in rows} == {
        code: (each.status, each.meaning) for code, each in CODES.items()
    }


def test_every_code_is_used_and_every_used_code_is_known() -> None:
    sources = [path for room in ("api", "extender", "serve") for path in (ROOT / "scheduler" / room).rglob("*.py")]
    calls = [node for path in sources for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    named = {
        argument.value
        for call in calls
        if isinstance(call.func, ast.Name) and call.func.id in ("ProblemError", "problem_response", "openapi_problems")
        for argument in (call.args if call.func.id == "openapi_problems" else call.args[:2])
        if isinstance(argument, ast.Constant)
        and isinstance(argument.value, str)
        and re.fullmatch("[a-z-]+", argument.value)
    }

    assert named | set(OF_STATUS.values()) == set(CODES)


INVALID = [
    ("POST", "/v1/jobs", {"gpus": "two", "command": ["x"]},
     "gpus: 'two' cannot be used; it should be a whole number from 1 to 1000000"),
    ("POST", "/v1/jobs", {"name": "A B", "gpu": 1, "command": ["x"]},
     "name: 'A B' cannot be used; it should be 1 to 40 small letters, digits and -, the first and the last no - "
     "(1 more)"),
    ("POST", "/v1/jobs", {"command": ["x"], "environment": {"A": 1234567}},
     "environment.A: the value cannot be used; it should be text of at most 131072 characters, none of them zero; "
     "write it in quotes"),
    ("POST", "/v1/jobs", [], "body: an empty list cannot be used; it should be keys with values"),
    ("POST", "/v1/jobs", None, "body: is missing; add it"),
    ("GET", "/v1/jobs?limit=many", None, "limit: 'many' cannot be used; it should be a whole number from 1 to 200"),
    ("GET", "/v1/jobs?state=qeued", None,
     "state.0: 'qeued' cannot be used; it should be queued, starting, running, stopping, held, succeeded, failed or "
     "cancelled; did you mean 'queued'?"),
    ("POST", "/v1/users/me/tokens", {"name": "a", "role": "god"},
     "role: 'god' cannot be used; it should be user, operator, read-only, agent or scrape"),
]  # fmt: skip


@pytest.mark.parametrize(("method", "path", "body", "detail"), INVALID)
def test_an_invalid_request_is_answered_in_plain_words(
    refusing_api: httpx.Client, method: str, path: str, body: object, detail: str
) -> None:
    answer = refusing_api.request(method, path, **({} if body is None else {"json": body}))  # type: ignore[arg-type]

    assert (answer.status_code, answer.json()["code"]) == (422, "invalid")
    assert answer.json()["detail"] == detail


def test_what_is_no_json_says_so(refusing_api: httpx.Client) -> None:
    answer = refusing_api.post("/v1/jobs", content=b"{gpus", headers={"Content-Type": "application/json"})

    assert answer.json()["detail"].startswith("body: not JSON: ")


def test_a_repeated_filter_is_queried_once(api: httpx.Client) -> None:
    answer = api.get("/v1/jobs?" + "&".join(["state=held"] * 600))  # more terms than SQLite takes in a statement
    assert (answer.status_code, answer.json()["jobs"]) == (200, [])


def test_a_body_with_thousands_of_faults_is_answered_by_its_first_and_their_number(api: httpx.Client) -> None:
    answer = api.post("/v1/jobs", json={"gpus": 1, "command": ["true"]} | {f"a{number}": 0 for number in range(3000)})
    assert answer.status_code == 422
    assert "(2999 more)" in answer.json()["detail"]
