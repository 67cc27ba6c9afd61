"""The exact optimal makespan and mean JCT of tiny workloads, by constraint programming.

Every schedule of every policy is feasible here, so none is better than the optimum.
"""

import math
from collections.abc import Sequence
from itertools import combinations, permutations, product
from typing import Any

import numpy as np

from longshore.cluster.model.problem import Rules, Scenarios
from longshore.cluster.model.topology import Cluster

Mode = tuple[int, tuple[int, ...]]  # ticks, GPUs of each node


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
    sizes = np.diff(cluster.first_gpu).tolist()
    return solve(sizes, _modes_of(cluster, scenarios, row, rules, ticks_per_s)) / ticks_per_s


def optimal_mean_jct_s(
    cluster: Cluster, scenarios: Scenarios, row: int, rules: Rules, ticks_per_s: int = 1000
) -> float:
    """Return the smallest mean JCT of jobs that arrive over time, without faults or preemption.

    Args and errors are those of `optimal_makespan_s`, but jobs may arrive later than 0, in whole ticks.
    """
    if rules.ring:
        raise ValueError("the optimum is for the simple model of run time")
    jobs = int(scenarios.jobs[row])
    release = [round(submit_s * ticks_per_s) for submit_s in scenarios.submit_s[row, :jobs].tolist()]
    sizes = np.diff(cluster.first_gpu).tolist()
    ends = solve(sizes, _modes_of(cluster, scenarios, row, rules, ticks_per_s), release)
    return float(ends - sum(release)) / ticks_per_s / jobs


def _modes_of(cluster: Cluster, scenarios: Scenarios, row: int, rules: Rules, ticks_per_s: int) -> list[list[Mode]]:
    jobs = int(scenarios.jobs[row])
    sizes, speed = np.diff(cluster.first_gpu).tolist(), scenarios.speed[row].tolist()
    return [
        modes(int(gpus), float(work_s), sizes, speed, rules.node_penalty, ticks_per_s)
        for gpus, work_s in zip(scenarios.gpus[row, :jobs], scenarios.work_s[row, :jobs], strict=True)
    ]


def modes(
    need: int, work_s: float, sizes: Sequence[int], speed: Sequence[float], node_penalty: float, ticks_per_s: int
) -> list[Mode]:
    """Return each way to run a job: its run time in ticks, and how many GPUs each node gives."""
    found = []
    for split in product(*(range(min(size, need) + 1) for size in sizes)):
        if sum(split) == need:
            taken = [speed[node] for node, gpus in enumerate(split) if gpus]
            ticks = work_s * (1 + node_penalty * (len(taken) - 1)) / min(taken) * ticks_per_s
            # 1e-9: a whole number of ticks that floating point made a little smaller stays whole.
            found.append((math.floor(ticks + 1e-9), split))
    return found


def solve(sizes: Sequence[int], jobs: Sequence[list[Mode]], release: Sequence[int] | None = None) -> int:
    """Return the optimal makespan in ticks; with releases the least sum of the jobs' ends.

    Jobs of which each two overlap in time all run at one moment (intervals on a line), so the capacity of a node is
    exactly that every such group fits on it. This proves optima in milliseconds, where cumulative constraints that
    reason over time may take minutes.

    Args:
        sizes: GPUs of each node.
        jobs: The modes of each job.
        release: Tick before which each job may not start.
    """
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    horizon = sum(max(ticks for ticks, _ in of_job) for of_job in jobs) + max(release or [0])
    makespan = model.new_int_var(0, horizon, "makespan")
    starts = [model.new_int_var(first, horizon, "") for first in release or [0] * len(jobs)]
    chosen = [[model.new_bool_var("") for _ in of_job] for of_job in jobs]
    ends = []
    for start, literals, of_job in zip(starts, chosen, jobs, strict=True):
        model.add_exactly_one(literals)
        ends.append(start + sum(ticks * literal for (ticks, _), literal in zip(of_job, literals, strict=True)))
        model.add(ends[-1] <= makespan)
    shares = [
        [sum(split[node] * it for (_, split), it in zip(of_job, literals, strict=True)) for node in range(len(sizes))]
        for of_job, literals in zip(jobs, chosen, strict=True)
    ]
    limit_overlaps(model, sizes, starts, ends, shares)
    model.minimize(makespan if release is None else sum(ends))
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.max_time_in_seconds = 10
    solver.parameters.catch_sigint_signal = False  # it would leave Ctrl-C to the system, and that kills a process
    if solver.solve(model) != cp_model.OPTIMAL:
        raise RuntimeError(f"no optimum proved within 10 s for {len(jobs)} jobs on nodes of {list(sizes)} GPUs")
    return round(solver.objective_value)


def limit_overlaps(model: Any, sizes: Sequence[int], starts: list[Any], ends: list[Any], shares: list[Any]) -> None:
    """Demand of each group of jobs that one ends before another starts, or that all fit on every node together."""
    ordered = {}
    for one, other in permutations(range(len(starts)), 2):
        ordered[one, other] = model.new_bool_var("")
        model.add(ends[one] <= starts[other]).only_enforce_if(ordered[one, other])
    for count in range(2, len(starts) + 1):
        for group in combinations(range(len(starts)), count):
            overlap = [~ordered[pair] for pair in permutations(group, 2)]
            for node, size in enumerate(sizes):
                model.add(sum(shares[job][node] for job in group) <= size).only_enforce_if(overlap)
