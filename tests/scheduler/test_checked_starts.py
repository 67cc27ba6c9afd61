"""Nodes are checked before jobs start on them, by a real scheduler; what is not plugged in makes a node unfit."""

import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.scheduler.served import Served, until

CLUSTER = """
node_types: {slots: {gpus: 2, peak_flops: 1e12, memory_bytes: 1e9}}
racks: [{nodes: [{type: slots, name: a}, {type: slots, name: b}, {type: slots, name: c}]}]
"""
SETTINGS = """
cluster: cluster.yaml
folder: .longshore
preflight: {wiring: wiring.yaml}
"""
MISSING = "ports: {mlx5_0/1: {}}"  # a port that no node here has


class Checked(Served):
    """A scheduler whose nodes lack what they should have, if they are named."""

    def expect(self, *nodes: str) -> None:
        """Say which nodes should have a port that they lack."""
        lines = ", ".join(f"{node}: {{{MISSING}}}" for node in nodes)
        path = self.folder / "wiring.new"
        path.write_text(f"nodes: {{{lines}}}\nhold_s: 0.02\n")
        path.replace(self.folder / "wiring.yaml")

    def job(self, job: str) -> Any:
        return self.ask(f"/v1/jobs/{job}")

    def nodes_of(self, job: str) -> list[str]:
        """Return the nodes of each attempt of a job, in order."""
        return ["".join(share["node"] for share in it["placement"]) for it in self.job(job)["attempts"]]

    def held(self) -> set[str]:
        """Return the jobs that hold GPUs."""
        return {gpu["job"] for node in self.ask("/v1/nodes") for gpu in node["gpus"] if gpu["job"]}

    def events(self, job: str, kind: str = "preflight") -> list[Any]:
        told = self.ask(f"/v1/events?job={job}&limit=1000")
        return [it for it in told["events"] if it["kind"] == kind]


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Checked]:
    (tmp_path / "cluster.yaml").write_text(CLUSTER)
    (tmp_path / "settings.yaml").write_text(SETTINGS)
    made = Checked(tmp_path, "--config", "settings.yaml")
    made.expect()
    made.start()
    yield made
    if made.process is not None:
        made.cancel_all()
        made.end()


def test_a_job_starts_right_after_its_nodes_have_passed(served: Checked) -> None:
    job = served.add("true", preflight="auto", gpus=2)
    assert served.ended(job) == "succeeded"
    print(json.dumps(served.job(job), indent=1))
    print(json.dumps(served.events(job), indent=1))
