"""What a user reads names no other user's job, wherever the scheduler stored one."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from longshore.cluster.model.placement import Share
from longshore.scheduler.access.tokens import Role, add_token, new_token
from longshore.scheduler.control.steps import SLOW_NODE
from longshore.scheduler.policy_host.process import Miss
from longshore.scheduler.service.service import Service
from longshore.scheduler.store.attempts import NewDecision, add_decisions
from longshore.scheduler.store.nodes import list_nodes, set_out_of_service
from tests.scheduler.backends.attempts import end_all

Headers = dict[str, str]
STREAMS = {"/v1/events"}
THEN = {"slowdown": 1.0, "end_s": 9.0}
HERS = {"node": "rack0-node3", "gpus": [1, 2, 3]}


def known(service: Service, owner: str, role: Role) -> Headers:
    made = new_token("laptop", owner, role, service.now_s(), None)
    service.store.write(lambda tx: add_token(tx, made.row))
    return {"Authorization": f"Bearer {made.secret}"}


@pytest.fixture
def ada(service: Service) -> Headers:
    return known(service, "ada", Role.USER)


@pytest.fixture
def olga(service: Service) -> Headers:
    return known(service, "olga", Role.OPERATOR)


@pytest.fixture
def mine(api: httpx.Client, service: Service, ada: Headers, tmp_path: Path) -> Iterator[str]:
    """A job of ada's that waits behind bob's, which was written down wherever one can be."""
    service.reconciler.tick()
    bob = known(service, "bob", Role.USER)
    his = submit(api, bob, 16)
    service.reconciler.tick()
    job = submit(api, ada, 1)
    received: list[dict[str, object]] = [
        {"kind": kind, "policy_error": f"/srv/bob/{his}: job {his} may not start before job {job}"}
        for kind in (*Miss, "new")
    ]
    received.append({"proposal": {"job": his}, "proposal_placement": [HERS], "proposal_expected": THEN})
    rows = [
        NewDecision(job, None, 1.0, "p", "1", "shadow", None, None, each, None, None, None, None, 0.0)
        for each in received
    ]
    others = ({"fallback_job": his}, {"agrees": False})  # as it is written, and as it was
    for other in others:
        on_his = {"decided_by": "p", "fallback": "patient", "fallback_expected": THEN, **other}
        rows.append(rows[0]._replace(explanation=on_his, fallback=(Share("rack0-node3", (1, 2, 3)),)))
    service.store.write(lambda tx: add_decisions(tx, rows))
    with service.store.read() as tx:
        node = list_nodes(tx)[0]
    reason = f"{SLOW_NODE}job {his} reported so"
    service.store.write(partial(set_out_of_service, row=node, reason=reason, at_s=0.0, writer="scheduler"))
    yield job
    end_all(tmp_path / "served")


def submit(api: httpx.Client, headers: Headers, gpus: int) -> str:
    spec = {"command": ["sleep", "1000"], "gpus": gpus, "name": f"of-{gpus}"}
    return str(api.post("/v1/jobs", json=spec, headers=headers).json()["id"])


def read_all(app: FastAPI, api: httpx.Client, headers: Headers, job: str) -> Iterator[tuple[str, str]]:
    """Yield all that a user can read of a job and of the whole, with its path."""
    for path, methods in app.openapi()["paths"].items():
        if "get" in methods and path not in STREAMS:
            yield path, api.get(path.format(job=job, code="stale"), headers=headers).text


def test_a_user_reads_nothing_of_other_users_jobs(
    app: FastAPI, api: httpx.Client, service: Service, ada: Headers, olga: Headers, mine: str
) -> None:
    (his,) = (each["id"] for each in api.get("/v1/jobs", headers=olga).json()["jobs"] if each["owner"] == "bob")

    received = dict(read_all(app, api, ada, mine))

    assert [path for path, text in received.items() if his in text or "bob" in text] == []
    assert len([path for path, text in received.items() if mine in text]) > 3
    seen = {path for path, text in read_all(app, api, olga, mine) if his in text}
    assert {"/v1/jobs/{job}/decisions", "/v1/nodes", "/v1/queue"} <= seen


def test_of_a_policy_that_was_not_heard_a_user_reads_the_kind_and_of_anothers_job_no_gpus(
    api: httpx.Client, ada: Headers, mine: str
) -> None:
    pages = api.get(f"/v1/jobs/{mine}/decisions", headers=ada).json()

    assert "its answer could not be carried out" in [each["policy_error"] for each in pages]
    assert all(each["policy_error"] or each["proposal"] for each in pages if each["heuristic"] != "patient")
    [shown] = [each["proposal"] for each in pages if each["proposal"]]
    assert (shown["job"], shown["placement"], shown["expected"]) == ("-", None, None)


def test_a_user_does_not_read_what_the_heuristic_would_do_with_another_users_job(
    api: httpx.Client, ada: Headers, olga: Headers, mine: str
) -> None:
    (his,) = (each["id"] for each in api.get("/v1/jobs", headers=olga).json()["jobs"] if each["owner"] == "bob")

    hers, all_of_it = (api.get(f"/v1/jobs/{mine}/decisions", headers=each).json() for each in (ada, olga))

    read = [
        [
            (each["fallback_job"], each["fallback"], each["fallback_expected"])
            for each in pages
            if each["heuristic"] == "patient"
        ]
        for pages in (hers, all_of_it)
    ]
    assert read == [[("-", None, None)] * 2, [(his, [HERS], THEN), ("", [HERS], THEN)]]


def test_a_user_reads_what_the_heuristic_would_do_with_jobs_of_her_own(
    api: httpx.Client, service: Service, ada: Headers, mine: str
) -> None:
    other = submit(api, ada, 1)
    received = [
        {"decided_by": "p", "fallback": "patient", "fallback_job": other, "agrees": False},
        {"decided_by": "patient", "fallback": "patient", "agrees": False},
        {"decided_by": "p", "fallback": "patient", "agrees": True},
    ]
    placement = (Share("rack0-node3", (1, 2, 3)),)
    rows = [
        NewDecision(mine, None, 2.0, "p", "1", "active", None, placement, each, None, None, None, None, 0.0)
        for each in received
    ]
    service.store.write(lambda tx: add_decisions(tx, rows))

    pages = [each for each in api.get(f"/v1/jobs/{mine}/decisions", headers=ada).json() if each["at_s"] == 2.0]

    assert [(each["fallback_job"], each["fallback"]) for each in pages] == [
        (other, [HERS]),
        (mine, [HERS]),
        (mine, [HERS]),
    ]
