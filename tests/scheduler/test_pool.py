"""Rings under a real scheduler get free GPUs for their empty seats, and give back those that they have left."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .served import Served, until
from .test_rings import logged_steps, ring_job, running

CLUSTER = """\
name: pool
node_types:
  slots: {gpus: 2, peak_flops: 1e12, memory_bytes: 1e9, intra_bytes_per_s: 10e9, nic_bytes_per_s: 10e9}
racks:
  - nodes:
      - {type: slots, count: 2}
run_time: {model: simple, node_penalty: 0.05}
"""


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Served]:
    """A scheduler of two nodes of two slots."""
    (tmp_path / "cluster.yaml").write_text(CLUSTER)
    it = Served(tmp_path, "--cluster", "cluster.yaml")
    it.start()
    yield it
    it.cancel_all()
    it.end()


def call_faulty(served: Served, node: str, gpu: int) -> None:
    """Let the agent of a node say that one of its GPUs is faulty; one report alone may be a mistake."""
    slots = [{"index": it, "healthy": it != gpu, "utilisation": 0.0, "free_bytes": 1} for it in range(2)]
    for _ in range(2):
        served.tell("POST", f"/v1/nodes/{node}/report", gpus=slots)


def holders(served: Served) -> dict[tuple[str, int], str | None]:
    """Return the job of each GPU."""
    nodes = served.ask("/v1/nodes")
    return {(node["name"], gpu): holder for node in nodes for gpu, holder in enumerate(node["gpus"])}


def held_by(served: Served, job: str) -> set[tuple[str, int]]:
    return {place for place, holder in holders(served).items() if holder == job}


def events(served: Served, job: str) -> list[dict[str, Any]]:
    return [it for it in served.ask(f"/v1/jobs/{job}/events") if it["kind"] == "seat"]


def seated(served: Served, job: str) -> list[int]:
    return [it for it in running(served, job, 1)["order"] if it >= 0]


def test_a_free_gpu_takes_the_seat_of_one_that_is_found_faulty(small: Served) -> None:
    job = ring_job(small, 10**6, gpus=2)
    running(small, job, 10)
    before = held_by(small, job)
    node, gpu = sorted(before)[0]
    call_faulty(small, node, gpu)
    until(lambda: len(held_by(small, job) - before) == 1 and (node, gpu) not in held_by(small, job))
    until(lambda: sorted(seated(small, job)) == [1, 2])
    assert [it["now"] for it in events(small, job)] in (["taken", "left"], ["left", "taken"])
    assert len(small.ask(f"/v1/jobs/{job}/attempts")) == 1
    shown = small.call("status", job).stdout
    assert "for an empty seat" in shown
    assert "chosen" in shown
    small.cancel(job)
    assert small.ended(job) == "cancelled"
    until(lambda: set(holders(small).values()) == {None})
    assert logged_steps(small, job, 2) != []
