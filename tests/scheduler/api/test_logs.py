"""Logs of jobs, where the backend does not always answer."""

from collections.abc import Callable

import httpx
import pytest

from longshore.cluster.files.errors import BackendError
from longshore.scheduler.service.service import Service
from tests.scheduler.served import until


@pytest.fixture
def ended(api: httpx.Client, service: Service) -> str:
    """A job that has ended."""
    job = str(api.post("/v1/jobs", json={"command": ["echo", "hello"]}).json()["id"])

    def is_over() -> bool:
        service.reconciler.tick()
        return bool(api.get(f"/v1/jobs/{job}").json()["attempts"][-1:] and is_closed(api, job))

    until(is_over)
    return job


def is_closed(api: httpx.Client, job: str) -> bool:
    return bool(api.get(f"/v1/jobs/{job}").json()["attempts"][-1]["state"] == "closed")


def unreachable_for(times: int, logs: Callable[..., tuple[bytes, int]]) -> Callable[..., tuple[bytes, int]]:
    """A way to read logs that fails so many times first."""
    left = [None] * times

    def read(*arguments: object) -> tuple[bytes, int]:
        if left:
            left.pop()
            raise BackendError("it does not answer")
        return logs(*arguments)

    return read


def test_a_followed_log_waits_while_the_backend_does_not_answer(
    api: httpx.Client, service: Service, ended: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service.backend, "logs", unreachable_for(2, service.backend.logs))

    received = api.get(f"/v1/jobs/{ended}/logs", params={"follow": True}).text

    assert 'data: {"text": "hello\\n"}' in received
    assert received.rstrip().endswith("event: end\ndata: {}")


def test_a_log_that_cannot_be_read_now_differs_from_one_that_does_not_exist(
    api: httpx.Client, service: Service, ended: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = f"/v1/jobs/{ended}/logs"
    missing = api.get(path, params={"rank": 1})
    monkeypatch.setattr(service.backend, "logs", unreachable_for(1, service.backend.logs))
    busy = api.get(path)

    assert [(each.status_code, each.json()["code"]) for each in (missing, busy)] == [
        (404, "no-such-log"),
        (503, "unavailable"),
    ]
    assert api.get(path).text == "hello\n"
