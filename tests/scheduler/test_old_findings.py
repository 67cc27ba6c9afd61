"""An agent that tells of an old fault again, as after a restart: nothing that was cleared is closed once more."""

import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from .served import PATIENCE_S, Served

NODE = "rack0-node1"


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    it = Served(tmp_path)
    it.start()
    yield it
    it.cancel_all()
    it.end()


def tell(served: Served, token: str, at_s: float) -> str:
    """Tell of a fault of a GPU as an agent does; return what came of it."""
    found: dict[str, Any] = {"node": NODE, "gpu": 2, "check": "xid.recent", "cause": "xid 79", "at_s": at_s}
    headers = {"Authorization": f"Bearer {token}"}
    answer = httpx.post(f"{served.url}/v1/quarantine", json=found, headers=headers, timeout=PATIENCE_S, trust_env=False)
    return str(answer.raise_for_status().json()["acted"])


def standing(served: Served) -> list[tuple[str, int]]:
    return [(it["node"], it["gpu"]) for it in served.ask("/v1/quarantine")]


@pytest.mark.full
def test_an_event_from_before_a_clearance_closes_nothing_though_scheduler_and_agent_are_started_again(
    served: Served,
) -> None:
    token = served.call("token", "create", "n1", "--role", "agent", "--node", NODE).stdout.strip()
    seen_s = time.time() - 5.0
    assert [tell(served, token, seen_s) for _ in range(2)] == ["quarantined", "known"]
    assert standing(served) == [(NODE, 2)]
    served.call("node", "quarantine", "clear", f"{NODE}:2", "--unchecked")
    for _ in range(2):
        assert tell(served, token, seen_s) == "old"
        assert standing(served) == []
        assert served.ended(served.add("true", gpus=16)) == "succeeded"  # all GPUs of the cluster
        served.end(signal.SIGKILL)
        served.start()
    (past,) = served.ask("/v1/quarantine?cleared=true")
    assert past["cleared_by"].startswith("operator")
    assert tell(served, token, time.time()) == "quarantined"  # a new one
