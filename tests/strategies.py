"""Random small clusters, workloads, faults and rules for hypothesis.

Numbers are dyadic wherever they are summed (rates, penalties, most times), so that sums are exact in any order: then
ties are true ties, and two simulators that add in different orders must still agree.
"""

import math
from typing import NamedTuple

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from longshore.cluster.model.scenarios import EVERY_JOB, ORDERS, FaultProcess, Rules, Scenarios, fault_sources, stack
from longshore.cluster.model.topology import Cluster
from longshore.cluster.model.workload import Workload

SPEEDS = (0.5, 0.75, 1.0, 1.5, 2.0)
FAULTS_IN_LONGEST_RUN = 2.0  # expected in the cluster: few enough that every job ends


class Case(NamedTuple):
    """All that a simulation needs but the policy."""

    cluster: Cluster
    scenarios: Scenarios
    row: int
    process: FaultProcess
    rules: Rules


def numbers(draw: st.DrawFn, count: int, values: tuple[float, ...]) -> NDArray[np.float64]:
    return np.array(draw(st.lists(st.sampled_from(values), min_size=count, max_size=count)), dtype=np.float64)


@st.composite
def clusters(draw: st.DrawFn, least: int, most: int) -> Cluster:
    """So many nodes of one to eight GPUs in one to three racks."""
    sizes = draw(st.lists(st.integers(1, 8), min_size=least, max_size=most))
    nodes = len(sizes)
    racks = draw(st.integers(1, min(3, nodes)))
    cuts = sorted(draw(st.permutations(range(1, nodes)))[: racks - 1])
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


@st.composite
def workloads(draw: st.DrawFn, gpus: int) -> Workload:
    """One to twelve jobs that fit on as many GPUs, in a batch or arriving, with exact or wrong estimates."""
    jobs = draw(st.integers(1, 12))
    needs = draw(st.lists(st.integers(1, gpus) | st.integers(1, min(gpus, 4)), min_size=jobs, max_size=jobs))
    work_s = np.array(draw(st.lists(st.integers(1, 200), min_size=jobs, max_size=jobs)), dtype=np.float64)
    gaps = draw(st.just([0] * jobs) | st.lists(st.sampled_from((0, 0, 1, 20, 50)), min_size=jobs, max_size=jobs))
    wrong = draw(st.sampled_from(((1.0,), (0.25, 0.5, 1.0, 2.0, 4.0))))
    return Workload(
        ids=tuple(str(job) for job in range(jobs)),
        gpus=np.array(needs, dtype=np.int32),
        work_s=work_s,
        submit_s=np.cumsum([0, *gaps[1:]]).astype(np.float64),
        estimate_s=work_s * numbers(draw, jobs, wrong),
        compute_s=numbers(draw, jobs, (0.25, 0.5, 1.0)),
        parameter_bytes=numbers(draw, jobs, (0.5e9, 2e9, 4e9)),
    )


@st.composite
def rules(draw: st.DrawFn) -> Rules:
    """All order regimes, both models of run time, with and without ageing, waiting and checkpoints."""
    return Rules(
        ring=draw(st.booleans()),
        node_penalty=draw(st.sampled_from((0.0, 0.125, 0.25))),
        reference_gpus=draw(st.sampled_from((1, 4, 8))),
        reference_intra_bytes_per_s=150e9,
        reference_nic_bytes_per_s=12.5e9,
        checkpoint_s=draw(st.sampled_from((8.0, 32.0, 60.0, math.inf))),
        restart_s=draw(st.sampled_from((0.0, 5.0, 16.0))),
        order=draw(st.sampled_from(sorted(ORDERS.values()))),
        ageing_s=draw(st.sampled_from((math.inf, math.inf, 0.0, 40.0, 200.0))),
        waiting=draw(st.booleans()),
        backfill_depth=draw(st.sampled_from((EVERY_JOB, EVERY_JOB, 0, 1, 3))),
    )


@st.composite
def fault_processes(draw: st.DrawFn, sources: int) -> FaultProcess:
    """Every kind of fault process; some have replayed outages, also at equal times and end to end."""
    lists = [draw(outages()) for _ in range(sources)] if draw(st.booleans()) else [[] for _ in range(sources)]
    flat = [outage for listed in lists for outage in listed]
    return FaultProcess(
        shape=draw(st.sampled_from((1.0, 0.75, 1.5))),
        repair_mean_s=draw(st.sampled_from((4.0, 30.0, 120.0))),
        repair_sigma=draw(st.sampled_from((0.0, 0.5, 1.0))),
        transient_probability=draw(st.sampled_from((0.0, 0.25, 1.0))),
        outage_first=np.cumsum([0, *(len(listed) for listed in lists)]).astype(np.int32),
        outage_start_s=np.array([start_s for start_s, _ in flat], dtype=np.float64),
        outage_end_s=np.array([end_s for _, end_s in flat], dtype=np.float64),
    )


@st.composite
def outages(draw: st.DrawFn) -> list[tuple[float, float]]:
    """At most three outages (start, end) in order."""
    lengths = draw(st.just([]) | st.lists(st.tuples(st.sampled_from((0, 10, 50)), st.integers(1, 40)), max_size=3))
    ends = np.cumsum(lengths).tolist() if lengths else []
    return [(float(start_s), float(end_s)) for start_s, end_s in zip(ends[::2], ends[1::2], strict=True)]


@st.composite
def cases(draw: st.DrawFn, nodes: tuple[int, int] = (1, 6), *, ranked: bool = False) -> Case:
    """A cluster with one or two workloads, faults of which a few happen in a run, and rules; jobs of several ranks."""
    cluster, its_rules = draw(clusters(*nodes)), draw(rules())
    works = draw(st.lists(workloads(cluster.gpu_node.size), min_size=1, max_size=2))
    process = draw(fault_processes(fault_sources(cluster)))
    speed = np.array([numbers(draw, cluster.speed.size, SPEEDS) for _ in works])
    longest_s = max(longest_run_s(cluster, its_rules, work) for work in works)
    scenarios = stack(
        cluster,
        works,
        fault_seed=np.array(draw(st.lists(st.integers(0, 2**32 - 1), min_size=len(works), max_size=len(works)))),
        # Also few faults in a repair time: else a job of many GPUs hardly ever finds them all up.
        source_rate_per_s=rates(draw, process, max(longest_s, process.repair_mean_s)),
        speed=speed,
        hazard_per_s=draw(st.none() | hazards(cluster.gpu_node.size)),
    )
    if ranked:
        ranks = st.lists(st.integers(-1, 1), min_size=scenarios.rank.size, max_size=scenarios.rank.size)
        scenarios.rank[...] = np.reshape(draw(ranks), scenarios.rank.shape)
    return Case(cluster, scenarios, draw(st.integers(0, len(works) - 1)), process, its_rules)


@st.composite
def needy_cases(draw: st.DrawFn, nodes: tuple[int, int] = (1, 6), *, ranked: bool = True) -> Case:
    """Cases in which some jobs accept some nodes only, of up to three kinds of needs that may overlap."""
    case = draw(cases(nodes, ranked=ranked))
    takes = st.lists(st.integers(0, 1), min_size=case.cluster.speed.size, max_size=case.cluster.speed.size)
    needs, shape = draw(st.lists(takes, min_size=1, max_size=3)), case.scenarios.needs.shape
    types = np.arange(case.cluster.speed.size, dtype=np.int32)  # the needs of live jobs are types of nodes
    case = case._replace(cluster=case.cluster._replace(node_type=types))
    kinds = draw(st.lists(st.integers(0, len(needs)), min_size=math.prod(shape), max_size=math.prod(shape)))
    return with_needs(case, np.array(needs), np.reshape(kinds, shape))


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


@st.composite
def hazards(draw: st.DrawFn, gpus: int) -> NDArray[np.float64]:
    """What policies believe of each GPU, true or not: multiples of 2 ** -14 per second."""
    return numbers(draw, gpus, (0.0, 1.0, 1.0, 3.0, 20.0)) * 2.0**-14


def rates(draw: st.DrawFn, process: FaultProcess, longest_s: float) -> NDArray[np.float64]:
    """Draw the rate of each source that has no replayed outages: a small number times a power of two."""
    replayed = np.diff(process.outage_first) > 0
    weights = np.where(replayed, 0.0, numbers(draw, replayed.size, (0.0, 1.0, 1.0, 2.0, 8.0)))
    weights = weights * draw(st.sampled_from((0.0, 1.0, 1.0, 1.0)))
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
