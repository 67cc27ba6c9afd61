"""Random small clusters, workloads, faults and rules for hypothesis.

Arrays are drawn as one text of bytes, and what is drawn from is made once: else drawing takes longer than the tests.

Numbers are dyadic wherever they are summed (rates, penalties, most times), so that sums are exact in any order: then
ties are true ties, and two simulators that add in different orders must still agree.
"""

import math
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from longshore.cluster.model.problem import EVERY_JOB, ORDERS, FaultProcess, Rules, Scenarios, fault_sources, stack
from longshore.cluster.model.topology import Cluster
from longshore.cluster.model.workload import Workload
from longshore.cluster.state.holding import startable_gpus

SPEEDS = (0.5, 0.75, 1.0, 1.5, 2.0)
FAULTS_IN_LONGEST_RUN = 2.0  # expected in the cluster: few enough that every job ends
OUTAGES = (0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 2.0, 3.0)  # replayed of a source
SEEDS = st.integers(0, 2**32 - 1)
YES = st.booleans()
# Of two sizes only: where hypothesis varies a size, a text that would have another one becomes all zeros.
FEW, MANY = (st.binary(min_size=size, max_size=size) for size in (16, 128))
ANY_FAULTS = st.sampled_from((0.0, 1.0, 1.0, 1.0, 1.0))
UP_TO_3, UP_TO_2, JOBS = st.integers(1, 3), st.integers(1, 2), st.integers(1, 12)
WRONG_BY = st.sampled_from(((1.0,), (0.25, 0.5, 1.0, 2.0, 4.0)))


class Case(NamedTuple):
    """All that a simulation needs but the policy."""

    cluster: Cluster
    scenarios: Scenarios
    row: int
    process: FaultProcess
    rules: Rules


@cache
def up_to(most: int, least: int = 0) -> st.SearchStrategy[int]:
    return st.integers(least, most)


def below(draw: st.DrawFn, count: int, ends: int | NDArray[np.int64]) -> NDArray[np.int64]:
    """Draw so many numbers from 0 up to what is below an end of at most 256, or each below its own."""
    drawn = np.frombuffer(draw(FEW if count <= 16 else MANY), dtype=np.uint8)
    return np.resize(drawn, count).astype(np.int64) % ends


def numbers(draw: st.DrawFn, count: int, values: tuple[float, ...]) -> NDArray[np.float64]:
    return np.array(values, dtype=np.float64)[below(draw, count, len(values))]


def draw_cluster(draw: st.DrawFn, least: int, most: int) -> Cluster:
    """So many nodes of one to eight GPUs in one to three racks."""
    nodes = draw(up_to(most, least))
    sizes, racks = 1 + below(draw, nodes, 8), min(draw(UP_TO_3), nodes)
    cuts = np.sort(1 + below(draw, nodes - 1, 256).argsort(kind="stable")[: racks - 1])
    speed = numbers(draw, nodes, SPEEDS)
    return Cluster(
        gpu_node=np.repeat(np.arange(nodes), sizes).astype(np.int32),
        first_gpu=np.cumsum([0, *sizes]).astype(np.int32),
        node_rack=np.searchsorted(cuts, np.arange(nodes), side="right").astype(np.int32),
        first_node=np.array([0, *cuts, nodes], dtype=np.int32),
        node_type=np.unique(speed, return_inverse=True)[1].astype(np.int32),
        speed=speed,
        peak_flops=speed * 125e12,
        memory_bytes=np.full(nodes, 32e9),
        intra_bytes_per_s=numbers(draw, nodes, (2e9, 150e9, 300e9)),
        nic_bytes_per_s=numbers(draw, nodes, (3.125e9, 12.5e9, 25e9)),
        uplink_bytes_per_s=numbers(draw, racks, (2e9, 6.25e9, 50e9)),
        suits=np.ones((1, nodes), dtype=np.int32),
    )


def draw_workload(draw: st.DrawFn, gpus: int) -> Workload:
    """One to twelve jobs that fit on as many GPUs, in a batch or arriving, with exact or wrong estimates."""
    jobs = draw(JOBS)
    most = np.array((min(gpus, 4), gpus))[below(draw, jobs, 2)]
    work_s = (1 + below(draw, jobs, 200)).astype(np.float64)
    gaps = numbers(draw, jobs, (0, 0, 1, 20, 50)) if draw(YES) else np.zeros(jobs)
    return Workload(
        ids=tuple(str(job) for job in range(jobs)),
        gpus=(1 + below(draw, jobs, most)).astype(np.int32),
        work_s=work_s,
        submit_s=np.cumsum([0, *gaps[1:]]).astype(np.float64),
        estimate_s=work_s * numbers(draw, jobs, draw(WRONG_BY)),
        compute_s=numbers(draw, jobs, (0.25, 0.5, 1.0)),
        parameter_bytes=numbers(draw, jobs, (0.5e9, 2e9, 4e9)),
    )


# All order regimes, both models of run time, with and without ageing, waiting and checkpoints.
RULES: dict[str, st.SearchStrategy[Any]] = {
    "ring": YES,
    "node_penalty": st.sampled_from((0.0, 0.125, 0.25)),
    "reference_gpus": st.sampled_from((1, 4, 8)),
    "reference_intra_bytes_per_s": st.just(150e9),
    "reference_nic_bytes_per_s": st.just(12.5e9),
    "checkpoint_s": st.sampled_from((8.0, 32.0, 60.0, math.inf)),
    "restart_s": st.sampled_from((0.0, 5.0, 16.0)),
    "order": st.sampled_from(sorted(ORDERS.values())),
    "ageing_s": st.sampled_from((math.inf, math.inf, 0.0, 40.0, 200.0)),
    "waiting": YES,
    "backfill_depth": st.sampled_from((EVERY_JOB, EVERY_JOB, 0, 1, 3)),
    "turns": YES,
}
HANDLING: dict[str, st.SearchStrategy[Any]] = {
    "preflight_s": st.sampled_from((0.0, 2.0)),
    "detection_s": st.sampled_from((0.0, 0.0, 4.0, 16.0)),
    "switching": st.sampled_from((True, True, True, False)),
    "switch_s": st.sampled_from((0.0, 1.0, 8.0)),
    "spares": st.sampled_from((0.0, 0.125, 0.25)),
    "replacement": st.sampled_from((0, 1)),
}
SLOW_FACTORS = (1.5, 2.0, 4.0)
SLOW: dict[str, st.SearchStrategy[Any]] = {
    "slow_per_s": st.sampled_from((2.0**-5, 2.0**-7, 2.0**-9)),
    "slow_factor": st.sampled_from(SLOW_FACTORS),
    "slow_mean_s": st.sampled_from((4.0, 30.0, 120.0)),
    "backups": st.sampled_from((0, 1, 3, 8)),
}
PROCESS: dict[str, st.SearchStrategy[Any]] = {
    "shape": st.sampled_from((1.0, 0.75, 1.5)),
    "repair_mean_s": st.sampled_from((4.0, 30.0, 120.0)),
    "repair_sigma": st.sampled_from((0.0, 0.5, 1.0)),
    "transient_probability": st.sampled_from((0.0, 0.25, 1.0)),
}


def each(draw: st.DrawFn, strategies: dict[str, st.SearchStrategy[Any]]) -> dict[str, Any]:
    return {name: draw(strategy) for name, strategy in strategies.items()}


def draw_process(draw: st.DrawFn, sources: int) -> FaultProcess:
    """Every kind of fault process; some have replayed outages, also at equal times and end to end."""
    counts = numbers(draw, sources, OUTAGES).astype(np.int64) if draw(YES) else np.zeros(sources, dtype=np.int64)
    first = np.cumsum([0, *counts])
    lasts_s = 1.0 + below(draw, int(first[-1]), 40)
    after_s = np.cumsum([0.0, *(lasts_s + numbers(draw, lasts_s.size, (0.0, 10.0, 50.0)))])
    end_s = after_s[1:] - np.repeat(after_s[first[:-1]], counts)
    return FaultProcess(
        outage_first=first.astype(np.int32),
        outage_start_s=end_s - lasts_s,
        outage_end_s=end_s,
        **each(draw, PROCESS),
    )


@st.composite
def cases(draw: st.DrawFn, nodes: tuple[int, int] = (1, 6), *, ranked: bool = False) -> Case:
    """A cluster with one or two workloads, faults of which a few happen in a run, and rules; jobs of several ranks."""
    cluster, its_rules = draw_cluster(draw, *nodes), Rules(**each(draw, RULES))
    works = [draw_workload(draw, cluster.gpu_node.size) for _ in range(draw(UP_TO_2))]
    process = draw_process(draw, fault_sources(cluster))
    speed = np.array([numbers(draw, cluster.speed.size, SPEEDS) for _ in works])
    longest_s = max(longest_run_s(cluster, its_rules, work) for work in works)
    scenarios = stack(
        cluster,
        works,
        fault_seed=np.array([draw(SEEDS) for _ in works]),
        # Also few faults in a repair time: else a job of many GPUs hardly ever finds them all up.
        source_rate_per_s=rates(draw, process, max(longest_s, process.repair_mean_s)),
        speed=speed,
        hazard_per_s=hazards(draw, cluster.gpu_node.size) if draw(YES) else None,
    )
    if ranked:
        scenarios.rank[...] = np.reshape(below(draw, scenarios.rank.size, 3) - 1, scenarios.rank.shape)
    if its_rules.turns:
        users = np.reshape(below(draw, scenarios.rank.size, 3), scenarios.rank.shape)
        scenarios = scenarios._replace(line=lines_of(users, scenarios.rank))
    return Case(cluster, scenarios, draw(up_to(len(works) - 1)), process, its_rules)


def lines_of(users: NDArray[np.int64], rank: NDArray[np.int64]) -> NDArray[np.int32]:
    """Return the line of each job, shape (scenarios, jobs), by its user and its rank."""
    lines = np.zeros(users.shape, dtype=np.int32)
    for row, pairs in enumerate(zip(users.tolist(), rank.tolist(), strict=True)):
        numbers: dict[tuple[int, int], int] = {}
        for job, pair in enumerate(zip(*pairs, strict=True)):
            lines[row, job] = numbers.setdefault(pair, len(numbers))
    return lines


@st.composite
def planned_cases(draw: st.DrawFn, nodes: tuple[int, int] = (1, 6), *, ranked: bool = True) -> Case:
    """Cases in the ring model in which most jobs have plans, of any degrees that their GPUs have room for."""
    case = draw(cases(nodes) | needy_cases(nodes, ranked=ranked))
    shape, gpus = case.scenarios.gpus.shape, case.scenarios.gpus.ravel()
    count = gpus.size
    pipeline = a_divisor(gpus, below(draw, count, 256))
    tensor = a_divisor(gpus // np.maximum(pipeline, 1), below(draw, count, 256))
    planned = (below(draw, count, 4) > 0) & (gpus > 0)
    figures: dict[str, NDArray[Any]] = {
        "pipeline": np.where(planned, pipeline, 0).astype(np.int32),
        "tensor": np.where(planned, tensor, 0).astype(np.int32),
        "fixed_s": numbers(draw, count, (0.0, 0.125, 0.5)),
        "edge_bytes": numbers(draw, count, (0.0, 0.25e9, 1e9)),
        "tensor_bytes": numbers(draw, count, (0.0, 1e9, 8e9)),
    }
    scenarios = case.scenarios._replace(**{name: values.reshape(shape) for name, values in figures.items()})
    return case._replace(scenarios=scenarios, rules=case.rules._replace(ring=True))


def a_divisor(numbers_: NDArray[np.int32], drawn: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return a divisor of each number, 1 of 0."""
    found = [[it for it in range(1, int(number) + 1) if number % it == 0] or [1] for number in numbers_]
    return np.array([them[int(at) % len(them)] for them, at in zip(found, drawn, strict=True)], dtype=np.int64)


@st.composite
def needy_cases(draw: st.DrawFn, nodes: tuple[int, int] = (1, 6), *, ranked: bool = True) -> Case:
    """Cases in which some jobs accept some nodes only, of up to three kinds of needs that may overlap."""
    case = draw(cases(nodes, ranked=ranked))
    size, shape, classes = case.cluster.speed.size, case.scenarios.needs.shape, draw(UP_TO_3)
    types = np.arange(size, dtype=np.int32)  # the needs of live jobs are types of nodes
    case = case._replace(cluster=case.cluster._replace(node_type=types))
    needs = below(draw, classes * size, 2).reshape(classes, size)
    return with_needs(case, needs, below(draw, math.prod(shape), classes + 1).reshape(shape))


@st.composite
def switching_cases(draw: st.DrawFn) -> Case:
    """Cases in which faults are detected late, or jobs switch, or both; and some in which starts are checked."""
    case = draw(cases() | needy_cases() | planned_cases())
    rules = case.rules._replace(**each(draw, HANDLING))
    asked = np.where(np.arange(case.scenarios.gpus.shape[1]) < case.scenarios.jobs[:, None], case.scenarios.gpus, 0)
    room = case.cluster.suits @ startable_gpus(case.cluster, rules.spares)
    if (asked > room[case.scenarios.needs]).any():
        rules = rules._replace(spares=0.0)
    return case._replace(rules=rules)


@st.composite
def slow_cases(draw: st.DrawFn) -> Case:
    """Cases in which nodes are slow for a while, some with backups, of all jobs and with all handlings of faults."""
    case = draw(cases() | switching_cases() | switching_cases())
    # A slow run meets more faults: still few enough that every job ends.
    rates_per_s = case.scenarios.source_rate_per_s / max(SLOW_FACTORS)
    slow = each(draw, SLOW)
    return case._replace(
        scenarios=case.scenarios._replace(source_rate_per_s=rates_per_s), rules=case.rules._replace(**slow)
    )


@st.composite
def backed_cases(draw: st.DrawFn) -> Case:
    """Cases of jobs that switch, on nodes that are often slow, with backups and with faults as frequent as ever."""
    case = draw(switching_cases())
    slow = each(draw, SLOW | {"backups": st.sampled_from((1, 3, 8, 8))})
    return case._replace(rules=case.rules._replace(**slow | {"switching": True}))


def with_needs(case: Case, needs: NDArray[np.int64], kinds: NDArray[np.int64]) -> Case:
    """Return a case whose jobs are of classes of needs, but for those that find no room then.

    Args:
        case: The case.
        needs: Which nodes suit each class from 1 on, shape (classes - 1, nodes).
        kinds: Class of each job, shape (scenarios, jobs).
    """
    suits = np.vstack([case.cluster.suits, needs]).astype(np.int32)
    room = suits @ np.diff(case.cluster.first_gpu)
    fitting = np.where(case.scenarios.gpus <= room[kinds], kinds, 0).astype(np.int32)
    return case._replace(cluster=case.cluster._replace(suits=suits), scenarios=case.scenarios._replace(needs=fitting))


def hazards(draw: st.DrawFn, gpus: int) -> NDArray[np.float64]:
    """Draw what policies believe of each GPU, true or not: multiples of 2 ** -14 per second."""
    return numbers(draw, gpus, (0.0, 1.0, 1.0, 3.0, 20.0)) * 2.0**-14


def rates(draw: st.DrawFn, process: FaultProcess, longest_s: float) -> NDArray[np.float64]:
    """Draw the rate of each source that has no replayed outages: a small number times a power of two."""
    replayed = np.diff(process.outage_first) > 0
    weights = np.where(replayed, 0.0, numbers(draw, replayed.size, (0.0, 1.0, 1.0, 2.0, 8.0)))
    weights = weights * draw(ANY_FAULTS)
    total = max(float(weights.sum()), 1.0)
    return weights * 2.0 ** math.floor(math.log2(FAULTS_IN_LONGEST_RUN / (total * longest_s)))


def longest_run_s(cluster: Cluster, its_rules: Rules, work: Workload) -> float:
    """Return a time that no run of the workload's jobs exceeds on any placement."""
    nodes = cluster.speed.size
    simple = (1 + its_rules.node_penalty * (nodes - 1)) / min(SPEEDS)
    links = (cluster.intra_bytes_per_s, cluster.nic_bytes_per_s, cluster.uplink_bytes_per_s)
    slowest_link = min(float(link.min()) for link in links)
    ring = (work.compute_s / min(SPEEDS) + 2 * work.parameter_bytes / slowest_link) / work.compute_s
    factor = ring if its_rules.ring else np.full(work.jobs, simple)
    return float((work.work_s * factor).max()) + its_rules.restart_s
