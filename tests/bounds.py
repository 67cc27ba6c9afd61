"""The exact optimal makespan of tiny workloads, by constraint programming.

Every schedule of every policy is feasible here, so none ends before the optimum.
"""

import math
from collections.abc import Sequence
from itertools import combinations
from typing import Any

from longshore.cluster.scenarios import Rules, Scenarios
from longshore.cluster.topology import Cluster

NodeSet = tuple[int, ...]


def optimal_makespan_s(
    cluster: Cluster, scenarios: Scenarios, row: int, rules: Rules, ticks_per_s: int = 1000
) -> float:
    """Return the smallest makespan of a workload that is submitted as one batch, without faults or preemption.

    Jobs take any set of nodes and any number of GPUs, at least one, of each node of the set. Run times are those of
    the simple model, rounded down to ticks: the result is the optimum if they are whole ticks, else at most a bound.

    Args:
        cluster: At most three nodes, so that sets are few.
        scenarios: Of which one row is solved, at most five jobs.
        row: Index of the scenario.
        rules: Gives the node penalty.
        ticks_per_s: Resolution of time.

    Raises:
        ValueError: If jobs arrive later than 0, or the run-time model is the ring.
        RuntimeError: If the solver does not prove an optimum within 10 s.

    Source: SPEC R5 (makespan), docs/simulator.md (simple model).
    """
    jobs = int(scenarios.jobs[row])
    if rules.ring or scenarios.submit_s[row, :jobs].any():
        raise ValueError("the bound is for a batch at 0 s under the simple model of run time")
    sizes = [last - first for first, last in zip(cluster.first_gpu[:-1], cluster.first_gpu[1:], strict=True)]
    needs = scenarios.gpus[row, :jobs].tolist()
    ticks = [
        run_ticks(float(work_s), scenarios.speed[row].tolist(), rules.node_penalty, ticks_per_s)
        for work_s in scenarios.work_s[row, :jobs]
    ]
    return solve([int(size) for size in sizes], needs, ticks) / ticks_per_s


def run_ticks(work_s: float, speed: list[float], node_penalty: float, ticks_per_s: int) -> dict[NodeSet, int]:
    """Return the run time in ticks on each set of nodes."""
    sets = [nodes for count in range(1, len(speed) + 1) for nodes in combinations(range(len(speed)), count)]
    # 1e-9 ticks: a whole number of ticks that floating point made a little smaller stays whole.
    return {
        nodes: math.floor(
            work_s * (1 + node_penalty * (len(nodes) - 1)) / min(speed[node] for node in nodes) * ticks_per_s + 1e-9
        )
        for nodes in sets
    }


def solve(sizes: Sequence[int], needs: Sequence[int], ticks: Sequence[dict[NodeSet, int]]) -> int:
    """Return the optimal makespan in ticks.

    Args:
        sizes: GPUs of each node.
        needs: GPUs of each job.
        ticks: Run time of each job on each set of nodes.
    """
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    horizon = sum(max(times.values()) for times in ticks)
    makespan = model.new_int_var(0, horizon, "makespan")
    runs, shares = [], []
    for need, times in zip(needs, ticks, strict=True):
        run, share = add_job(model, sizes, need, times, horizon)
        model.add(run.end_expr() <= makespan)
        runs.append(run)
        shares.append(share)
    for node, size in enumerate(sizes):
        model.add_cumulative(runs, [share[node] for share in shares], size)
    model.minimize(makespan)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.max_time_in_seconds = 10
    if solver.solve(model) != cp_model.OPTIMAL:
        raise RuntimeError(f"no optimum proved for jobs of {list(needs)} GPUs on nodes of {list(sizes)}")
    return int(solver.value(makespan))


def add_job(
    model: Any, sizes: Sequence[int], need: int, times: dict[NodeSet, int], horizon: int
) -> tuple[Any, list[Any]]:
    """Return the interval of a job and its GPUs of each node, as variables of the model."""
    share = [model.new_int_var(0, min(size, need), "") for size in sizes]
    model.add(sum(share) == need)
    duration = model.new_int_var(min(times.values()), max(times.values()), "")
    chosen = {nodes: model.new_bool_var("") for nodes in times}
    model.add_exactly_one(chosen.values())
    for nodes, literal in chosen.items():
        model.add(duration == times[nodes]).only_enforce_if(literal)
        for node in range(len(sizes)):
            model.add(share[node] >= 1 if node in nodes else share[node] == 0).only_enforce_if(literal)
    start = model.new_int_var(0, horizon, "")
    end = model.new_int_var(0, horizon, "")
    return model.new_interval_var(start, duration, end, ""), share
