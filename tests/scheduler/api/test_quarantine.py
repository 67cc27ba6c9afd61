"""Quarantine through the API: which callers may put things there, and how they are cleared."""

import threading
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from unittest.mock import patch

import httpx
import pytest

from longshore.cluster.model.placement import Share
from longshore.preflight.context import NodeSetup
from longshore.preflight.warm import LocalNode
from longshore.scheduler.access.tokens import Role, add_token, new_token
from longshore.scheduler.control import node_checks
from longshore.scheduler.health.quarantining import CheckOrders, quarantine
from longshore.scheduler.model.gpu_index import WHOLE_NODE, Clears, HardwarePlace, QuarantineEntry, QuarantineFinding
from longshore.scheduler.model.job import ReservationRow
from longshore.scheduler.model.job_spec import stored_job_or_default
from longshore.scheduler.rules.quarantine import BY_CHECKS
from longshore.scheduler.service.service import MAX_CHECKS_AT_ONCE, Clearing, Service
from longshore.scheduler.store.attempts import held_gpus
from longshore.scheduler.store.events import events_after
from longshore.scheduler.store.nodes import QUARANTINE, add_quarantine, last_clearances
from tests.scheduler.served import until

NODE = "rack0-node1"
XID = {
    "node": NODE, "gpu": 2, "check": "xid.recent", "cause": "xid 79", "evidence": "NVRM: Xid 79",
    "action": "restart the machine", "clears": "checks",
}  # fmt: skip


def checked_by(
    service: Service,
    check: Callable[[str, int | None], tuple[bool, str]],
    can: Callable[[str], bool] = lambda _: True,
) -> None:
    """Let checks be available, as the preflight gives them to a scheduler."""
    service.clearing = Clearing(service.store, lambda node, gpu, _: check(node, gpu), service.now_s, can)


def open_quarantines(api: httpx.Client) -> list[dict[str, object]]:
    found: list[dict[str, object]] = api.get("/v1/quarantine").json()
    return found


def wait_for_checks(service: Service) -> None:
    """Wait for the checks that run, which begin once the leader has run a cycle."""
    service.reconciler.tick()
    for thread in threading.enumerate():
        if thread.name.startswith("checks of"):
            thread.join(60.0)
    assert not service.clearing.running


def test_a_finding_closes_its_gpu_and_is_shown_everywhere(api: httpx.Client, service: Service) -> None:
    service.reconciler.tick()
    assert [api.post("/v1/quarantine", json=XID).json()["acted"] for _ in range(2)] == ["quarantined", "known"]
    service.reconciler.tick()

    assert service.reconciler.parts.monitor.health.closed == (6,)
    (received,) = open_quarantines(api)
    assert {name: received[name] for name in XID} == XID
    assert (received["scope"], received["tries"], received["checking"], received["cleared_s"]) == (
        "device",
        1,
        False,
        None,
    )
    node = next(each for each in api.get("/v1/nodes").json() if each["name"] == NODE)
    assert (node["quarantined"], node["quarantine"], node["out_of_service"]) == ([2], [received], "")
    assert 'longshore_gpus{state="out_of_service",type="slots"} 1.0' in api.get("/metrics").text
    page = api.get("/").text
    assert f"{NODE}:2" in page
    assert "NVRM: Xid 79" in page
    assert "restart the machine; cleared by checks" in page
    plan = api.post("/v1/jobs", params={"dry_run": True}, json={"command": ["true"], "gpus": 16}).json()
    assert (plan["free_gpus"], plan["would_fit"]) == (15, False)


def test_without_checks_an_operator_clears_only_unchecked(api: httpx.Client, service: Service) -> None:
    checked_by(service, lambda _node, _gpu: (True, ""), can=lambda _: False)  # as where agents check, and none runs
    api.post("/v1/quarantine", json=XID)
    target = {"node": NODE, "gpu": 2}
    refused = api.post("/v1/quarantine/clear", json=target)
    assert (refused.status_code, refused.json()["code"]) == (409, "no-checks")
    assert len(open_quarantines(api)) == 1
    done = api.post("/v1/quarantine/clear", json={**target, "unchecked": True})
    assert done.json() == {"cleared": 1, "checking": False}
    assert open_quarantines(api) == []
    (past,) = api.get("/v1/quarantine", params={"cleared": True}).json()
    assert (past["cleared_by"], past["checked"]) == ("operator local", "cleared by an operator, no checks were run")
    again = api.post("/v1/quarantine/clear", json={**target, "unchecked": True})
    assert (again.status_code, again.json()["code"]) == (409, "not-in-quarantine")
    service.reconciler.tick()
    assert service.reconciler.parts.monitor.health.closed == ()


def test_checks_that_pass_clear_it_and_those_that_fail_or_break_say_why(api: httpx.Client, service: Service) -> None:
    api.post("/v1/quarantine", json=XID)
    outcomes = [(False, "gemm.ref: index 7"), (True, "level 3 passed")]
    checked: list[tuple[str, int | None]] = []

    def check(node: str, gpu: int | None) -> tuple[bool, str]:
        checked.append((node, gpu))
        if len(checked) == 1:
            raise OSError("no driver")
        return outcomes[len(checked) - 2]

    checked_by(service, check)
    for words in ("the checks themselves failed: OSError: no driver", "gemm.ref: index 7"):
        assert api.post("/v1/quarantine/clear", json={"node": NODE}).json() == {"cleared": 0, "checking": True}
        wait_for_checks(service)
        assert words in str(open_quarantines(api)[0]["checked"])
    api.post("/v1/quarantine/clear", json={"node": NODE, "gpu": 2})
    wait_for_checks(service)
    assert open_quarantines(api) == []
    assert checked == [(NODE, None), (NODE, None), (NODE, 2)]


def test_faults_before_a_clearance_do_not_count_in_checks_after_it(
    api: httpx.Client, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    received: list[Mapping[int, float]] = []

    def check(_node: str, _gpu: int | None, cleared_s: Mapping[int, float]) -> tuple[bool, str]:
        received.append(dict(cleared_s))
        return True, "fine"

    service.clearing = Clearing(service.store, check, service.now_s)
    for gpu in (2, None):
        before_s = service.now_s()
        api.post("/v1/quarantine", json={**XID, "gpu": gpu}).raise_for_status()
        api.post("/v1/quarantine/clear", json={"node": NODE, "gpu": gpu}).raise_for_status()
        wait_for_checks(service)
        assert before_s <= received[-1][WHOLE_NODE if gpu is None else gpu] <= service.now_s()  # when it was requested
    with service.store.read() as tx:
        cleared_s = last_clearances(tx, NODE)
        assert last_clearances(tx, "rack0-node0") == {}
    assert cleared_s.keys() == {2, WHOLE_NODE}
    assert all(cleared_s[place] >= received[-1][place] for place in cleared_s)
    service.clearing._run_checks(HardwarePlace(NODE, 2), BY_CHECKS)
    assert received[-1] == cleared_s
    rounds: list[object] = []
    monkeypatch.setattr(node_checks, "run_round", lambda *_, cleared_s: rounds.append(cleared_s))
    begun = node_checks._BegunRound("j", 1, "ls-j-1", node_checks.CheckPhase.START, (Share(NODE, (2,)),))
    work = node_checks.NodeChecks()._round_work(begun, stored_job_or_default({"command": ["true"]}), service.store)
    work({NODE: LocalNode(NodeSetup(NODE, Path()))})
    assert rounds == [{NODE: cleared_s}]


def test_what_a_job_uses_is_not_checked(api: httpx.Client, service: Service) -> None:
    service.reconciler.tick()
    job = api.post("/v1/jobs", json={"command": ["sleep", "60"], "gpus": 16}).json()["id"]
    service.reconciler.tick()
    api.post("/v1/quarantine", json=XID)
    checked_by(service, lambda _node, _gpu: (True, ""))
    service.clearing.begin_due_checks()
    refused = api.post("/v1/quarantine/clear", json={"node": NODE, "gpu": 2})
    assert (refused.status_code, refused.json()["code"]) == (409, "not-in-quarantine")
    assert job in refused.json()["detail"]
    api.delete(f"/v1/jobs/{job}")
    for _ in range(200):
        service.reconciler.tick()
        if api.get(f"/v1/jobs/{job}").json()["state"] == "cancelled":
            break
        threading.Event().wait(0.05)
    assert api.post("/v1/quarantine/clear", json={"node": NODE, "gpu": 2}).status_code == 200
    wait_for_checks(service)
    assert open_quarantines(api) == []


def test_checks_end_by_themselves_what_has_rested_and_nothing_else(service: Service) -> None:
    now_s = service.now_s()
    places = [HardwarePlace("rack0-node0", 0), HardwarePlace("rack0-node1", 1), HardwarePlace("rack0-node2", 2)]
    parts = service.reconciler.parts
    long_ago = [QuarantineFinding(item, "c", "x", "", "none", Clears.CHECKS, now_s - 1e5) for item in places]
    long_ago[1] = long_ago[1]._replace(clears=Clears.OPERATOR)
    put = partial(quarantine, fleet=parts.monitor.fleet, writer="t")
    for each, age_s in zip(long_ago, (700.0, 700.0, 100.0), strict=True):
        service.store.write(partial(put, finding=each, now_s=now_s - age_s))
    checked: list[str] = []

    def check(node: str, _gpu: int | None) -> tuple[bool, str]:
        checked.append(node)
        return True, "fine"

    checked_by(service, check)
    service.clearing.begin_due_checks()
    wait_for_checks(service)
    assert checked == ["rack0-node0"]
    with service.store.read() as tx:
        received = [item.cause for item in events_after(tx, 0, 100) if item.now == "cleared"]
    assert received == ["rack0-node0:0 is out of quarantine, cleared by checks: rack0-node0:0: fine"]


def test_a_symptom_that_comes_while_checks_run_keeps_it_in_quarantine(service: Service) -> None:
    now_s, place = service.now_s(), HardwarePlace(NODE, 2)
    found = QuarantineFinding(place, "c", "x", "", "none", Clears.CHECKS, now_s - 700.0)
    parts = service.reconciler.parts
    service.store.write(lambda tx: quarantine(tx, parts.monitor.fleet, found, now_s - 700.0, writer="t"))

    def check(_node: str, _gpu: int | None) -> tuple[bool, str]:
        service.control.quarantine(found._replace(at_s=now_s), "t")
        return True, "fine"

    checked_by(service, check)
    service.clearing.begin_due_checks()
    wait_for_checks(service)
    with service.store.read() as tx:
        assert [each.now for each in events_after(tx, 0, 100)] == ["quarantined"]


def test_agents_tell_of_their_own_node_only(api: httpx.Client, service: Service) -> None:
    made = {role: new_token(role, "ada", role, 1.0, None, NODE if role is Role.AGENT else None) for role in Role}
    for it in made.values():
        service.store.write(lambda tx, it=it: add_token(tx, it.row))  # type: ignore[misc]

    def status(role: Role, path: str, body: dict[str, object]) -> int:
        headers = {"Authorization": f"Bearer {made[role].secret}"}
        return api.post(path, json=body, headers=headers).status_code

    assert status(Role.AGENT, "/v1/quarantine", XID) == 200
    assert status(Role.AGENT, "/v1/quarantine", {**XID, "node": "rack0-node0"}) == 403
    assert status(Role.AGENT, "/v1/quarantine", {**XID, "other_node": "rack0-node0"}) == 403
    assert status(Role.AGENT, "/v1/quarantine", {**XID, "other_node": NODE, "other_gpu": 3}) == 200
    assert status(Role.AGENT, "/v1/quarantine", {**XID, "check": "operator"}) == 403
    assert status(Role.AGENT, "/v1/quarantine/clear", {"node": NODE, "unchecked": True}) == 403
    for role in (Role.USER, Role.READ_ONLY, Role.SCRAPE):
        assert status(role, "/v1/quarantine", XID) == 403
        assert status(role, "/v1/quarantine/clear", {"node": NODE, "unchecked": True}) == 403
    assert status(Role.OPERATOR, "/v1/quarantine/clear", {"node": NODE, "unchecked": True}) == 200


WRONG: tuple[dict[str, object], ...] = (
    {"gpu": -1}, {"gpu": "two"}, {"cause": ""}, {"cause": "two\nlines"}, {"cause": "x" * 201}, {"clears": "nobody"},
    {"at_s": -1.0}, {"at_s": "nan"}, {"other_gpu": 1}, {"other_node": NODE, "other_gpu": 2}, {"evidence": "\x1b[31m"},
    {"unknown": 1}, {"boot_id": "../.."},
)  # fmt: skip


@pytest.mark.parametrize("change", WRONG)
def test_a_finding_that_cannot_be_is_refused(refusing_api: httpx.Client, change: dict[str, object]) -> None:
    answer = refusing_api.post("/v1/quarantine", json={**XID, **change})
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid")


@pytest.mark.parametrize(("path", "change"), [("", {"node": "nowhere"}), ("", {"gpu": 4}), ("/clear", {})])
def test_what_the_cluster_does_not_have_is_named(
    refusing_api: httpx.Client, path: str, change: dict[str, object]
) -> None:
    body = {**XID, **change} if not path else {"node": "nowhere"}
    answer = refusing_api.post(f"/v1/quarantine{path}", json=body)
    assert (answer.status_code, answer.json()["code"]) == (404, "no-such-node")


def test_of_many_places_that_are_due_a_few_are_checked_at_once(service: Service) -> None:
    go, lock, at_once, counts, done = threading.Event(), threading.Lock(), set[int](), list[int](), list[str]()

    def check(node: str, gpu: int | None) -> tuple[bool, str]:
        with lock:
            at_once.add(threading.get_ident())
            counts.append(len(at_once))
        go.wait(60.0)
        with lock:
            at_once.discard(threading.get_ident())
            done.append(f"{node}:{gpu}")
        return True, "all is well"

    checked_by(service, check)
    old_s = service.now_s() - 86400.0
    places = [HardwarePlace(f"rack0-node{node}", gpu) for node in range(4) for gpu in range(3)]
    entries = [
        QuarantineEntry(0, each, old_s, old_s, "gemm.ref", "wrong", "", "look", Clears.CHECKS, 1, "", old_s)
        for each in places
    ]
    service.store.write(lambda tx: [add_quarantine(tx, each) for each in entries])
    service.clearing.begin_due_checks()
    service.reconciler.tick()
    until(lambda: len(counts) == MAX_CHECKS_AT_ONCE)
    service.clearing.begin_due_checks()  # while those run
    go.set()
    for _ in range(len(places)):
        wait_for_checks(service)
        service.clearing.begin_due_checks()
    wait_for_checks(service)
    assert sorted(done) == sorted(f"{each.node}:{each.gpu}" for each in places)
    assert max(counts) == MAX_CHECKS_AT_ONCE


def test_no_job_gets_a_gpu_that_is_being_checked(api: httpx.Client, service: Service) -> None:
    """One GPU of a node is in quarantine, and all of them are checked."""
    service.reconciler.tick()
    api.post("/v1/quarantine", json=XID)
    began, go = threading.Event(), threading.Event()

    def check(_node: str, _gpu: int | None) -> tuple[bool, str]:
        began.set()
        return go.wait(60.0), "fine"

    checked_by(service, check)
    assert api.post("/v1/quarantine/clear", json={"node": NODE}).json()["checking"]
    jobs = [
        api.post("/v1/jobs", json={"command": ["sleep", "60"], "gpus": gpus, "priority": priority}).json()["id"]
        for gpus, priority in ((2, 1), (11, 0))
    ]
    service.reconciler.tick()
    assert began.wait(60.0)
    service.reconciler.tick()

    assert len(held(service)) == 2
    assert NODE not in {row.node for row in held(service)}
    go.set()
    wait_for_checks(service)
    until(lambda: service.reconciler.tick() and len(held(service)) == 13)
    for job in jobs:
        api.delete(f"/v1/jobs/{job}")
    until(lambda: service.reconciler.tick() and not held(service))


def test_a_place_that_left_the_cluster_file_closes_no_gpu(service: Service) -> None:
    for place in (HardwarePlace(NODE, 8), HardwarePlace(NODE, 7), HardwarePlace("former", WHOLE_NODE)):
        service.clearing._running[place] = threading.Event()
    assert service.clearing.take_gpus({NODE: 8}) == {(NODE, 7)}
    service.clearing._running.clear()


def held(service: Service) -> list[ReservationRow]:
    with service.store.read() as tx:
        return held_gpus(tx)


def test_what_a_job_got_before_the_checks_began_is_not_checked(api: httpx.Client, service: Service) -> None:
    service.reconciler.tick()
    api.post("/v1/quarantine", json=XID)
    checked: list[str] = []

    def check(node: str, _gpu: int | None) -> tuple[bool, str]:
        checked.append(node)
        return False, ""

    checked_by(service, check)
    assert api.post("/v1/quarantine/clear", json={"node": NODE}).json()["checking"]
    # A job that the leader had placed in the cycle before, and wrote a moment later.
    job = api.post("/v1/jobs", json={"command": ["sleep", "60"], "gpus": 15}).json()["id"]
    with patch.object(service.clearing, "take_gpus", return_value=frozenset()):
        service.reconciler.tick()
    assert any(row.node == NODE for row in held(service))
    wait_for_checks(service)

    assert checked == []
    assert [entry["tries"] for entry in open_quarantines(api)] == [1]
    api.delete(f"/v1/jobs/{job}")
    until(lambda: service.reconciler.tick() and not held(service))


@pytest.mark.parametrize("is_begun", [False, True])
def test_a_scheduler_that_ends_during_checks_leaves_the_quarantine_as_it_was(
    api: httpx.Client,
    service: Service,
    is_begun: bool,  # noqa: FBT001
) -> None:
    service.reconciler.tick()
    api.post("/v1/quarantine", json=XID)
    before, began = open_quarantines(api), threading.Event()
    orders = CheckOrders()
    orders.fetch_orders(NODE, able=True)

    def check(node: str, gpu: int | None) -> tuple[bool, str]:
        began.set()
        return orders.run_checks(node, (gpu or 0,), {})

    checked_by(service, check)
    api.post("/v1/quarantine/clear", json={"node": NODE, "gpu": 2})
    if is_begun:
        service.reconciler.tick()
        assert began.wait(60.0)
        until(lambda: bool(orders.fetch_orders(NODE, able=True)))
    service.clearing.close()
    orders.wake_waiters()
    for thread in threading.enumerate():
        if thread.name.startswith("checks of"):
            thread.join(60.0)

    assert began.is_set() == is_begun
    assert open_quarantines(api) == before
    with service.store.read() as tx:
        assert [each.now for each in events_after(tx, 0, 100) if each.kind == QUARANTINE] == ["quarantined"]


@pytest.mark.parametrize(
    ("field", "value", "stored"),
    [
        ("evidence", "NVRM: Xid 79", "NVRM: Xid 79"),
        ("evidence", "", "set by an operator"),
        ("clears", "checks", "checks"),
        ("clears", "reboot", "reboot"),
        ("boot_id", "0a-1", "0a-1"),
        ("action", "replace it", "replace it"),
    ],
)
def test_what_an_operator_reports_without_a_check_is_stored_as_it_is(
    api: httpx.Client, field: str, value: str, stored: str
) -> None:
    body = {"node": NODE, "gpu": 2, "cause": "noise", field: value}
    assert api.post("/v1/quarantine", json=body).json()["acted"] == "quarantined"
    (entry,) = open_quarantines(api)
    assert entry[field] == stored
