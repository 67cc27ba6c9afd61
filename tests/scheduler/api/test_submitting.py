"""POST /v1/jobs."""

import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from fastapi import FastAPI

SPEC = {"command": ["true"], "environment": {"A": "1"}}


def jobs(api: httpx.Client) -> list[str]:
    return [job["id"] for job in api.get("/v1/jobs", params={"limit": 200}).json()["jobs"]]


def keyed(api: httpx.Client, key: str, **changes: object) -> tuple[int, dict[str, object]]:
    answer = api.post("/v1/jobs", json={**SPEC, **changes}, headers={"Idempotency-Key": key})
    return answer.status_code, answer.json()


def test_a_submitted_job_is_where_its_location_says(api: httpx.Client) -> None:
    answer = api.post("/v1/jobs", json=SPEC)

    assert answer.status_code == 201
    assert api.get(answer.headers["Location"]).json()["id"] == answer.json()["id"]


def test_the_same_key_gives_the_same_answer_and_one_job(api: httpx.Client) -> None:
    first, second = keyed(api, "k"), keyed(api, "k")

    assert first == second
    assert jobs(api) == [first[1]["id"]]


def test_what_is_left_out_is_the_same_request_as_its_default_written_out(api: httpx.Client) -> None:
    assert keyed(api, "k") == keyed(api, "k", gpus=1, retry={"user": 0})


def test_a_key_is_for_one_job_only(api: httpx.Client) -> None:
    keyed(api, "k")

    status, problem = keyed(api, "k", gpus=2)

    assert (status, problem["code"]) == (422, "key-reused")
    assert len(jobs(api)) == 1


def test_requests_of_one_key_at_the_same_time_make_one_job(api: httpx.Client) -> None:
    barrier = threading.Barrier(4)

    def ask(_: int) -> int:
        barrier.wait()
        return keyed(api, "k")[0]

    with ThreadPoolExecutor(4) as pool:
        statuses = set(pool.map(ask, range(4)))

    assert 201 in statuses
    assert statuses <= {201, 409}
    assert len(jobs(api)) == 1


def test_a_key_that_is_being_worked_on_is_refused_for_the_moment(api: httpx.Client, app: FastAPI) -> None:
    with app.state.in_flight.hold("local", "k"):
        answer = api.post("/v1/jobs", json=SPEC, headers={"Idempotency-Key": "k"})

    assert (answer.status_code, answer.json()["code"], answer.headers["Retry-After"]) == (409, "key-in-flight", "1")
    assert keyed(api, "k")[0] == 201


def test_a_dry_run_tells_what_would_become_of_a_job_and_submits_nothing(api: httpx.Client) -> None:
    api.post("/v1/jobs", json=SPEC)

    answer = api.post("/v1/jobs", json={**SPEC, "gpus": 3}, params={"dry_run": True})

    assert answer.status_code == 200
    plan = answer.json()
    assert (plan["jobs_ahead"], plan["free_gpus"], plan["would_fit"]) == (1, 16, True)
    assert plan["spec"]["estimate_s"] == 3600.0
    assert len(jobs(api)) == 1


def test_beyond_the_queued_jobs_of_a_user_a_submission_is_refused_but_a_repeat_answered(
    api: httpx.Client,
) -> None:
    first = [keyed(api, f"k{number}") for number in range(20)]

    answer = api.post("/v1/jobs", json=SPEC)

    assert (answer.status_code, answer.json()["code"], answer.headers["Retry-After"]) == (429, "too-many-queued", "60")
    assert keyed(api, "k7") == first[7]
    assert len(jobs(api)) == 20


@pytest.mark.parametrize(
    ("content", "media_type", "status", "code"),
    [
        (b"[" * 100_000, "application/json", 400, "bad-request"),
        (b"{", "application/json", 422, "invalid"),
        (b'{"command": ["true"], "nonsense": 1}', "application/json", 422, "invalid"),
        (b'{"command": ["true"], "gpus": 17}', "application/json", 422, "too-large"),
        (b'{"command": ["true"], "estimate_s": NaN}', "application/json", 422, "invalid"),
        (b'{"command": ["\\ud800"]}', "application/json", 422, "invalid"),
        (b'{"command": ["a\\u0000b"]}', "application/json", 422, "invalid"),
        (b'{"command": ["true"]}', "text/plain", 422, "invalid"),  # what a page of any website can send
        (b'{"command": ["' + b"a" * 256 * 1024 + b'"]}', "application/json", 413, "too-much"),
        (b"\xff", "application/json", 400, "bad-request"),
    ],
)
def test_a_body_that_is_no_job_is_a_problem(
    refusing_api: httpx.Client, content: bytes, media_type: str, status: int, code: str
) -> None:
    answer = refusing_api.post("/v1/jobs", content=content, headers={"Content-Type": media_type})

    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert jobs(refusing_api) == []


def test_a_shape_says_how_many_gpus(api: httpx.Client) -> None:
    shape = {"nodes": 2, "gpus_per_node": 2}
    answer = api.post("/v1/jobs", json={**SPEC, "shape": shape}).json()
    assert answer["gpus"] == 4
    assert api.get(f"/v1/jobs/{answer['id']}").json()["spec"]["shape"] == shape
    assert api.post("/v1/jobs", json={**SPEC, "shape": shape, "gpus": 4}).status_code == 201


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("given", "status", "text"),
    [
        (
            {"shape": {"nodes": 2, "gpus_per_node": 2}, "gpus": 3},
            422,
            "2 nodes with 2 GPUs each: these are not",
        ),
        ({"shape": {"nodes": 0, "gpus_per_node": 2}}, 422, "shape"),
        ({"shape": {"nodes": 2}}, 422, "gpus_per_node"),
        ({"shape": [2, 2]}, 422, "shape"),
        ({"shape": {"nodes": 10**6, "gpus_per_node": 10**6}}, 422, "1000000000000 GPUs in all"),
        (
            {"shape": {"nodes": 1, "gpus_per_node": 5}},
            422,
            "1 node with 5 GPUs, and 0 nodes have that many",
        ),
    ],
)
def test_a_shape_that_nothing_can_have_is_refused(
    api: httpx.Client, given: dict[str, object], status: int, text: str
) -> None:
    answer = api.post("/v1/jobs", json={**SPEC, **given})
    assert answer.status_code == status
    assert text in answer.text
