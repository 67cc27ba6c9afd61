"""Nodes through the API: their state, in and out of service, and what their agents report."""

import httpx
import pytest

from longshore.scheduler.access.tokens import Role, add_token, new_token
from longshore.scheduler.service.service import Service
from longshore.scheduler.store.nodes import list_nodes

NODE = "rack0-node1"
GPU = {"index": 0, "healthy": True, "utilisation": 0.5, "free_bytes": 1, "temperature_c": 40.0, "ecc_errors": 0}


def node(api: httpx.Client) -> dict[str, object]:
    found: dict[str, object] = next(each for each in api.get("/v1/nodes").json() if each["name"] == NODE)
    return found


def closed(service: Service) -> list[int]:
    return list(service.reconciler.parts.monitor.health.closed)


def test_a_node_is_out_of_service_from_its_drain_to_its_resume(api: httpx.Client, service: Service) -> None:
    service.reconciler.tick()
    assert node(api)["out_of_service"] == ""
    for _ in range(2):
        assert api.post(f"/v1/nodes/{NODE}/drain", json={"reason": "a fan"}).status_code == 204
    service.reconciler.tick()
    assert (node(api)["out_of_service"], node(api)["liveness"]) == ("a fan", "up")
    assert closed(service) == [4, 5, 6, 7]
    assert 'longshore_gpus{state="out_of_service",type="slots"} 4.0' in api.get("/metrics").text
    assert "out of service: a fan" in api.get("/").text

    for _ in range(2):
        assert api.post(f"/v1/nodes/{NODE}/resume").status_code == 204
    service.reconciler.tick()
    assert node(api)["out_of_service"] == ""
    assert closed(service) == []


def test_a_drain_is_kept_that_no_scheduler_has_seen_yet(api: httpx.Client, service: Service) -> None:
    assert api.post(f"/v1/nodes/{NODE}/drain").status_code == 204
    with service.store.read() as tx:
        assert [row.out_of_service for row in list_nodes(tx)] == ["drained"]
    service.reconciler.tick()
    assert closed(service) == [4, 5, 6, 7]


def test_a_node_shows_what_its_agent_reported_last_and_has_its_faulty_gpus(api: httpx.Client, service: Service) -> None:
    service.reconciler.tick()
    for healthy in (True, False, False):
        body = {"gpus": [{**GPU, "healthy": healthy}]}
        assert api.post(f"/v1/nodes/{NODE}/report", json=body).status_code == 200
    service.reconciler.tick()
    assert node(api)["reported"] == {"gpus": [{**GPU, "healthy": False, "link_errors": None}]}
    assert node(api)["faulty"] == [0]


@pytest.mark.parametrize("what", ["drain", "resume", "report", "port-probes"])
def test_only_operators_change_nodes_and_only_those_that_there_are(
    refusing_api: httpx.Client, api: httpx.Client, service: Service, what: str
) -> None:
    bodies: dict[str, dict[str, object]] = {"report": {}, "port-probes": {"results": {}}}
    body = bodies.get(what)
    unknown = refusing_api.post(f"/v1/nodes/nowhere/{what}", json=body)
    assert (unknown.status_code, unknown.json()["code"]) == (404, "no-such-node")

    made = new_token("laptop", "ada", Role.USER, 1.0, None)
    service.store.write(lambda tx: add_token(tx, made.row))
    headers = {"Authorization": f"Bearer {made.secret}"}
    refused = api.post(f"/v1/nodes/{NODE}/{what}", json=body, headers=headers)
    assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")


def test_the_token_of_an_agent_reports_and_does_nothing_else(api: httpx.Client, service: Service) -> None:
    made = new_token("agents", "ada", Role.AGENT, 1.0, None, NODE)
    service.store.write(lambda tx: add_token(tx, made.row))
    headers = {"Authorization": f"Bearer {made.secret}"}

    def status(path: str, body: dict[str, object]) -> int:
        return api.post(path, json=body, headers=headers).status_code

    assert status(f"/v1/nodes/{NODE}/report", {}) == 200
    assert status(f"/v1/nodes/{NODE}/port-probes", {"results": {}}) == 204
    assert status("/v1/nodes/rack0-node0/port-probes", {"results": {}}) == 403
    assert status(f"/v1/nodes/{NODE}/drain", {}) == 403
    assert status("/v1/jobs", {"command": ["true"]}) == 403
    assert status("/v1/users/me/tokens", {"name": "more", "role": "agent", "node": NODE}) == 403
    assert status("/v1/nodes/rack0-node0/report", {}) == 403
    for path in ("/v1/nodes", "/v1/jobs", "/v1/events", "/v1/users/me/tokens", "/metrics"):
        assert api.get(path, headers=headers).status_code == 403


def test_the_token_of_an_agent_without_node_is_refused_and_logged(
    api: httpx.Client, service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    made = new_token("agents", "ada", Role.AGENT, 1.0, None)
    service.store.write(lambda tx: add_token(tx, made.row))

    answer = api.post(f"/v1/nodes/{NODE}/report", json={}, headers={"Authorization": f"Bearer {made.secret}"})
    service._warn_of_agents()

    assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
    assert "longshore token create NAME --role agent --node NODE" in answer.json()["detail"]
    assert "the token agents of ada has the role agent but no node" in caplog.text


WRONG: tuple[dict[str, object], ...] = (
    {"index": -1}, {"utilisation": 1.5}, {"healthy": None}, {"free_bytes": -1}, {"unknown": 1},
)  # fmt: skip


@pytest.mark.parametrize("change", WRONG)
def test_a_report_that_cannot_be_is_refused(refusing_api: httpx.Client, change: dict[str, object]) -> None:
    answer = refusing_api.post(f"/v1/nodes/{NODE}/report", json={"gpus": [{**GPU, **change}]})
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid")


def test_a_report_has_each_gpu_once(refusing_api: httpx.Client) -> None:
    body = {"gpus": [{**GPU, "index": index} for index in (0, 1, 0)]}
    answer = refusing_api.post(f"/v1/nodes/{NODE}/report", json=body)
    assert (answer.status_code, "GPU 0" in answer.json()["detail"]) == (422, True)


@pytest.mark.parametrize("reason", ["", "two\nlines", "x" * 201])
def test_a_reason_is_one_line(refusing_api: httpx.Client, reason: str) -> None:
    answer = refusing_api.post(f"/v1/nodes/{NODE}/drain", json={"reason": reason})
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid")


PORT_PROBES: tuple[dict[str, object], ...] = (
    {}, {"results": None}, {"results": []}, {"results": {"x": "dead"}}, {"results": {"x": 1}},
    {"results": {"x": "REFUSED"}},
    {"results": {"x" * 65: "refused"}}, {"results": {str(number): "refused" for number in range(5000)}},
    {"results": {}, "node": "rack0-node0"},
)  # fmt: skip


@pytest.mark.parametrize("body", PORT_PROBES)
def test_impossible_probe_results_are_refused(refusing_api: httpx.Client, body: dict[str, object]) -> None:
    answer = refusing_api.post(f"/v1/nodes/{NODE}/port-probes", json=body)
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid")


def test_unexpected_probe_results_change_nothing(api: httpx.Client) -> None:
    before = api.get("/v1/nodes").json()
    body = {"results": {"0" * 16: "refused", "": "answered", "\u0000": "timed out"}}
    assert api.post(f"/v1/nodes/{NODE}/port-probes", json=body).status_code == 204
    drop = {"evidence", "seen_s", "since_s"}  # which are of now while no scheduler has looked
    assert [{name: each[name] for name in each if name not in drop} for each in api.get("/v1/nodes").json()] == [
        {name: each[name] for name in each if name not in drop} for each in before
    ]


@pytest.mark.parametrize("agent_port", [-1, 65536, "80", None, 1.5])
def test_a_report_names_a_port_that_can_be(refusing_api: httpx.Client, agent_port: object) -> None:
    answer = refusing_api.post(f"/v1/nodes/{NODE}/report", json={"agent_port": agent_port})
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid")
