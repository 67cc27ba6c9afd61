"""A free GPU takes an empty seat of a ring by what agents measured of the links to it at that moment."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from longshore.scheduler.health import link_probes
from longshore.scheduler.health.link_probes import BrokenError, Sender, connect_to_sender
from tests.scheduler.probing_agents import Agents
from tests.scheduler.served import Served, until
from tests.scheduler.served_rings import events, held_by, ring_job, running, seated

CLUSTER = """\
node_types:
  slots: {{gpus: 2, peak_flops: 1e12, memory_bytes: 1e9, intra_bytes_per_s: 10e9, nic_bytes_per_s: 1e9}}
racks:
  - nodes: [{nodes}]
run_time: {{model: ring}}
"""
SLOW = 5e6  # bytes/s


@pytest.fixture
def served(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Served]:
    """A scheduler of nodes a, b and c, of two slots each, or of as many as a test says."""
    named = ", ".join(f"{{type: slots, name: {it}}}" for it in getattr(request, "param", "abc"))
    (tmp_path / "cluster.yaml").write_text(CLUSTER.format(nodes=named))
    it = Served(tmp_path, "--cluster", "cluster.yaml")
    it.start()
    yield it
    it.cancel_all()
    it.end()


@pytest.fixture
def agents(served: Served, monkeypatch: pytest.MonkeyPatch) -> Iterator[Agents]:
    it = Agents([node["name"] for node in served.ask("/v1/nodes")], monkeypatch)
    yield it
    it.end()


def whole_ring(served: Served, agents: Agents, **spec: Any) -> str:
    """Return a ring of two seats on node a, in mid training, whose agents report."""
    agents.report_to(served.tell)
    job = ring_job(served, 10**6, gpus=2, **{"parameter_bytes": 100e6, **spec})
    running(served, job, 10)
    assert held_by(served, job) == {("a", 0), ("a", 1)}
    return job


def break_gpu(agents: Agents, node: str = "a", gpu: int = 0) -> None:
    healthy = {"utilisation": 0.0, "free_bytes": 1}
    agents.gpus[node] = [{"index": it, "healthy": it != gpu, **healthy} for it in range(2)]


def replacement(served: Served, job: str) -> dict[str, Any]:
    """Return what took the only seat that was empty."""
    until(lambda: sorted(seated(served, job)) == [1, 2])
    (came,) = served.ask(f"/v1/jobs/{job}/ring")["replacements"]
    return dict(came)


def by_node(came: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {it["node"]: it for it in came["candidates"]}


@pytest.mark.full
def test_without_agents_that_probe_the_bandwidths_of_the_cluster_file_count(served: Served, agents: Agents) -> None:
    agents.probes = False
    job = whole_ring(served, agents)
    break_gpu(agents)
    came = replacement(served, job)
    assert (came["node"], came["gpu"]) == ("b", 0)
    assert {it["links"] for it in came["candidates"]} == {"reckoned"}
    assert {it["from_previous_bytes_per_s"] for it in came["candidates"]} == {1e9}
    assert {it["to_next_measured_s"] for it in came["candidates"]} == {None}
    assert "reckoned" in served.call("status", job).stdout


@pytest.mark.full
def test_the_gpu_behind_a_slow_link_does_not_take_the_seat(served: Served, agents: Agents) -> None:
    agents.slow_down("b", SLOW)
    job = whole_ring(served, agents)
    break_gpu(agents)
    came = replacement(served, job)
    assert (came["node"], came["gpu"]) == ("c", 0), came
    b, c = by_node(came)["b"], by_node(came)["c"]
    assert b["to_next_bytes_per_s"] < 2 * SLOW < c["to_next_bytes_per_s"]
    assert None not in (b["from_previous_measured_s"], b["to_next_measured_s"], c["from_previous_measured_s"])
    assert b["ring_s"] > c["ring_s"]
    (taken,) = [it for it in events(served, job) if it["now"] == "taken"]
    assert "its links: measured" in taken["cause"]
    shown = served.call("status", job).stdout
    assert shown.count("measured") == 2


@pytest.mark.parametrize("served", ["abcdefgh"], indirect=True)  # of fewer, two with a fault would be too many
@pytest.mark.full
def test_what_was_measured_lately_counts_without_another_probe(served: Served, agents: Agents) -> None:
    """The second fault comes when nobody can be probed any more."""
    agents.slow_down("b", SLOW)
    job = whole_ring(served, agents)
    break_gpu(agents, "a")
    first = replacement(served, job)
    assert first["node"] != "b"
    agents.close()
    break_gpu(agents, first["node"])
    until(lambda: sorted(seated(served, job)) == [1, 3])
    second = served.ask(f"/v1/jobs/{job}/ring")["replacements"][-1]
    assert second["node"] != "b"
    for name in ("to_next_bytes_per_s", "to_next_measured_s"):
        was, now = by_node(first)["b"][name], by_node(second)["b"][name]
        assert now == was if name.endswith("per_s") else now > was


@pytest.mark.full
def test_a_gpu_that_cannot_reach_its_neighbour_takes_no_seat(
    served: Served, agents: Agents, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_from(agents, "b", monkeypatch)
    job = whole_ring(served, agents)
    break_gpu(agents)
    came = replacement(served, job)
    assert (came["node"], came["gpu"]) == ("c", 0)
    assert "the link from b to a is broken: Connection refused" in by_node(came)["b"]["links"]
    assert by_node(came)["b"]["ring_s"] is None
    (taken,) = [it for it in events(served, job) if it["now"] == "taken"]
    assert "the link from b to a is broken: Connection refused" in taken["cause"]


@pytest.mark.full
@pytest.mark.parametrize("served", ["ab"], indirect=True)
def test_a_ring_goes_on_without_where_no_gpu_reaches_its_neighbours(
    served: Served, agents: Agents, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_from(agents, "b", monkeypatch)
    job = whole_ring(served, agents)
    break_gpu(agents)
    until(lambda: "empty" in [it["now"] for it in events(served, job)])
    (empty,) = [it for it in events(served, job) if it["now"] == "empty"]
    assert "as the link from b to a is broken: Connection refused: the ring goes on without" in empty["cause"]
    until(lambda: seated(served, job) == [1])
    assert served.ask(f"/v1/jobs/{job}/ring")["replacements"] == []


@pytest.mark.full
def test_agents_that_hang_hold_no_ring_up_and_the_cluster_file_counts(served: Served, agents: Agents) -> None:
    agents.hang()
    job = whole_ring(served, agents)
    break_gpu(agents)
    came = replacement(served, job)
    assert (came["node"], came["gpu"]) == ("b", 0)
    assert "reckoned, not measured: the agent that should receive does not answer" in by_node(came)["b"]["links"]


@pytest.mark.full
@pytest.mark.parametrize("served", ["ab"], indirect=True)
def test_no_job_takes_the_gpu_while_its_links_are_measured(served: Served, agents: Agents) -> None:
    """The probes take as long as they may, and a job waits that would start at once on the GPUs that come free."""
    agents.hang()
    job = whole_ring(served, agents, parameter_bytes=0.0)
    blocker = served.add("sleep", "1000", gpus=2)
    until(lambda: served.state(blocker) == "running")
    waiting = served.add("sleep", "1000", gpus=2)
    break_gpu(agents)
    until(lambda: "empty" in [it["now"] for it in events(served, job)])
    served.cancel(blocker)
    came = replacement(served, job)
    assert came["node"] == "b"
    assert "reckoned, not measured" in came["candidates"][0]["links"]
    assert served.state(waiting) == "queued"


def refuse_from(agents: Agents, node: str, patch: pytest.MonkeyPatch) -> None:
    """Let no agent reach that of a node, though the scheduler does, which is another process."""
    port = agents.probers[node].place.port

    def try_to(sender: Sender, until_s: float) -> Any:
        if sender.port == port:
            raise BrokenError("Connection refused")
        return connect_to_sender(sender, until_s)

    patch.setattr(link_probes, "connect_to_sender", try_to)
