"""Events of faults as the store keeps them, and the cluster on which they happen."""

import numpy as np

from longshore.cluster.model.topology import grid_cluster
from longshore.cluster.presets.drawn import fault_process, rules
from longshore.scheduler.mirror.cluster_mirror import ClusterSite
from longshore.scheduler.model.gpu_index import Layout
from longshore.scheduler.store.events import EventRow
from longshore.scheduler.store.nodes import CHANGE

DAY_S = 86400.0
RATE_PER_S = 1e-7
SITE = ClusterSite(
    grid_cluster(3, 2), rules()._replace(estimated_hazards=True), fault_process(), np.full(6, RATE_PER_S)
)
LAYOUT = Layout(["a", "b", "c"], [2, 2, 2])


def event(day: float, node: str, now: str, gpu: object = None) -> EventRow:
    data = {"node": node} | ({} if gpu is None else {"gpu": gpu})
    return EventRow(0, CHANGE, "monitor", day * DAY_S, None, None, None, "", now, 1, "", data)
