"""Cases worked by hand: jobs, outages and slow nodes as a test writes them down."""

import math
from typing import Any

import numpy as np

from longshore.cluster.model.problem import ORDERS, FaultProcess, Rules, fault_sources, stack
from longshore.cluster.model.topology import Cluster
from longshore.cluster.model.workload import workload_of
from tests.strategies import Case

RULES = Rules(
    ring=False,
    node_penalty=0.25,
    reference_gpus=4,
    reference_intra_bytes_per_s=150e9,
    reference_nic_bytes_per_s=12.5e9,
    checkpoint_s=20.0,
    restart_s=5.0,
    order=ORDERS["fifo"],
    ageing_s=math.inf,
    waiting=False,
)
NO_FAULTS = FaultProcess(1.0, 60.0, 0.0, 0.0, np.zeros(0, np.int32), np.zeros(0), np.zeros(0))
Jobs = list[tuple[int, float, float]]  # GPUs, work, submission
BLOCKED: Jobs = [(2, 100.0, 0.0), (4, 50.0, 0.0), (2, 101.0, 0.0), (2, 99.0, 0.0), (1, 30.0, 0.0), (1, 20.0, 0.0)]
Outages = dict[int, list[tuple[float, float]]]
SLOW = {"slow_per_s": 1 / 400, "slow_mean_s": 80.0, "slow_factor": 4.0, "node_penalty": 0.0}


def hand_case(
    cluster: Cluster,
    jobs: Jobs,
    outages: dict[int, list[tuple[float, float]]] | None = None,
    estimate_s: list[float] | None = None,
    **rules: Any,
) -> Case:
    gpus, work_s, submit_s = (np.array(column) for column in zip(*jobs, strict=True))
    sources = fault_sources(cluster)
    lists = [(outages or {}).get(source, []) for source in range(sources)]
    process = NO_FAULTS._replace(
        outage_first=np.cumsum([0, *map(len, lists)]).astype(np.int32),
        outage_start_s=np.array([start_s for listed in lists for start_s, _ in listed]),
        outage_end_s=np.array([end_s for listed in lists for _, end_s in listed]),
    )
    work = workload_of(tuple(map(str, range(len(jobs)))), gpus, work_s, submit_s)
    scenarios = stack(cluster, [work], fault_seed=np.array([1]), source_rate_per_s=np.zeros(sources))
    if estimate_s is not None:
        scenarios = scenarios._replace(estimate_s=np.array([estimate_s]))
    return Case(cluster, scenarios, 0, process, RULES._replace(**rules))


def slow_case(cluster: Cluster, jobs: Jobs, outages: Outages | None = None, **rules: Any) -> Case:
    return hand_case(cluster, jobs, outages or {}, **(SLOW | rules))
