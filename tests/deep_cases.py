"""Cases with long queues or many nodes, from a seed: hypothesis would take too long to draw them one by one."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from longshore.cluster.model.problem import EVERY_JOB, ORDERS, FaultProcess, Rules, fault_sources, stack
from longshore.cluster.model.topology import grid_cluster
from longshore.cluster.model.workload import Workload
from tests.strategies import SPEEDS, Case


def deep_case(seed: int, order: str) -> Case:
    """Return 40 to 160 jobs, most of which wait, with ties, faults, stops, wrong estimates and every kind of rule."""
    rng = np.random.default_rng(seed)
    nodes, gpus_per_node = int(rng.integers(2, 9)), int(rng.choice([1, 2, 4]))
    jobs = int(rng.choice([64, 128, int(rng.integers(40, 161)), int(rng.integers(40, 161))]))  # full trees too
    cluster = grid_cluster(nodes, gpus_per_node, speed=rng.choice(SPEEDS, nodes), nodes_per_rack=3)
    most = nodes * gpus_per_node if rng.random() < 0.5 else max(nodes * gpus_per_node // 4, 1)
    some_s: Any = rng.integers(1, 40, jobs) * 5.0 if rng.random() < 0.5 else np.exp(rng.normal(4.0, 1.5, jobs))
    work_s: NDArray[np.float64] = some_s
    gaps_s = rng.choice([0.0, 0.0, 1.0, 5.0], jobs) * (rng.random() < 0.5)
    workload = Workload(
        ids=tuple(map(str, range(jobs))),
        gpus=rng.integers(1, most + 1, jobs).astype(np.int32),
        work_s=work_s,
        submit_s=np.cumsum(gaps_s) - gaps_s[0],
        estimate_s=work_s * (rng.choice([0.25, 0.5, 1.0, 4.0], jobs) if rng.random() < 0.5 else 1.0),
        compute_s=rng.choice([0.25, 0.5, 1.0], jobs),
        parameter_bytes=rng.choice([0.5e9, 2e9, 4e9], jobs),
    )
    rates = rng.choice([0.0, 1e-5, 1e-4], fault_sources(cluster)) * (rng.random() < 0.7)
    scenarios = stack(cluster, [workload], fault_seed=np.array([seed]), source_rate_per_s=rates)
    process = FaultProcess(1.0, 30.0, 0.0, 0.25)
    case = Case(cluster, scenarios, 0, process, deep_rules(rng, order))
    return of_users(case, rng) if rng.random() < 0.5 else case


def of_users(case: Case, rng: np.random.Generator) -> Case:
    """Return a case whose jobs are of some users, who take turns."""
    line = rng.integers(0, rng.choice([2, 5, 40]), case.scenarios.gpus.shape).astype(np.int32)
    return case._replace(scenarios=case.scenarios._replace(line=line), rules=case.rules._replace(turns=True))


def wide_case(seed: int, order: str = "fifo", *, waiting: bool = False) -> Case:
    """Return 10 to 40 uneven nodes of several speeds and racks, lemons among them, and three jobs for each."""
    rng = np.random.default_rng(seed)
    nodes = int(rng.integers(10, 41))
    sizes, speed = rng.integers(1, 9, nodes), rng.choice(SPEEDS[: int(rng.integers(1, len(SPEEDS) + 1))], nodes)
    cluster = grid_cluster(nodes, 1, speed=speed, nodes_per_rack=int(rng.integers(4, nodes + 1)))
    gpus = int(sizes.sum())
    cluster = cluster._replace(
        gpu_node=np.repeat(np.arange(nodes), sizes).astype(np.int32),
        first_gpu=np.cumsum([0, *sizes]).astype(np.int32),
        nic_bytes_per_s=rng.choice([3.125e9, 12.5e9], nodes),
        intra_bytes_per_s=rng.choice([2e9, 150e9], nodes),
    )
    jobs = 3 * nodes
    work_s: NDArray[np.float64] = np.exp(rng.normal(4.0, 1.5, jobs))
    workload = Workload(
        ids=tuple(map(str, range(jobs))),
        gpus=np.minimum(rng.choice([1, 2, 3, 4, 8, 13, 30], jobs), gpus // 2 + 1).astype(np.int32),
        work_s=work_s,
        submit_s=np.zeros(jobs),
        estimate_s=work_s * (rng.choice([0.25, 1.0, 4.0], jobs) if rng.random() < 0.5 else 1.0),
        compute_s=rng.choice([0.25, 0.5, 1.0], jobs),
        parameter_bytes=rng.choice([0.5e9, 4e9], jobs),
    )
    hazard_per_s = np.repeat(rng.choice([0.0, 1.0, 1.0, 1.0, 20.0], nodes), sizes) * 2.0**-14
    scenarios = stack(
        cluster, [workload], fault_seed=np.array([seed]), source_rate_per_s=np.zeros(fault_sources(cluster)),
        hazard_per_s=hazard_per_s,
    )  # fmt: skip
    process = FaultProcess(1.0, 30.0, 0.0, 0.25)
    rules = deep_rules(rng, order)._replace(waiting=waiting, ageing_s=math.inf)
    return Case(cluster, scenarios, 0, process, rules)


def deep_rules(rng: np.random.Generator, order: str) -> Rules:
    return Rules(
        ring=bool(rng.random() < 0.4),
        node_penalty=float(rng.choice([0.0, 0.125])),
        reference_gpus=4,
        reference_intra_bytes_per_s=150e9,
        reference_nic_bytes_per_s=12.5e9,
        checkpoint_s=float(rng.choice([8.0, math.inf])),
        restart_s=float(rng.choice([0.0, 16.0])),
        order=ORDERS[order],
        ageing_s=float(rng.choice([math.inf, 40.0, 400.0, 4000.0])),
        waiting=bool(rng.random() < 0.6),
        limit_s=1e6,
        backfill_depth=int(rng.choice([EVERY_JOB, EVERY_JOB, 30])),
    )
