"""A free GPU takes an empty seat of a ring by what agents measured of the links to it at that moment."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.scheduler.probing_agents import Agents
from tests.scheduler.served import Served, until
from tests.scheduler.test_pool import events, held_by, seated
from tests.scheduler.test_rings import ring_job, running

CLUSTER = """\
node_types:
  slots: {gpus: 2, peak_flops: 1e12, memory_bytes: 1e9, intra_bytes_per_s: 10e9, nic_bytes_per_s: 1e9}
racks:
  - nodes: [{type: slots, name: a}, {type: slots, name: b}, {type: slots, name: c}]
run_time: {model: ring}
"""
SLOW = 20e6  # bytes/s


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    (tmp_path / "cluster.yaml").write_text(CLUSTER)
    it = Served(tmp_path, "--cluster", "cluster.yaml")
    it.start()
    yield it
    it.cancel_all()
    it.end()


@pytest.fixture
def agents(served: Served, monkeypatch: pytest.MonkeyPatch) -> Iterator[Agents]:
    it = Agents("abc", monkeypatch)
    yield it
    it.end()


def slots(broken: int) -> list[dict[str, Any]]:
    return [{"index": it, "healthy": it != broken, "utilisation": 0.0, "free_bytes": 1} for it in range(2)]


def whole_ring(served: Served) -> str:
    """Return a ring of two seats on node a, in mid training."""
    job = ring_job(served, 10**6, gpus=2, parameter_bytes=100e6)
    running(served, job, 10)
    assert held_by(served, job) == {("a", 0), ("a", 1)}
    return job


def test_the_gpu_behind_a_slow_link_does_not_take_the_seat(served: Served, agents: Agents) -> None:
    agents.slow_down("b", SLOW)
    agents.report_to(served.tell)
    job = whole_ring(served)
    agents.gpus["a"] = slots(broken=0)
    until(lambda: sorted(seated(served, job)) == [1, 2])
    (came,) = served.ask(f"/v1/jobs/{job}/ring")["replacements"]
    print(came, events(served, job), served.call("status", job).stdout)
    assert (came["node"], came["gpu"]) == ("c", 0)
