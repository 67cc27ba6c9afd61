"""A real agent runs the checks that clear a quarantine, where the scheduler's nodes are other machines."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from longshore.scheduler.health.quarantining import CheckOrders
from longshore.scheduler.service.service import Clearing, Service
from tests.scheduler.served import LONGSHORE, until
from tests.support import processes

NODE = "rack0-node2"


@pytest.fixture(autouse=True)
def elsewhere(service: Service) -> None:
    """Let the nodes be checked by agents alone."""
    orders = CheckOrders(slots=True)
    service.checks = service.checks._replace(orders=orders)
    service.clearing = Clearing(
        service.store,
        lambda node, gpu, cleared_s: orders.run_checks(node, (0, 1) if gpu is None else (gpu,), cleared_s),
        service.now_s,
        orders.can_check,
    )


@contextmanager
def agent_of(api: httpx.Client, folder: Path, *options: str) -> Iterator[None]:
    line = [
        *LONGSHORE,
        "node",
        "agent",
        "--node",
        NODE,
        "--every",
        "100ms",
        "--url",
        str(api.base_url).rstrip("/"),
        *options,
    ]
    environment = {**os.environ, "XDG_STATE_HOME": str(folder)}
    with processes.start(line, cwd=folder, env=environment, stderr=processes.DEVNULL):
        yield


def clear(api: httpx.Client) -> httpx.Response:
    return api.post("/v1/quarantine/clear", json={"node": NODE})


def entry(api: httpx.Client) -> dict[str, Any]:
    (found,) = api.get("/v1/quarantine", params={"cleared": True}).json()
    return dict(found)


@pytest.fixture
def smoking(api: httpx.Client) -> httpx.Client:
    api.post("/v1/quarantine", json={"node": NODE, "cause": "smoke"}).raise_for_status()
    return api


def test_a_node_without_an_agent_that_checks_says_how_to_start_one(smoking: httpx.Client, tmp_path: Path) -> None:
    def is_seen() -> bool:
        return any(each["name"] == NODE and each["reported"] for each in smoking.get("/v1/nodes").json())

    assert clear(smoking).json()["code"] == "no-checks"
    with agent_of(smoking, tmp_path):
        until(is_seen)
        refused = clear(smoking)
        assert (refused.status_code, refused.json()["code"]) == (409, "no-checks")
        assert "longshore node agent --node rack0-node2 --checks" in refused.json()["detail"]


@pytest.mark.full
def test_an_agent_that_checks_clears_what_passes(smoking: httpx.Client, service: Service, tmp_path: Path) -> None:
    with agent_of(smoking, tmp_path, "--checks"):
        until(lambda: clear(smoking).status_code == 200)
        until(lambda: service.reconciler.tick() and entry(smoking)["cleared_s"] is not None)
    assert "checks passed in" in str(entry(smoking))


def test_an_outcome_from_another_node_is_ignored(smoking: httpx.Client, service: Service) -> None:
    service.checks.orders.fetch_orders(NODE, able=True)
    assert clear(smoking).json() == {"cleared": 0, "checking": True}
    service.reconciler.tick()  # the leader keeps jobs off from here on
    until(lambda: bool(service.checks.orders.fetch_orders(NODE, able=True)))
    (order,) = service.checks.orders.fetch_orders(NODE, able=True)
    body = {"passed": True, "evidence": "all is well"}
    assert smoking.post(f"/v1/nodes/rack0-node1/checks/{order.id}", json=body).status_code == 204
    assert service.checks.orders.fetch_orders(NODE, able=True) == (order,)
    failed = {"passed": False, "evidence": "it smokes"}
    assert smoking.post(f"/v1/nodes/{NODE}/checks/{order.id}", json=failed).status_code == 204
    until(lambda: "it smokes" in str(entry(smoking)))
    assert entry(smoking)["cleared_s"] is None
