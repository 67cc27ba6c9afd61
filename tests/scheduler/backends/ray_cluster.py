"""A real Ray on this machine: a head, and some nodes with four GPUs each, which are custom resources."""

import os
import secrets
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Any

import httpx

from longshore.cluster.files.processes import Identity, boot_id, children, find, free_port, is_alive
from longshore.scheduler.backends.ray.backend import DEADLINE_S, RayBackend
from longshore.scheduler.backends.ray.launcher import LABEL, gpu_resource
from tests.scheduler.backends.attempts import until
from tests.support import processes

GPUS = 4
INSTALL = "pip install '.[ray]' in a clone of Longshore"

_PATIENCE_S = 120.0
_ADDRESS = "127.0.0.2"  # Ray takes 127.0.0.1 for the machine's address to the outside
_SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "token", "RAY_enable_worker_prestart": "0",
    "RAY_worker_niceness": "1",  # of 15 they starve beside other tests
    "RAY_health_check_initial_delay_ms": "0", "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "500", "RAY_health_check_failure_threshold": "3",
}  # fmt: skip
_NODES = """
import sys
import time
from ray._private import services
from ray.cluster_utils import Cluster

look, patience_s = services.get_node, float(sys.argv.pop())


def patiently(*args):
    last_s = time.monotonic() + patience_s
    while True:
        try:
            return look(*args)
        except RuntimeError:
            if time.monotonic() > last_s:
                raise
            time.sleep(0.1)


services.get_node = patiently  # Ray itself gives a node half a minute to start, too little on a loaded machine.
address, port, label = sys.argv[1:]
own = {"node_ip_address": address, "object_store_memory": 80 << 20, "include_log_monitor": False, "num_gpus": 0}
head = {"num_cpus": 0, "include_dashboard": True, "dashboard_host": "127.0.0.1", "dashboard_port": int(port),
        "dashboard_agent_listen_port": None}
cluster = Cluster(True, head_node_args={**own, **head})
for line in sys.stdin:
    name, *gpus = line.split()
    node = cluster.add_node(False, **own, num_cpus=8, labels={label: name}, resources=dict.fromkeys(gpus, 1))
    print(node.all_processes["raylet"][0].process.pid, flush=True)
"""


def why_not() -> str:
    """Return why there can be no Ray here, "" if there can."""
    return "" if find_spec("ray") and find_spec("aiohttp_cors") else f"Ray is not installed: {INSTALL}"


class RayCluster:
    """A Ray of our own.

    Args:
        root: Folder for what it writes.
        nodes: Names of its nodes.
    """

    def __init__(self, root: Path, nodes: Sequence[str]) -> None:
        self.nodes, self.token = tuple(nodes), root / "token"
        self.folder = root / "longshore"  # of schedulers: each folder has a launcher of its own, which takes a while
        self.token.write_text(secrets.token_hex(32))
        self._port = free_port()
        self.address = f"http://127.0.0.1:{self._port}"
        self._log = (root / "ray.log").open("ab")
        self._temporary = mkdtemp(prefix="ray-")  # The paths of Ray's sockets must be short.
        self._raylets: dict[str, Identity] = {}
        self._process = self._start_head()

    def _start_head(self) -> processes.Process[str]:
        environment = {
            **os.environ, **_SETTINGS, "RAY_TMPDIR": self._temporary, "RAY_AUTH_TOKEN_PATH": str(self.token),
        }  # fmt: skip
        line = [sys.executable, "-u", "-c", _NODES, _ADDRESS, str(self._port), LABEL, str(_PATIENCE_S)]
        return processes.start(
            line, stdin=processes.PIPE, stdout=processes.PIPE, stderr=self._log, env=environment, text=True,
        )  # fmt: skip

    def start(self) -> None:
        """Start all nodes, and wait until they live and a launcher runs, which takes longer the first time."""
        for node in self.nodes:
            self.start_node(node)
        self.wait()
        backend_of(self).observe()
        until(lambda: any(job["status"] == "RUNNING" for job in self.ask("/api/jobs/")))

    def start_node(self, node: str) -> None:
        """Start a node, without waiting for it."""
        resources = [gpu_resource(node, gpu) for gpu in range(GPUS)]
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(" ".join((node, *resources)) + "\n")
        stdin.flush()
        raylet = find(int(stdout.readline()))
        assert raylet is not None
        self._raylets[node] = Identity(raylet.pid, raylet.start_ticks, boot_id())

    def raylet(self, node: str) -> int:
        """Return the pid of a node's daemon."""
        return self._raylets[node].pid

    def dashboard(self) -> int:
        """Return the pid of what answers for Ray."""
        found = [child.pid for child in children(self._process.pid) if b"dashboard.py" in _line_of(child.pid)]
        assert len(found) == 1, found
        return found[0]

    def kill_node(self, node: str) -> None:
        """Kill a node's daemon, and wait until Ray has taken note."""
        os.kill(self.raylet(node), signal.SIGKILL)
        self.wait(without=node)

    def heal(self) -> None:
        """Start the nodes that do not live."""
        for node, raylet in self._raylets.items():
            if not is_alive(raylet, boot_id()):
                self.start_node(node)
        self.wait()

    def wait(self, without: str = "") -> None:
        """Wait until all its nodes live, or all but one."""
        wanted, until_s = sorted(set(self.nodes) - {without}), time.monotonic() + _PATIENCE_S
        while (seen := self.living()) != wanted:
            assert time.monotonic() < until_s, f"nodes {seen} live"
            time.sleep(0.05)

    def living(self) -> list[str]:
        """Return the nodes that Ray takes for living."""
        reported = self.ask("/api/v0/nodes?detail=1")
        nodes = reported["data"]["result"]["result"]
        return sorted(node["labels"][LABEL] for node in nodes if node["state"] == "ALIVE" and LABEL in node["labels"])

    def ask(self, path: str) -> Any:
        """Return what Ray's dashboard answers."""
        headers = {"Authorization": f"Bearer {self.token.read_text()}"}
        answer = httpx.get(self.address + path, headers=headers, timeout=_PATIENCE_S)
        assert answer.status_code == httpx.codes.OK, answer.text
        return answer.json()

    def end(self) -> None:
        """Let it end its processes."""
        try:
            self._process.communicate(timeout=_PATIENCE_S)
        finally:
            self._process.kill()
            self._log.close()
            rmtree(self._temporary, ignore_errors=True)


def _line_of(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def backend_of(
    cluster: RayCluster, deadline_s: float = DEADLINE_S, nodes: Mapping[str, int] | None = None
) -> RayBackend:
    """Return a backend that knows what earlier ones launched, for all GPUs by default."""
    nodes = nodes or dict.fromkeys(cluster.nodes, GPUS)
    return RayBackend(cluster.folder, nodes, address=cluster.address, token=cluster.token, deadline_s=deadline_s)


def end_attempts(cluster: RayCluster) -> None:
    """End all attempts, and see them gone."""
    backend = backend_of(cluster)
    names = [path.name for path in (cluster.folder / "attempts").iterdir() if (path / "spec.json").exists()]
    for name in names:
        if not backend.is_proven_gone(name):
            backend.cancel(name, "the test is over")
    until(lambda: all(backend.is_proven_gone(name) for name in names))
