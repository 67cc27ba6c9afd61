"""What a policy is run on: scenarios of a cluster, with faults, rules, and the plan that each job runs by.

Source: SPEC P1.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..files.errors import InputError
from ..kernels.compiled import kernel
from .orders import ORDER_REGIMES
from .topology import Cluster
from .workload import Iteration, JobPlan, Workload, best_plan, reference_iteration_s

EVERY_JOB = 2**31 - 1
MOST_RESTART_S = 31_536_000.0  # a year
MOST_SLOW_FACTOR = 1000.0
# Of one GPU: 4.2 faults in 1,000 days of a node of 8, as in InfiniteHBD's trace (400 nodes, 348 days).
DEFAULT_HAZARD_PER_S = 4.2 / 1000 / 86400 / 8


NO_DEGREES, NO_FIGURES = np.zeros((0, 0), dtype=np.int32), np.zeros((0, 0))
NO_OUTAGES, NO_TIMES = np.zeros(1, dtype=np.int32), np.zeros(0)


class Scenarios(NamedTuple):
    """What differs between runs. First axis scenario; rows of shorter workloads are padded with zeros."""

    jobs: NDArray[np.int32]  # (scenarios,) jobs of each workload
    gpus: NDArray[np.int32]  # (scenarios, jobs) GPUs that the job needs
    work_s: NDArray[np.float64]  # (scenarios, jobs) work: fault-free run time on the reference placement
    estimate_s: NDArray[np.float64]  # (scenarios, jobs) what policies and order regimes know of the work
    submit_s: NDArray[np.float64]  # (scenarios, jobs) never decreasing
    compute_s: NDArray[np.float64]  # (scenarios, jobs) compute time of an iteration at speed 1
    parameter_bytes: NDArray[np.float64]  # (scenarios, jobs) volume of one all-reduce
    rank: NDArray[
        np.int64
    ]  # (scenarios, jobs) those of a lower rank go before all of a higher: priorities, turned round
    needs: NDArray[np.int32]  # (scenarios, jobs) class of what the job needs, a row of the cluster's `suits`
    speed: NDArray[np.float64]  # (scenarios, nodes) relative speed of the node's GPUs
    hazard_per_s: NDArray[np.float64]  # (scenarios, gpus) fault rate of each GPU as policies know it at the start
    source_rate_per_s: NDArray[np.float64]  # (scenarios, sources) true rate of each fault source, 0 for none
    fault_seed: NDArray[np.int64]  # (scenarios,) key of the scenario's random numbers, of which 32 bits count
    # Plans of jobs, beside what stands above; arrays of no job where none has a plan
    pipeline: NDArray[np.int32] = NO_DEGREES  # (scenarios, jobs) stages, 0 for a job without a plan
    tensor: NDArray[np.int32] = NO_DEGREES  # (scenarios, jobs) members of a tensor-parallel group
    fixed_s: NDArray[np.float64] = NO_FIGURES  # (scenarios, jobs) of an iteration, whatever GPUs and links
    edge_bytes: NDArray[np.float64] = NO_FIGURES  # (scenarios, jobs) between stages
    tensor_bytes: NDArray[np.float64] = NO_FIGURES  # (scenarios, jobs) inside a tensor-parallel group
    # Jobs of one user and one rank form a line; lines take turns (queue/turns.py). No job where no user is known
    line: NDArray[np.int32] = NO_DEGREES  # (scenarios, jobs) number of the line, below the number of jobs


class FaultProcess(NamedTuple):
    """How fault sources fail and recover; their rates stand in the scenarios. See docs/simulator.md."""

    shape: float  # Weibull shape of up times, 1 is the exponential
    repair_mean_s: float
    repair_sigma: float  # 0: exponential repair times; else log-normal with this sigma
    transient_probability: float  # share of faults after which a restart is enough
    outage_first: NDArray[np.int32] = NO_OUTAGES  # (sources + 1,) outages of source s: outage_first[s] to [s + 1] - 1
    outage_start_s: NDArray[np.float64] = NO_TIMES  # (outages,) that are replayed
    outage_end_s: NDArray[np.float64] = NO_TIMES  # (outages,)


class Rules(NamedTuple):
    """Constants of a simulation."""

    ring: bool  # the ring model of run time; else the simple one
    node_penalty: float  # simple model: run time grows by this for each node beyond the first
    reference_gpus: int  # ring model: GPUs of a reference node
    reference_intra_bytes_per_s: float
    reference_nic_bytes_per_s: float
    checkpoint_s: float  # running, the restart excluded, between two checkpoints
    restart_s: float  # overhead of each start after the first
    order: int  # order regime, an index of ORDERS
    ageing_s: float  # no job overtakes one that has been in the queue this long in all
    waiting: bool  # a policy may let the next event pass
    limit_s: float = math.inf  # the simulation is cut off here, for workloads that never end
    backfill_depth: int = EVERY_JOB  # jobs of the queue behind the holder of the reservation that may pass it
    estimated_hazards: bool = False  # what policies know of fault rates changes with each fault that is observed
    preflight_s: float = 0.0  # overhead of every start: the check of its GPUs, which the job holds meanwhile
    detection_s: float = 0.0  # from a fault of a job's GPU until it is acted on; the job stands still meanwhile
    switching: bool = False  # a job outlives a fault that leaves it a GPU; else every fault stops it
    switch_s: float = 30.0  # how long a job stands still when its ring is formed anew
    spares: float = 0.0  # share of the GPUs of each node type on which no job starts, if `switching`
    replacement: int = 1  # formula of a candidate's iteration time, of FORMULAS (cluster/switching.py)
    slow_per_s: float = 0.0  # how often a node that is well becomes slow, 0 for never
    slow_factor: float = 1.0  # by which the compute time of its GPUs grows meanwhile
    slow_mean_s: float = 0.0  # how long that lasts
    backups: int = 0  # GPUs of a job that may have a backup at a time, if `switching`
    turns: bool = False  # users take turns in the queue, where the scenarios have the users of jobs


def rules_stopping_at_faults(rules: Rules) -> Rules:
    """Return rules by which every fault stops a job at once, no start is checked, and no node is slow for a while.

    Where a real cluster decides when jobs stop and continue, no rule may.
    """
    return rules._replace(switching=False, detection_s=0.0, preflight_s=0.0, slow_per_s=0.0)


PER_JOB = (  # fields of Scenarios
    "gpus", "work_s", "estimate_s", "submit_s", "compute_s", "parameter_bytes", "rank", "needs",
)  # fmt: skip
FIGURES = ("work_s", "estimate_s", "submit_s", "compute_s", "parameter_bytes")  # of these, those in float64
PLANNED: dict[str, type[np.generic]] = {  # the same of their plans, by the type of their elements
    "pipeline": np.int32, "tensor": np.int32, "fixed_s": np.float64, "edge_bytes": np.float64,
    "tensor_bytes": np.float64,
}  # fmt: skip
LINED: dict[str, type[np.generic]] = {"line": np.int32}  # the same of whose they are
OPTIONAL_PER_JOB = PLANNED | LINED  # arrays of no job where no job has any
ORDERS = {name: number for number, name in enumerate(ORDER_REGIMES)}  # number of each order regime
# Bit n is that of order regime n: a tuple is slow to index in a kernel.
_PASSES = sum(regime.passes << ORDERS[name] for name, regime in ORDER_REGIMES.items())
_BY_WORK = sum(regime.by_work << ORDERS[name] for name, regime in ORDER_REGIMES.items())
_SHORTEST_LEADS = sum(regime.shortest_leads << ORDERS[name] for name, regime in ORDER_REGIMES.items())


@kernel
def lets_jobs_pass(order: int) -> bool:
    """Return whether jobs may start before the one that leads, under the order regime of a number."""
    return bool((_PASSES >> order) & 1)


@kernel
def orders_by_work(order: int) -> bool:
    """Return whether jobs that may pass go by expected work, and not in queue order."""
    return bool((_BY_WORK >> order) & 1)


@kernel
def shortest_job_leads(order: int) -> bool:
    """Return whether the job of least expected work leads, and not the head of the queue."""
    return bool((_SHORTEST_LEADS >> order) & 1)


def fault_sources(cluster: Cluster) -> int:
    """Return the number of fault sources: GPUs, then nodes, then racks."""
    return cluster.gpu_node.size + cluster.speed.size + cluster.uplink_bytes_per_s.size


def stack(
    cluster: Cluster,
    workloads: Sequence[Workload],
    *,
    fault_seed: NDArray[np.int64],
    source_rate_per_s: NDArray[np.float64],
    speed: NDArray[np.float64] | None = None,
    hazard_per_s: NDArray[np.float64] | None = None,
    needs: Sequence[NDArray[np.int32]] | None = None,
) -> Scenarios:
    """Return scenarios of the given workloads on a cluster.

    Args:
        cluster: Gives the speeds if `speed` is None.
        workloads: One for each scenario.
        fault_seed: Shape (scenarios,).
        source_rate_per_s: Shape (sources,) or (scenarios, sources).
        speed: Shape (scenarios, nodes), if it differs between scenarios.
        hazard_per_s: What policies know at the start, shape (gpus,) or (scenarios, gpus); the true rates if None,
            where a GPU bears the rate of its own source and those of its node and rack.
        needs: Class of what each job of each workload needs; all take any node if None.

    Raises:
        InputError: If the work or the estimate of a job is not finite or not above 0.
    """
    for workload in workloads:
        check_job_times(workload)
    scenarios, jobs = len(workloads), max(workload.jobs for workload in workloads)
    rates = np.broadcast_to(source_rate_per_s, (scenarios, fault_sources(cluster))).astype(np.float64)
    if hazard_per_s is None:
        gpus, nodes = cluster.gpu_node.size, cluster.speed.size
        rack = cluster.node_rack[cluster.gpu_node]
        hazard_per_s = rates[:, :gpus] + rates[:, gpus + cluster.gpu_node] + rates[:, gpus + nodes + rack]
    figures: dict[str, Any] = {
        name: _padded([getattr(workload, name) for workload in workloads], jobs, np.float64) for name in FIGURES
    }
    return Scenarios(
        jobs=np.array([workload.jobs for workload in workloads], dtype=np.int32),
        gpus=_padded([workload.gpus for workload in workloads], jobs, np.int32),
        **figures,
        rank=np.zeros((scenarios, jobs), dtype=np.int64),
        needs=_padded(needs or [np.zeros(0, np.int32)] * scenarios, jobs, np.int32),
        speed=np.broadcast_to(cluster.speed if speed is None else speed, (scenarios, cluster.speed.size)).copy(),
        hazard_per_s=np.broadcast_to(hazard_per_s, (scenarios, cluster.gpu_node.size)).astype(np.float64),
        source_rate_per_s=rates,
        fault_seed=np.asarray(fault_seed, dtype=np.int64),
        **_plan_columns(workloads, jobs),
        **_user_line_columns(workloads, jobs),
    )


def _plan_columns(workloads: Sequence[Workload], jobs: int) -> dict[str, NDArray[Any]]:
    """Return the figures of the plans that jobs run by, none if no job has a plan."""
    if all(not any(workload.plans or ()) for workload in workloads):
        return {}
    table = {name: np.zeros((len(workloads), jobs), dtype=dtype) for name, dtype in PLANNED.items()}
    for row, workload in enumerate(workloads):
        for job, plans in enumerate(workload.plans or ()):
            for name, column in table.items() if plans else ():
                column[row, job] = getattr(plans[0].iteration, name)
    return table


def _user_line_columns(workloads: Sequence[Workload], jobs: int) -> dict[str, NDArray[Any]]:
    """Return the line that each job is of, none if no workload is of several users."""
    if all(len(set(workload.users or ())) < 2 for workload in workloads):
        return {}
    table = np.zeros((len(workloads), jobs), dtype=LINED["line"])
    for row, workload in zip(table, workloads, strict=True):
        numbers = {user: number for number, user in enumerate(dict.fromkeys(workload.users or ()))}
        row[: len(workload.users or ())] = [numbers[user] for user in workload.users or ()]
    return {"line": table}


def joined(parts: Sequence[Scenarios]) -> Scenarios:
    """Return the scenarios of several parts as one, in their order; all are of one cluster."""
    jobs = max(part.gpus.shape[1] for part in parts)

    def field(name: str) -> Any:
        arrays = [getattr(array, name) for array in parts]
        if name in OPTIONAL_PER_JOB and any(array.size for array in arrays):
            arrays = [
                array if array.size else np.zeros(part.gpus.shape, array.dtype)
                for array, part in zip(arrays, parts, strict=True)
            ]
        if name in PER_JOB or (name in OPTIONAL_PER_JOB and arrays[0].size):
            arrays = [np.pad(array, ((0, 0), (0, jobs - array.shape[1]))) for array in arrays]
        return np.concatenate(arrays)

    return Scenarios(**{name: field(name) for name in Scenarios._fields})


def check_job_times(workload: Workload) -> None:
    """Refuse jobs that no simulation could end: an estimate of 0 that is outlived is 0 also when it is doubled.

    Raises:
        InputError: Naming the first such job.
    """
    for what, times_s in (("work", workload.work_s), ("an estimate", workload.estimate_s)):
        for job in np.flatnonzero(~((times_s > 0) & (times_s < np.inf)))[:1]:
            raise InputError(
                f"job {workload.ids[job]} has {what} of {times_s[job]:g} s",
                "times must be finite and more than 0; correct or drop the job",
            )


def same_jobs_labels(scenarios: Scenarios) -> NDArray[np.intp]:
    """Return a label of each scenario, shape (scenarios,), the same where the jobs are the same.

    Such scenarios are no independent evidence, however their faults differ.
    """
    jobs = np.hstack([scenarios.submit_s, scenarios.work_s, scenarios.gpus, scenarios.needs])
    labels: NDArray[np.intp] = np.unique(jobs, axis=0, return_inverse=True)[1]
    return labels


Number = TypeVar("Number", bound=np.generic)


def _padded(rows: Sequence[NDArray[Number]], length: int, dtype: type[Number]) -> NDArray[Number]:
    table = np.zeros((len(rows), length), dtype=dtype)
    for row, values in zip(table, rows, strict=True):
        row[: values.size] = values
    return table


class Problem(NamedTuple):
    """What environments run: scenarios of a cluster, with faults and rules. Waiting is part of the rules."""

    cluster: Cluster
    scenarios: Scenarios
    process: FaultProcess
    rules: Rules


PER_LAYOUT_JOB = ("gpus", "work_s", "estimate_s", "compute_s", "parameter_bytes")


def requested_plan(plans: Sequence[JobPlan]) -> JobPlan:
    """Return the plan that the trace asks for: one fixed layout for all jobs, if the trace is of ours."""
    return plans[0]


FIXED, BEST, OFFLOAD = "fixed", "best", "offload"
LAYOUTS: dict[str, Callable[[Sequence[JobPlan]], JobPlan]] = {
    FIXED: requested_plan,
    BEST: best_plan,
    OFFLOAD: partial(best_plan, offload=True),
}


def with_layout(workload: Workload, layout: str) -> Workload:
    """Return a workload whose jobs run by one of their plans, which then stands first; others stay as they are.

    Estimates keep their ratio to the work. What a job needs by itself stays; `Workload.node_needs` adds to that the
    memory of the plan that stands first.

    Args:
        workload: The jobs.
        layout: Which plan, one of LAYOUTS.
    """
    if workload.plans is None:
        return workload
    columns = {name: getattr(workload, name).copy() for name in PER_LAYOUT_JOB}
    ordered = list(workload.plans)
    for job, plans in enumerate(workload.plans):
        if not plans:
            continue
        chosen = LAYOUTS[layout](plans)
        if chosen.work_s != workload.work_s[job]:
            columns["estimate_s"][job] *= chosen.work_s / workload.work_s[job]
        did = chosen.iteration
        columns["gpus"][job], columns["work_s"][job] = chosen.gpus, chosen.work_s
        columns["compute_s"][job], columns["parameter_bytes"][job] = did.compute_s, did.gradient_bytes
        ordered[job] = (chosen, *(plan for plan in plans if plan is not chosen))
    return replace(workload, plans=tuple(ordered), **columns)


def reference_iteration_by_rules_s(iteration: Iteration, rules: Rules) -> float:
    """Return how long an iteration takes on GPUs of speed 1, on as few reference nodes as hold the job."""
    links = rules.reference_intra_bytes_per_s, rules.reference_nic_bytes_per_s
    return float(reference_iteration_s(iteration, rules.reference_gpus, *links))
