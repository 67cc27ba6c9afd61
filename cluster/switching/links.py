"""The bandwidth between two GPUs by the cluster file, which the simulator and the live scheduler go by."""

from ..kernels.compiled import kernel
from ..model.topology import Cluster


@kernel
def link_bytes_per_s(cluster: Cluster, node: int, other: int) -> float:
    """Return the bandwidth between a GPU of one node and a GPU of another, or between two GPUs of one node."""
    if node == other:
        return float(cluster.intra_bytes_per_s[node])
    link = min(cluster.nic_bytes_per_s[node], cluster.nic_bytes_per_s[other])
    rack, other_rack = cluster.node_rack[node], cluster.node_rack[other]
    if rack != other_rack:
        link = min(link, cluster.uplink_bytes_per_s[rack], cluster.uplink_bytes_per_s[other_rack])
    return float(link)
