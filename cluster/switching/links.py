"""The bandwidth between two GPUs: by the cluster file, in the simulator and live, and live as it was measured.

Source: SPEC F4, F6.
"""

from ..kernels.compiled import kernel
from ..model.topology import Cluster

SURE_BYTES_PER_S = 1e9  # a probe over one connection does not tell faster links apart


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


def believed_bytes_per_s(reckoned: float, measured: float) -> float:
    """Return the bandwidth of a link that was measured; of a fast one that says no more than that it is fast.

    Args:
        reckoned: By the cluster file.
        measured: By a probe.
    """
    return measured if measured < SURE_BYTES_PER_S else max(reckoned, SURE_BYTES_PER_S)
