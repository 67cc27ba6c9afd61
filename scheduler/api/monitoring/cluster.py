"""GET /v1/cluster: what GPUs there are, by node type, with their figures, and how many of them jobs can start on.

Source: SPEC P1.
"""

from collections import Counter

import numpy as np
from fastapi import APIRouter
from numpy.typing import NDArray

from ....cluster.model.topology import Cluster
from ...store.rows.nodes import gpus_in_service
from ..http.auth import Asking, Serving
from ..views.models import Page

router = APIRouter()


class NodeTypePage(Page):
    """Nodes of one type. Figures of GPUs are of one GPU."""

    name: str
    nodes: int
    gpus: int  # of all these nodes
    gpus_in_service: int  # of these, free or not
    gpus_per_node: int  # of the smallest node
    speed: float  # over that of the reference type
    peak_flops: float
    memory_bytes: float
    intra_bytes_per_s: float  # between two GPUs of a node
    nic_bytes_per_s: float  # between a node and others of its rack
    uplink_bytes_per_s: float | None  # of the slowest rack with such nodes; none where they are in one rack


class ClusterPage(Page):
    """A cluster."""

    backend: str
    slots: bool  # its GPUs are slots that only behave like GPUs
    node_types: tuple[NodeTypePage, ...]  # in the order of the cluster file's nodes


@router.get("/v1/cluster")
def cluster(service: Serving, _: Asking) -> ClusterPage:
    """Show what GPUs there are."""
    with service.store.read() as tx:
        usable = gpus_in_service(tx, service.layout.nodes)
    in_service = Counter(service.node_types[node] for node, _ in usable)
    names = list(service.node_types.values())
    here, found = service.control.cluster(), []
    for name in dict.fromkeys(names):
        nodes = np.array([number for number, it in enumerate(names) if it == name])
        found.append(_node_type_page(here, name, nodes, in_service[name]))
    return ClusterPage(backend=service.settings.backend.name, slots=service.slots, node_types=tuple(found))


def _node_type_page(here: Cluster, name: str, nodes: NDArray[np.int64], in_service: int) -> NodeTypePage:
    counts, first = np.diff(here.first_gpu)[nodes], nodes[0]
    racks = np.unique(here.node_rack[nodes])
    return NodeTypePage(
        name=name, nodes=nodes.size, gpus=int(counts.sum()), gpus_in_service=in_service,
        gpus_per_node=int(counts.min()), speed=float(here.speed[first]), peak_flops=float(here.peak_flops[first]),
        memory_bytes=float(here.memory_bytes[first]), intra_bytes_per_s=float(here.intra_bytes_per_s[first]),
        nic_bytes_per_s=float(here.nic_bytes_per_s[first]),
        uplink_bytes_per_s=float(here.uplink_bytes_per_s[racks].min()) if racks.size > 1 else None,
    )  # fmt: skip
