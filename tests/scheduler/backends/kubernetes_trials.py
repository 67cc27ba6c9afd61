"""The Kubernetes backend on the double of a cluster, for tests."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from longshore.scheduler.backends.kubernetes.backend import KubernetesBackend
from longshore.scheduler.backends.kubernetes.settings import KubernetesSettings
from tests.kubernetes_double.cluster import DRIVER, Cluster
from tests.kubernetes_double.objects import Object
from tests.scheduler.backends.attempts import NODES


class Trial:
    """A cluster and the backends that use it.

    Args:
        folder: Of both.
        nodes: GPUs of each node.
    """

    def __init__(self, folder: Path, nodes: Mapping[str, int] = NODES) -> None:
        self.folder, self.nodes = folder, nodes
        self.cluster = Cluster(folder / "cluster", nodes)
        self.lease_times: dict[str, Any] = {}  # of the next backend, if not the usual ones
        self._made: list[KubernetesBackend] = []

    def make(self, folder: str = "scheduler", **chosen: Any) -> KubernetesBackend:
        """Return a fresh backend, of another installation if its folder is another one."""
        settings = KubernetesSettings(
            **{"image": "train", "kubeconfig": self.cluster.kubeconfig, "deadline_s": 20.0, **chosen}
        )
        backend = KubernetesBackend(self.folder / folder, self.nodes, settings, **self.lease_times)
        self._made.append(backend)
        return backend

    def end(self) -> None:
        """End all backends and the cluster."""
        self.cluster.server.faults.lift()
        for backend in self._made:
            backend.close()
        self.cluster.close()


def take_from_outside(cluster: Cluster, node: str, gpus: int) -> None:
    """Let a pod of somebody else have the first GPUs of a node."""
    name = f"stranger-{node}"
    spec = {"containers": [{"name": "main", "image": "any"}], "schedulingGates": [{"name": "x"}]}
    pod = cluster.objects.create(("pods", "elsewhere", name), {"metadata": {"name": name, "labels": {}}, "spec": spec})
    results = [{"driver": DRIVER, "pool": node, "device": f"gpu-{index}"} for index in range(gpus)]
    reserved = [{"resource": "pods", "name": name, "uid": pod["metadata"]["uid"]}]
    status = {"allocation": {"devices": {"results": results}}, "reservedFor": reserved}
    claim: Object = {"metadata": {}, "spec": {"devices": {}}, "status": status}
    cluster.objects.create(("resourceclaims", "elsewhere", name), claim)


_trials: dict[Path, Trial] = {}


def make_on_double(folder: Path) -> KubernetesBackend:
    """Return a fresh backend on the cluster of a folder, which is started if need be."""
    if folder not in _trials:
        _trials[folder] = Trial(folder)
    return _trials[folder].make()


def end_double(folder: Path) -> None:
    """End the cluster of a folder, if it was started."""
    if folder in _trials:
        _trials.pop(folder).end()
