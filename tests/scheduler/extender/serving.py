"""An extender behind a real server on the loopback interface, and requests written by hand."""

import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx
import uvicorn

from longshore.agents.registry import find_policy
from longshore.cluster.presets.cluster_file import read_cluster
from longshore.scheduler.extender.app import create_app
from longshore.scheduler.extender.inventory import Inventory
from longshore.scheduler.extender.ranking import Ranker
from longshore.scheduler.extender.watching import ObjectWatch
from longshore.scheduler.placement.placer import Placer

ROOT = Path(__file__).parents[3]
CHECKPOINT = ROOT / "checkpoints" / "hetero64.zip"
PATIENCE_S = 120.0  # far more than anything here takes
DEADLINE_S = 60.0  # of rankings whose time does not matter: the first compiles

CLUSTER = """\
name: by-hand
node_types:
  slow: {gpus: 8, peak_flops: 125e12, memory_bytes: 32e9}
  fast: {gpus: 8, peak_flops: 312.5e12, memory_bytes: 80e9}
reference_type: slow
racks:
  - nodes: [{type: slow, name: slow-0}, {type: slow, name: slow-1}]
  - nodes: [{type: fast, name: fast-0}, {type: fast, name: fast-1}]
run_time: {model: simple, node_penalty: 0.25}
"""
HOSTS = ["slow-0", "slow-1", "fast-0", "fast-1"]


def ranker_of(
    cluster: Path | None = None, policy: str | None = None, *, fallback: str = "eft-hazard",
    deadline_s: float = DEADLINE_S,
) -> Ranker:  # fmt: skip
    inventory = Inventory(None if cluster is None else read_cluster(cluster))
    return Ranker(inventory, Placer(find_policy(fallback), policy, deadline_s / 2.0), deadline_s)


def by_hand(folder: Path) -> Path:
    path = folder / "cluster.yaml"
    path.write_text(CLUSTER)
    return path


@contextmanager
def served(ranker: Ranker, watch: ObjectWatch | None = None) -> Iterator[httpx.Client]:
    server = uvicorn.Server(uvicorn.Config(create_app(ranker, watch), host="127.0.0.1", port=0, log_level="warning"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        give_up = time.monotonic() + PATIENCE_S
        while not server.started:
            assert time.monotonic() < give_up
            time.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE_S) as client:
            yield client
    finally:
        server.should_exit = True
        thread.join()


def pod(
    gpus: int | str | None = 2, *, uid: str = "pod-1", labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
) -> dict[str, object]:  # fmt: skip
    resources = {} if gpus is None else {"limits": {"nvidia.com/gpu": str(gpus)}}
    return {
        "metadata": {
            "name": uid, "namespace": "default", "uid": uid, "labels": labels or {}, "annotations": annotations or {},
        },
        "spec": {"containers": [{"name": "train", "resources": resources}]},
    }  # fmt: skip


def node(name: str, gpus: int | None = 8, *, labels: dict[str, str] | None = None) -> dict[str, object]:
    status = {} if gpus is None else {"allocatable": {"cpu": "127", "nvidia.com/gpu": str(gpus)}}
    return {"metadata": {"name": name, "labels": labels or {}}, "spec": {}, "status": status}


def names_request(pod: object, names: Sequence[str]) -> bytes:
    return json.dumps({"Pod": pod, "Nodes": None, "NodeNames": list(names)}).encode()


def objects_request(pod: object, nodes: Sequence[object]) -> bytes:
    return json.dumps({"Pod": pod, "Nodes": {"metadata": {}, "items": list(nodes)}, "NodeNames": None}).encode()
