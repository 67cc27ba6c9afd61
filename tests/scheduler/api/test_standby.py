"""A scheduler that does not lead: it writes to the store what the leader reads there, and refuses all else."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from longshore.scheduler.access.tokens import Role, add_token, new_token
from longshore.scheduler.serve.app import create_app
from longshore.scheduler.service.service import Service
from longshore.scheduler.store.events import SCHEDULER_LEASE, release_lease

from .conftest import client_of, service_in

NODE = "rack0-node1"
REPORT = {"gpus": [], "boot_id": "", "version": "1"}
FINDING = {"node": NODE, "gpu": 1, "cause": "noise"}
# Each request that changes something, its body, and whether only the leader can do it.
REQUESTS: dict[str, tuple[dict[str, Any] | None, bool]] = {
    "POST /v1/jobs": ({"command": ["true"]}, False),
    "PATCH /v1/jobs/{job}": ({"desired": "hold"}, False),
    "POST /v1/jobs/{job}/retry": (None, False),
    "DELETE /v1/jobs/{job}": (None, False),
    "POST /v1/jobs/{job}/checkpoints": ({"attempt": 1, "step": 1, "path": "/a"}, False),
    "POST /v1/nodes/{node}/drain": (None, False),
    "POST /v1/nodes/{node}/resume": (None, True),
    "POST /v1/nodes/{node}/report": (REPORT, True),
    "POST /v1/nodes/{node}/checks/{order}": ({"passed": True, "evidence": ""}, True),
    "POST /v1/nodes/{node}/port-probes": ({"results": {}}, True),
    "POST /v1/quarantine": (FINDING, False),
    "POST /v1/quarantine/clear": ({"node": NODE, "gpu": 1}, True),
    "GET /v1/unknown-attempts": (None, True),
    "POST /v1/unknown-attempts/{attempt}/end": (None, True),
    "POST /v1/unknown-attempts/{attempt}/disregard": (None, True),
    "POST /v1/users/me/tokens": ({"name": "laptop"}, False),
    "DELETE /v1/users/me/tokens/{name}": (None, False),
    "POST /v1/browser-links": (None, False),
}


@pytest.fixture
def standby(service: Service, tmp_path: Path) -> Iterator[Service]:
    """A second scheduler of the same folder, while `service` leads."""
    assert service.reconciler.tick()
    made = service_in(tmp_path / "served")
    assert not made.reconciler.tick()
    yield made
    made.close()


@pytest.fixture
def asked(standby: Service) -> Iterator[httpx.Client]:
    made = new_token("op", "olga", Role.OPERATOR, standby.now_s(), None)
    standby.store.write(lambda tx: add_token(tx, made.row))
    with client_of(create_app(standby)) as client:
        client.headers["Authorization"] = f"Bearer {made.secret}"
        yield client
        standby.ends.set()


def send(client: httpx.Client, request: str, job: str) -> httpx.Response:
    method, path = request.split()
    path = path.format(job=job, node=NODE, order="0" * 16, attempt="x-1", name="laptop")
    return client.request(method, path, headers={"If-Match": "*"}, json=REQUESTS[request][0])


def test_what_only_the_leader_knows_is_refused_and_all_else_reaches_it(
    asked: httpx.Client, service: Service, standby: Service
) -> None:
    job = send(asked, "POST /v1/jobs", "").json()["id"]
    paths = asked.get("/openapi.json").json()["paths"]
    changing = {
        f"{method.upper()} {path}"
        for path, methods in paths.items()
        if path.startswith("/v1/")
        for method in methods
        if method != "get"
    }
    assert changing <= REQUESTS.keys()

    answers = {request: send(asked, request, job) for request in REQUESTS if request != "POST /v1/jobs"}

    refused = {request for request, answer in answers.items() if answer.status_code == 503}
    assert refused == {request for request, (_, needs_leader) in REQUESTS.items() if needs_leader}
    assert {(answers[request].json()["code"], answers[request].headers["Retry-After"]) for request in refused} == {
        ("not-ready", "1")
    }
    service.reconciler.tick()
    assert set(service.control.monitor.health.closed) == {4, 5, 6, 7}  # drained through the standby
    assert asked.post("/v1/quarantine/clear", json={"node": NODE, "unchecked": True}).status_code == 200
    service.store.write(lambda tx: release_lease(tx, SCHEDULER_LEASE, service.reconciler._fence or 0))
    assert standby.reconciler.tick()
    assert send(asked, "POST /v1/nodes/{node}/resume", job).status_code == 204
    assert send(asked, "POST /v1/nodes/{node}/report", job).status_code == 200
    assert asked.get("/v1/unknown-attempts").status_code == 200
