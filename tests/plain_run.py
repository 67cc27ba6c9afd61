"""One busy case run by every heuristic, as JSON: `NUMBA_DISABLE_JIT=1 python -m tests.plain_run` in plain Python."""

import json
import math

import numpy as np

from longshore.agents.heuristics import HEURISTICS
from longshore.cluster.model.problem import ORDERS, FaultProcess, Rules, stack
from longshore.cluster.model.topology import grid_cluster
from longshore.cluster.model.workload import workload_of
from longshore.cluster.state.state import INDEX_FROM
from tests.compiled_runs import run_heuristic
from tests.strategies import Case

Runs = dict[str, list[list[object]]]  # policy -> events: time, kind, job, GPUs


def busy_case(*, ring: bool) -> Case:
    """Return ten jobs on five nodes of two racks with faults of every reach, and rules under which all code is met."""
    cluster = grid_cluster(5, 2, speed=np.array([1.0, 2.0, 0.5, 1.0, 2.0]), nodes_per_rack=3)
    gpus = np.array([1, 2, 4, 3, 1, 6, 2, 1, 5, 2])
    work_s = np.array([90.0, 60.0, 80.0, 40.0, 30.0, 70.0, 20.0, 50.0, 60.0, 10.0])
    workload = workload_of(tuple("abcdefghij"), gpus, work_s, np.array([0.0, 0, 0, 0, 5, 5, 10, 40, 50, 60]))
    rates = np.array([2e-4] * 10 + [1e-3] * 5 + [1e-3] * 2)
    scenarios = stack(cluster, [workload], fault_seed=np.array([5]), source_rate_per_s=rates)
    scenarios = scenarios._replace(estimate_s=scenarios.work_s * np.resize([0.5, 1.0, 2.0], 10))
    process = FaultProcess(0.75, 20.0, 0.5, 0.25)
    return Case(cluster, scenarios, 0, process, rules_of(ring=ring))


def rules_of(*, ring: bool) -> Rules:
    return Rules(
        ring=ring,
        node_penalty=0.25,
        reference_gpus=2,
        reference_intra_bytes_per_s=150e9,
        reference_nic_bytes_per_s=12.5e9,
        checkpoint_s=15.0,
        restart_s=3.0,
        order=ORDERS["easy-shortest" if ring else "easy"],
        ageing_s=120.0 if ring else math.inf,
        waiting=True,
    )


def all_runs() -> Runs:
    runs = {}
    for name in HEURISTICS:
        for ring in (True, False):
            runs[f"{name} {ring}"] = run(name, ring=ring, index_from=INDEX_FROM)
    for ring in (True, False):
        runs[f"indexed {ring}"] = run("pack", ring=ring, index_from=2)
    return runs


def run(name: str, *, ring: bool, index_from: int) -> list[list[object]]:
    events, _ = run_heuristic(busy_case(ring=ring), name, index_from)
    return [[event.time_s, event.kind, event.job, list(event.gpus)] for event in events]


if __name__ == "__main__":
    print(json.dumps(all_runs()))  # noqa: T201
