"""How soon the extender ranks the nodes of a Kubernetes cluster: `longshore extender` on the loopback interface.

One pod of 2 GPUs after the other, as kube-scheduler asks; each is new, and all nodes are offered to it.
"""

import json
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx

from longshore.cluster.files.processes import free_port

from .harness import ROOT, Row, main, progress

CHECKPOINT = ROOT / "checkpoints" / "hetero64.zip"
SIZES = {500: 400, 5000: 100}  # nodes, and requests that are measured
MOST_P99_MS = {(500, False): 100.0, (500, True): 100.0, (5000, False): 500.0, (5000, True): 1000.0}
WARM_UP = 20  # requests that do not count
STARTED_S = 300.0
# As large as a bare node of a recorded request; real ones are several times larger.
FILLER = {"managedFields": [{"manager": "kubelet", "fieldsV1": {f"f:field-{i}": {} for i in range(40)}}]}


def cluster_file(nodes: int) -> str:
    """Return a cluster of nodes with 8 GPUs, half of them fast, 25 to a rack."""
    types = {"slow": "125e12, memory_bytes: 32e9", "fast": "312e12, memory_bytes: 80e9"}
    kinds = "".join(f"  {kind}: {{gpus: 8, peak_flops: {rest}}}\n" for kind, rest in types.items())
    racks = "".join(f"  - {{count: {nodes // 50}, nodes: [{{type: {kind}, count: 25}}]}}\n" for kind in types)
    return f"name: large\nnode_types:\n{kinds}racks:\n{racks}run_time: {{model: simple, node_penalty: 0.25}}\n"


def request(number: int, names: list[str], *, whole: bool) -> bytes:
    """Return a request of `prioritize`, with the nodes by name or as whole objects."""
    resources = {"limits": {"nvidia.com/gpu": "2"}, "requests": {"nvidia.com/gpu": "2"}}
    metadata = {"name": f"p-{number}", "namespace": "default", "uid": f"uid-{number}"}
    pod = {"metadata": metadata, "spec": {"containers": [{"name": "train", "resources": resources}]}}
    nodes = {
        "metadata": {},
        "items": [
            {"metadata": {"name": name, **FILLER}, "spec": {}, "status": {"allocatable": {"nvidia.com/gpu": "8"}}}
            for name in names
        ],
    }  # fmt: skip
    asked = {"Pod": pod, "Nodes": nodes if whole else None, "NodeNames": None if whole else names}
    return json.dumps(asked).encode()


@contextmanager
def extender(folder: Path, nodes: int, policy: str | None) -> Iterator[httpx.Client]:
    """Serve an extender in a process of its own."""
    file = folder / f"{nodes}.yaml"
    file.write_text(cluster_file(nodes), encoding="utf-8")
    port = free_port()
    line = [sys.executable, "-m", "longshore", "extender", "--cluster", str(file), "--port", str(port)]
    process = subprocess.Popen([*line, *(["--policy", policy] if policy else [])], stdout=sys.stderr)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=STARTED_S) as client:
            give_up = time.monotonic() + STARTED_S
            while not is_ready(client):
                if process.poll() is not None or time.monotonic() > give_up:
                    raise RuntimeError("the extender does not start")
                time.sleep(0.2)
            yield client
    finally:
        process.send_signal(signal.SIGINT)
        process.wait()


def is_ready(client: httpx.Client) -> bool:
    """Say whether an extender answers."""
    try:
        return client.get("/readyz").status_code == 200
    except httpx.TransportError:
        return False


def latencies_ms(client: httpx.Client, nodes: int, *, whole: bool) -> list[float]:
    """Return how long each request took."""
    racks = nodes // 25
    names = [f"rack{rack}-node{i}" for rack in range(racks) for i in range(25)]
    taken_ms = []
    for number in range(-WARM_UP, SIZES[nodes]):
        body = request(number, names, whole=whole)
        begin_s = time.perf_counter()
        reply = client.post("/prioritize", content=body)
        if number >= 0:
            taken_ms.append(1000.0 * (time.perf_counter() - begin_s))
        if max(each["Score"] for each in reply.json()) != 10:
            raise RuntimeError("the extender did not rank")
    return taken_ms


def measure() -> Iterator[Row]:
    """Yield median and 99th percentile of the time of an answer, and answers a second, for each size and form."""
    for nodes in SIZES:
        for policy, name in ((None, "eft-hazard"), (str(CHECKPOINT), CHECKPOINT.stem)):
            progress(f"{nodes} nodes, {name}")
            with TemporaryDirectory() as folder, extender(Path(folder), nodes, policy) as client:
                for form, whole in (("names", False), ("objects", True)):
                    taken_ms = latencies_ms(client, nodes, whole=whole)
                    title = f"{nodes} {form}, {name}"
                    yield Row(f"{title}: median", statistics.median(taken_ms), "ms")
                    p99_ms = statistics.quantiles(taken_ms, n=100)[98]
                    yield Row(f"{title}: 99th percentile", p99_ms, "ms", most=MOST_P99_MS[nodes, whole])
                    yield Row(f"{title}: one after the other", 1000.0 / statistics.mean(taken_ms), "answers/s")
                metrics = client.get("/metrics").text
                if policy and 'outcome="policy",verb="prioritize"' not in metrics:
                    raise RuntimeError("the policy did not rank")


if __name__ == "__main__":
    main(measure)
