"""POST /v1/jobs."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from longshore.scheduler.access.tokens import Role, add_token, new_token
from longshore.scheduler.model import job_spec
from longshore.scheduler.serve.app import create_app
from longshore.scheduler.service.service import Service
from longshore.scheduler.settings import SchedulerSettings, ServeOptions, UserLimits

from .conftest import client_of

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


CLUSTER = """\
name: small
node_types:
  slots: {gpus: 2, peak_flops: 1e12, memory_bytes: 1e9, intra_bytes_per_s: 10e9, nic_bytes_per_s: 10e9}
racks:
  - nodes:
      - {type: slots, count: 1}
run_time: {model: simple, node_penalty: 0.05}
"""

# Settings, or a limit of job files, that no longer allow the job.
CHANGES: dict[str, Callable[[Path, pytest.MonkeyPatch], dict[str, Any]]] = {
    "lower-priority": lambda _folder, _patch: {"limits": UserLimits(priority=0)},
    "fewer-gpus-of-a-user": lambda _folder, _patch: {"limits": UserLimits(priority=5, gpus=2)},
    "quota-reached": lambda _folder, _patch: {"limits": UserLimits(priority=5, queued_jobs=1)},
    "smaller-cluster": lambda folder, _patch: {"cluster": cluster_file(folder)},
    "full-disk": lambda _folder, _patch: {"least_free_bytes": 1 << 60},
    "job-file-refused": lambda _folder, patch: patch.setattr(job_spec, "MAX_SUBMITTED_GPUS", 3) or {},
}


def cluster_file(folder: Path) -> Path:
    file = folder / "small.yaml"
    file.write_text(CLUSTER)
    return file


def submissions(folder: Path, *keys: str, **changes: Any) -> list[tuple[int, object]]:
    """Submit one job with each of some keys to a scheduler with these settings, as a user."""
    settings = SchedulerSettings(folder=folder, **{"limits": UserLimits(priority=5), **changes})
    service = Service(ServeOptions(settings))
    token = new_token("-".join(keys), "ada", Role.USER, service.now_s(), None)
    service.store.write(lambda tx: add_token(tx, token.row))
    headers = {"Authorization": f"Bearer {token.secret}"}
    spec = {**SPEC, "shape": {"nodes": 2, "gpus_per_node": 2}, "priority": 5}
    with closing(service), client_of(create_app(service)) as api:
        answers = [api.post("/v1/jobs", json=spec, headers={**headers, "Idempotency-Key": key}) for key in keys]
        service.ends.set()
    return [(answer.status_code, answer.json()) for answer in answers]


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_repeat_gets_the_first_answer_whatever_has_changed_meanwhile(
    change: Callable[[Path, pytest.MonkeyPatch], dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (first,) = submissions(tmp_path / "served", "k")

    repeat, other = submissions(tmp_path / "served", "k", "new", **change(tmp_path, monkeypatch))

    assert first[0] == 201
    assert repeat == first
    assert other[0] in {403, 422, 429, 507}  # A first request is refused now.


def test_a_dry_run_has_no_key(api: httpx.Client) -> None:
    keyed(api, "k")

    answer = api.post("/v1/jobs", json=SPEC, params={"dry_run": True}, headers={"Idempotency-Key": "k"})

    assert (answer.status_code, answer.json()["jobs_ahead"]) == (200, 1)


def test_a_used_key_does_not_hide_that_another_body_is_no_job(api: httpx.Client) -> None:
    keyed(api, "k")

    status, problem = keyed(api, "k", gpus=0)

    assert (status, problem["code"]) == (422, "invalid")


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
