"""Requests with a token while the store does not answer: what needs no store is answered on."""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
from sqlalchemy import Connection

from longshore.scheduler.access.tokens import Role, add_token, new_token, revoke_token
from longshore.scheduler.api import auth
from longshore.scheduler.control.reconciler import LEASE_S, ReconcilerTiming
from longshore.scheduler.serve.app import create_app
from longshore.scheduler.service.service import Service
from longshore.scheduler.settings import SchedulerSettings, ServeOptions
from longshore.scheduler.store.database import StoreUnreachableError

from .conftest import client_of

NODE = "rack0-node0"
REPORT = {"gpus": [], "boot_id": "", "version": "1", "attempts": []}


class Outage:
    """A scheduler with leases whose clock a test sets, and whose store can be cut off."""

    def __init__(self, service: Service, api: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
        self.service, self.api, self.monkeypatch, self.now_s = service, api, monkeypatch, 1000.0
        service.reconciler._timing = ReconcilerTiming(passed_s=lambda: self.now_s)
        monkeypatch.setattr(auth, "time", SimpleNamespace(monotonic=lambda: self.now_s))

    def token(self, role: Role, expires_s: float | None = None) -> dict[str, str]:
        made = new_token(f"t-{role}", "ada", role, 0.0, expires_s, NODE if role is Role.AGENT else None)
        self.service.store.write(lambda tx: add_token(tx, made.row))
        return {"Authorization": f"Bearer {made.secret}"}

    def report(self, headers: dict[str, str]) -> httpx.Response:
        return self.api.post(f"/v1/nodes/{NODE}/report", json=REPORT, headers=headers)

    def cut_store(self) -> None:
        def read() -> AbstractContextManager[Connection]:
            raise StoreUnreachableError("the store does not answer")

        def write(_work: Callable[[Connection], object]) -> object:
            raise StoreUnreachableError("the store does not answer")

        self.monkeypatch.setattr(self.service.store, "read", read)
        self.monkeypatch.setattr(self.service.store, "write", write)


@contextmanager
def served(folder: Path, *, is_open: bool) -> Iterator[tuple[Service, httpx.Client]]:
    service = Service(ServeOptions(SchedulerSettings(folder=folder, open=is_open, fencing="leases")))
    with client_of(create_app(service)) as api:
        yield service, api
        service.ends.set()
    service.close()


@pytest.fixture(params=["tokens", "open"])
def outage(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Outage, dict[str, str]]]:
    """The scheduler, and the headers of an agent: of an open one it needs none."""
    with (
        served(tmp_path / "served", is_open=request.param == "open") as (service, api),
        monkeypatch.context() as patches,
    ):
        made = Outage(service, api, patches)
        yield made, {} if request.param == "open" else made.token(Role.AGENT)


def test_agents_get_leases_as_long_as_the_scheduler_surely_leads(outage: tuple[Outage, dict[str, str]]) -> None:
    trial, agent = outage
    assert trial.service.reconciler.tick()
    assert trial.report(agent).json()["lease_s"] is not None
    trial.cut_store()

    granted = []
    for _ in range(30):
        trial.now_s += 1.0
        answer = trial.report(agent)
        assert answer.status_code == 200
        granted.append(answer.json()["lease_s"] is not None)
        assert granted[-1] == (trial.service.reconciler.valid_lease_token is not None)

    assert sum(granted) == LEASE_S - 1


@pytest.mark.parametrize("outage", ["tokens"], indirect=True)
def test_only_valid_tokens_that_were_read_lately_count_while_the_store_is_away(
    outage: tuple[Outage, dict[str, str]],
) -> None:
    trial, agent = outage
    scrape, unread = trial.token(Role.SCRAPE), trial.token(Role.OPERATOR)
    revoked, expiring = trial.token(Role.USER), trial.token(Role.READ_ONLY, trial.service.now_s() + 5.0)
    for headers in (agent, scrape, revoked, expiring):
        assert trial.api.get("/v1/nodes", headers=headers).status_code in (200, 403)
    trial.service.store.write(lambda tx: revoke_token(tx, "ada", "t-user", trial.service.now_s()))
    trial.now_s += 2.0
    assert trial.api.get("/v1/nodes", headers=revoked).status_code == 401
    trial.cut_store()

    assert trial.api.get("/metrics", headers=scrape).status_code == 200
    assert trial.report(agent).status_code == 200
    assert trial.api.get("/v1/nodes", headers=revoked).status_code == 401
    assert trial.api.get("/v1/nodes", headers=unread).status_code == 503
    trial.monkeypatch.setattr(trial.service, "now_s", lambda: 1e12)
    assert trial.api.get("/v1/nodes", headers=expiring).status_code == 401
    trial.now_s += auth.TOKEN_KEPT_S
    assert trial.report(agent).status_code == 503


@pytest.mark.parametrize("outage", ["tokens"], indirect=True)
def test_a_store_that_hangs_holds_up_one_request_of_an_agent(outage: tuple[Outage, dict[str, str]]) -> None:
    trial, agent = outage
    assert trial.service.reconciler.tick()
    assert trial.report(agent).json()["lease_s"] is not None
    hangs, go = threading.Event(), threading.Event()

    def read() -> AbstractContextManager[Connection]:
        hangs.set()
        assert go.wait(60.0)
        raise StoreUnreachableError("the store does not answer")

    trial.monkeypatch.setattr(trial.service.store, "read", read)
    trial.now_s += 2.0
    first = threading.Thread(target=trial.report, args=(agent,))
    first.start()
    try:
        assert hangs.wait(60.0)
        assert trial.report(agent).json()["lease_s"] is not None
    finally:
        go.set()
        first.join(60.0)
