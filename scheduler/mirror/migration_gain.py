"""Whether a slow job gains by other GPUs. The policy decides on them once its attempt is stopped.

Source: SPEC K2; docs/steps.md.
"""

from collections.abc import Iterable

import numpy as np

from ...cluster.dispatch.placing import slowdown_of
from .cluster_mirror import ClusterMirror
from .shape import Form, suiting
from .standing import ROW

GAIN = 0.8  # of the present step time, at most, on other GPUs


def candidates(
    mirror: ClusterMirror, own: Iterable[int], wanted: int, slow_gpus: Iterable[int], form: Form | None = None
) -> list[list[int]]:
    """Return sets of GPUs that a running job could have instead: on few nodes, and on fast ones.

    Args:
        mirror: The cluster.
        own: GPUs that it has.
        wanted: How many it asks for.
        slow_gpus: All of the nodes that are to blame.
        form: How they must lie on nodes, None for any.
    """
    state, cluster = mirror.sim.state, mirror.site.cluster
    usable = (state.gpu_job[ROW] < 0) & (state.gpu_down[ROW] == 0)
    usable[list(own)] = state.gpu_down[ROW, list(own)] == 0
    for job in {mirror.holder(gpu) for gpu in own} - {None}:
        usable &= mirror.suits(str(job))
    usable[list(slow_gpus)] = False
    gpus = np.flatnonzero(usable)
    if gpus.size < wanted:
        return []
    nodes = cluster.gpu_node[gpus]
    room = np.bincount(nodes, minlength=cluster.speed.size)[nodes]
    # A node that has room for all comes before one with more, and both before those that have not.
    few = np.lexsort(
        (nodes, cluster.speed[nodes] * -1.0, np.where(room >= wanted, room, cluster.gpu_node.size * 2 - room))
    )
    fast = np.lexsort((nodes, -room, cluster.speed[nodes] * -1.0))
    found = [gpus[order[:wanted]].tolist() for order in (few, fast)]
    if form is None:
        return found
    return [list(suited) for it in found if (suited := suiting(mirror, usable, it, wanted, form))]


def slowdown_on(mirror: ClusterMirror, slot: int, gpus: list[int]) -> float:
    """Return by what a job's work takes longer on GPUs, whoever holds them.

    Args:
        mirror: The cluster.
        slot: Of the job.
        gpus: The GPUs.
    """
    cluster = mirror.site.cluster
    nodes, taken = np.unique(cluster.gpu_node[gpus], return_counts=True)
    racks = np.unique(cluster.node_rack[nodes])
    return float(
        slowdown_of(
            mirror.sim, 0, slot, nodes.size, float(cluster.speed[nodes].min()),
            float(cluster.intra_bytes_per_s[nodes[taken > 1]].min(initial=np.inf)),
            float(cluster.nic_bytes_per_s[nodes].min()),
            float(cluster.uplink_bytes_per_s[racks].min()) if racks.size > 1 else np.inf,
            0,
        )
    )  # fmt: skip


def best_step_s(
    mirror: ClusterMirror, own: tuple[int, ...], slow_gpus: Iterable[int], usual_s: float, form: Form | None = None
) -> float:
    """Return the step time that a running job is predicted to have on other GPUs, inf if there are none for it.

    Args:
        mirror: The cluster.
        own: GPUs that it has.
        slow_gpus: All of the nodes that are to blame.
        usual_s: Its step time before they were slow.
        form: How its GPUs must lie on nodes, None for any.
    """
    slot = int(mirror.sim.state.gpu_job[ROW, own[0]])
    present = slowdown_on(mirror, slot, list(own))
    others = [slowdown_on(mirror, slot, gpus) for gpus in candidates(mirror, own, len(own), slow_gpus, form)]
    return usual_s * min(others, default=np.inf) / present
