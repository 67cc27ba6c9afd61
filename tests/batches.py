"""Small workloads that are submitted as one batch, of which the exact optimum is known."""

import math

import numpy as np
from hypothesis import strategies as st

from longshore.cluster.model.problem import ORDERS, FaultProcess, Rules, Scenarios, fault_sources, stack
from longshore.cluster.model.topology import Cluster, grid_cluster
from longshore.cluster.model.workload import workload_of

RULES = Rules(False, 0.25, 4, 150e9, 12.5e9, math.inf, 0.0, ORDERS["fifo"], math.inf, True)  # noqa: FBT003


def batch(cluster: Cluster, jobs: list[tuple[int, float]]) -> Scenarios:
    gpus, work_s = (np.array(column) for column in zip(*jobs, strict=True))
    workload = workload_of(tuple(map(str, range(len(jobs)))), gpus, work_s, np.zeros(len(jobs)))
    return stack(cluster, [workload], fault_seed=np.array([0]), source_rate_per_s=np.zeros(fault_sources(cluster)))


def fault_free(cluster: Cluster) -> FaultProcess:
    return FaultProcess(1.0, 1.0, 0.0, 0.0, np.zeros(fault_sources(cluster) + 1, np.int32), np.zeros(0), np.zeros(0))


@st.composite
def batches(draw: st.DrawFn) -> tuple[Cluster, Scenarios]:
    nodes, gpus_per_node = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    speed = draw(st.lists(st.sampled_from((0.5, 1.0, 2.0)), min_size=nodes, max_size=nodes))
    cluster = grid_cluster(nodes, gpus_per_node, speed=np.array(speed))
    job = st.tuples(st.integers(1, nodes * gpus_per_node), st.integers(1, 20).map(float))
    return cluster, batch(cluster, draw(st.lists(job, min_size=1, max_size=5)))
