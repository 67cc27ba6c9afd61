"""A scheduler whose nodes are in network namespaces, with links of known rates: run by test_links_apart.py.

    unshare --net --mount --pid --fork --mount-proc --kill-child python -m tests.scheduler.links_apart FOLDER

The ring's processes are beside the scheduler: which GPU they get goes by what the agents of the nodes measure. The
agent of node a is in two parts, so that it can be told to find a GPU faulty.
"""

import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.link_probes import agent_on
from benchmarks.namespaces import MANAGER, Network
from tests.scheduler.served import LONGSHORE, Served, until
from tests.scheduler.served_rings import held_by, ring_job, running, seated
from tests.support import processes

CLUSTER = """\
node_types:
  slots: {gpus: 2, peak_flops: 1e12, memory_bytes: 1e9, intra_bytes_per_s: 10e9, nic_bytes_per_s: 1e8}
racks:
  - nodes: [{type: slots, name: a}, {type: slots, name: b}, {type: slots, name: c}]
run_time: {model: ring}
"""
RATES = {"a": 100e6, "b": 25e6, "c": 100e6}  # bytes/s that leave a node, headers among them


class There(Served):
    """A scheduler that the nodes reach."""

    @property
    def url(self) -> str:
        return f"http://{MANAGER}:{self.port}"


def play(served: There, network: Network, case: str) -> dict[str, Any]:
    """Let a ring on node a lose a member, and return what takes its seat."""
    with agent_on(network, 0) as place:

        def report(broken: int) -> None:
            healthy = {"utilisation": 0.0, "free_bytes": 1}
            gpus = [{"index": it, "healthy": it != broken, **healthy} for it in range(2)]
            served.tell("POST", "/v1/nodes/a/report", gpus=gpus, probes=place.model_dump())

        job = ring_job(served, 10**6, gpus=2, parameter_bytes=10e6)
        running(served, job, 10)
        assert held_by(served, job) == {("a", 0), ("a", 1)}
        if case == "cut":
            network.cut(0, 2)
        report(broken=-1)
        report(broken=0)
        report(broken=0)
        until(lambda: sorted(seated(served, job)) == [1, 2])
        (came,) = served.ask(f"/v1/jobs/{job}/ring")["replacements"]
    return dict(came)


def main(folder: Path, case: str) -> None:
    """Print what came, as JSON."""
    network = Network(len(RATES))
    for node, rate in enumerate(RATES.values()):
        network.shape(node, rate)
    (folder / "cluster.yaml").write_text(CLUSTER)
    served = There(folder, "--cluster", "cluster.yaml", "--host", MANAGER)
    served.start()
    environment, agents = served.for_commands() | {"LONGSHORE_TOKEN": served.token}, []
    for node, name in enumerate(RATES):
        if node:  # that of a is told what to find
            line = ["ip", "netns", "exec", network.name(node), *LONGSHORE, "node", "agent", "--node", name]
            line += ["--url", served.url, "--probe", network.address(node), "--every", "1s"]
            agents.append(processes.start(line, cwd=folder, env=environment))
    until(lambda: sum(it["reported"] is not None for it in served.ask("/v1/nodes")) == len(agents))
    sys.stdout.write(json.dumps(play(served, network, case)) + "\n")
    sys.stdout.flush()
    served.cancel_all()
    for it in agents:
        it.kill()
    served.end()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
