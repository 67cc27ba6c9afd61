"""A Kubernetes cluster in one process: an API server on loopback, a scheduler, controllers, a kubelet for each node.

Each part says what it leaves out. Of the whole, these are: networks and names of pods, rights beyond those that are
withheld by name, and everything that takes long on a real cluster.
"""

import threading
from collections.abc import Mapping
from pathlib import Path

import yaml

from tests.kubernetes_double.collecting import collect
from tests.kubernetes_double.kubelet import Kubelet
from tests.kubernetes_double.objects import ApiError, Object, Objects
from tests.kubernetes_double.placing import place_pods
from tests.kubernetes_double.server import ApiServer

DRIVER = "gpu.nvidia.com"


class Cluster:
    """The double of a cluster. Its containers are real processes; see `close`.

    Args:
        folder: For the containers' folders and the kubeconfig.
        nodes: GPUs of each node.
    """

    def __init__(self, folder: Path, nodes: Mapping[str, int]) -> None:
        self.objects = Objects()
        self.kubelets = {name: Kubelet(self.objects, name, folder / "kubelet" / name) for name in nodes}
        for name, gpus in nodes.items():
            self.add_node(name, gpus)
        self.server = ApiServer(self.objects, self._log_of)
        self.kubeconfig = folder / "kubeconfig"
        self.kubeconfig.parent.mkdir(parents=True, exist_ok=True)
        self.kubeconfig.write_text(_kubeconfig(self.server.url))
        self.schedules = True
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def add_node(self, name: str, gpus: int) -> None:
        """Let a node join, with what its GPU driver publishes."""
        node = {
            "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
            "spec": {},
            "status": {
                "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
                "allocatable": {"nvidia.com/gpu": str(gpus)},
            },
        }
        self.objects.create(("nodes", "", name), node)
        devices = [
            {"name": f"gpu-{index}", "attributes": {"uuid": {"string": uuid_of(name, index)}}} for index in range(gpus)
        ]
        pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": DRIVER, "nodeName": name, "pool": pool, "devices": devices}
        self.objects.create(
            ("resourceslices", "", f"{name}-{DRIVER}"), {"metadata": {"name": f"{name}-{DRIVER}"}, "spec": spec}
        )

    def set_ready(self, name: str, status: str) -> None:
        """Set what the cluster says of a node: "True", "False" or "Unknown"."""

        def edit(node: Object) -> Object:
            node["status"]["conditions"] = [{"type": "Ready", "status": status, "reason": "Told"}]
            return node

        self.objects.update(("nodes", "", name), edit)

    def cordon(self, name: str) -> None:
        """Let a node take no further pods."""
        self.taint(name, "node.kubernetes.io/unschedulable", "", "NoSchedule")
        self.objects.update(("nodes", "", name), lambda node: _with(node, unschedulable=True))

    def taint(self, name: str, key: str, value: str, effect: str) -> None:
        """Add a taint to a node."""
        taint = {"key": key, "value": value, "effect": effect}
        self.objects.update(
            ("nodes", "", name), lambda node: _with(node, taints=[*node["spec"].get("taints", []), taint])
        )

    def forget_all_pods(self, version: int) -> None:
        """Count on from an older version without any pod, as a cluster that was restored from a backup."""
        with self.objects.changed:
            for pod in self.pods():
                meta = pod["metadata"]
                self.objects.remove(("pods", meta["namespace"], meta["name"]))
            self.objects.restore(version)

    def pods(self) -> list[Object]:
        """Return all pods."""
        return self.objects.each("pods", "")

    def close(self) -> None:
        """End everything, and see all processes gone."""
        self._ends.set()
        self._thread.join()
        self.server.close()
        for kubelet in self.kubelets.values():
            for container in kubelet.containers.values():
                container.kill_all()

    def _run(self) -> None:
        while not self._ends.is_set():
            if self.schedules:
                place_pods(self.objects)
            for kubelet in self.kubelets.values():
                kubelet.step()
            collect(self.objects)
            with self.objects.changed:
                self.objects.changed.wait(0.02)

    def _log_of(self, pod: Object) -> bytes:
        kubelet = self.kubelets[pod["spec"]["nodeName"]]
        container = kubelet.containers.get(pod["metadata"]["uid"])
        if container is None:
            raise ApiError(404, "NotFound", "no log")
        if not kubelet.alive:
            raise ApiError(500, "InternalError", f"Get https://{kubelet.node}:10250: connection refused")
        return container.log()


def _with(node: Object, **spec: object) -> Object:
    return node | {"spec": {**node["spec"], **spec}}


def uuid_of(node: str, index: int) -> str:
    """Return the UUID of a GPU, which ends with its index."""
    return f"GPU-{node}-{index}"


def _kubeconfig(url: str) -> str:
    return yaml.safe_dump(
        {
            "apiVersion": "v1", "kind": "Config", "current-context": "double",
            "clusters": [{"name": "double", "cluster": {"server": url}}],
            "users": [{"name": "double", "user": {"token": "no secret"}}],
            "contexts": [{"name": "double", "context": {"cluster": "double", "user": "double"}}],
        }
    )  # fmt: skip
