"""`longshore wait` with a time limit, at a scheduler that hangs or is away."""

from types import SimpleNamespace
from typing import Any

import pytest

from longshore.cluster.files.errors import BackendError
from longshore.scheduler.commands import requests
from tests.command_line import Command

RUNS = {"state": "running", "ended_s": None}


class Hanging:
    """The client of a scheduler that answers a number of requests, and then never again."""

    def __init__(self, answers: int, *, hangs: bool) -> None:
        self.answers, self.hangs, self.now_s = answers, hangs, 0.0

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def job(self, _job: str, within_s: float | None = None) -> dict[str, Any]:
        self.answers -= 1
        if self.answers >= 0:
            return RUNS
        if self.hangs:
            self.now_s += 30.0 if within_s is None else within_s
        raise BackendError("no scheduler answers")


@pytest.mark.parametrize("jobs", [["a"], ["a", "b", "c"]])
@pytest.mark.parametrize("hangs", [True, False])
@pytest.mark.parametrize("limit_s", [1, 10, 100])
def test_the_wait_ends_at_its_limit_whatever_the_scheduler_does(
    longshore: Command,
    monkeypatch: pytest.MonkeyPatch,
    jobs: list[str],
    hangs: bool,  # noqa: FBT001
    limit_s: int,
) -> None:
    client = Hanging(4, hangs=hangs)
    monkeypatch.setattr(requests, "client_of", lambda *_: client)
    monkeypatch.setattr(requests, "time", SimpleNamespace(monotonic=lambda: client.now_s, sleep=client.sleep))

    done = longshore("wait", *jobs, "--timeout", f"{limit_s}s")

    assert done.status == requests.LATE
    assert client.now_s <= limit_s + 2.0 * requests.MIN_ANSWER_S


@pytest.mark.parametrize("limit", [[], ["--timeout", "1h"]])
def test_a_scheduler_that_never_answered_is_not_waited_for(
    longshore: Command, monkeypatch: pytest.MonkeyPatch, limit: list[str]
) -> None:
    client = Hanging(0, hangs=False)
    monkeypatch.setattr(requests, "client_of", lambda *_: client)
    monkeypatch.setattr(requests, "time", SimpleNamespace(monotonic=lambda: client.now_s, sleep=client.sleep))

    assert longshore("wait", "a", *limit).status == 2
    assert client.now_s == 0.0
