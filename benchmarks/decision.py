"""How long one decision takes on clusters of any size, by checkpoints that ship, and whether rollouts keep their time.

A job is due under EASY and many more wait; 90 % of the GPUs are busy, and fault rates are estimated. Nodes of 8 GPUs
have three speeds. Each decision is on another cluster: other nodes have other GPUs free, and other jobs run.

A simulation keeps the running jobs in the order of their expected ends, while jobs start and end, and so does a
scheduler. So that order is there when a decision is timed. The first decision of a scheduler that has just begun has to
sort them; it is timed apart.
"""

import time
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from longshore.agents.learned.checkpoint import load_policy
from longshore.agents.protocol import Policy
from longshore.agents.rollouts import Rollout, Search, rollout_of
from longshore.cluster.model.problem import DEFAULT_HAZARD_PER_S, EVERY_JOB, ORDERS, Problem, stack
from longshore.cluster.model.topology import grid_cluster
from longshore.cluster.model.workload import workload_of
from longshore.cluster.presets.drawn import fault_process, rules
from longshore.cluster.queue.expected import sort_expected_ends
from longshore.cluster.simulator.engine import find_due_job, move_clock, reset, submit_next_job
from longshore.cluster.simulator.live import resume_run
from longshore.cluster.simulator.simulation import simulation_of
from longshore.cluster.state.beliefs import estimate_hazards
from longshore.cluster.state.state import Simulation
from longshore.scheduler.service.service import BACKFILL_DEPTH

from .harness import ROOT, Row, main, progress

CHECKPOINTS = ("hetero64-wait", "traces")
GPUS_PER_NODE, SPEEDS = 8, (1.0, 1.6, 2.5)
SMALL, LARGE = 128, 2048  # nodes
FEW, MANY = 300, 8000  # jobs that wait
BUSY = 0.9
DECISIONS, TRIALS, WIDE_DECISIONS = 300, 100, 100
WIDE = 512  # GPUs
NOW_S = 30 * 86400.0
BUDGET_MS, OVER_MS = 20.0, 25.0
MEDIAN_MS = {SMALL: 0.5, LARGE: None}
P99_MS = {SMALL: 1.5, LARGE: 10.0}
WIDE_MS = 50.0
SIZES = (1, 1, 1, 2, 2, 4, 8, 8, 16)  # GPUs of jobs


class Case(NamedTuple):
    """What a decision is about."""

    nodes: int
    queued: int
    gpus: int = GPUS_PER_NODE  # of the job that is due

    def __str__(self) -> str:
        job = "" if self.gpus == GPUS_PER_NODE else f"a job of {self.gpus} GPUs, "
        return f"{job}{self.nodes * GPUS_PER_NODE:,} GPUs, {self.queued:,} queued"


def simulation(case: Case) -> Simulation:
    """Return a cluster with room for the jobs that wait and for one on each GPU."""
    jobs = case.nodes * GPUS_PER_NODE + case.queued
    cluster = grid_cluster(case.nodes, GPUS_PER_NODE, speed=np.resize(SPEEDS, case.nodes))
    ones = np.ones(jobs)
    workload = workload_of(tuple(map(str, range(jobs))), ones.astype(np.int32), ones, 0.0 * ones)
    rates = np.zeros(case.nodes * (GPUS_PER_NODE + 1) + 1)
    rates[: case.nodes * GPUS_PER_NODE] = DEFAULT_HAZARD_PER_S
    scenarios = stack(cluster, [workload], fault_seed=np.zeros(1, np.int64), source_rate_per_s=rates)
    regime = rules()._replace(order=ORDERS["easy"], waiting=True, backfill_depth=BACKFILL_DEPTH, estimated_hazards=True)
    # No index of the queue, as in the live scheduler
    return simulation_of(Problem(cluster, scenarios, fault_process(), regime), index_from=EVERY_JOB)


def free_gpus(nodes: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return how many GPUs each node has free: a tenth of all, in many small parts and some whole nodes."""
    free = np.zeros(nodes, dtype=np.int64)
    left = round((1.0 - BUSY) * nodes * GPUS_PER_NODE)
    for node in rng.permutation(nodes):
        free[node] = min(left, int(rng.choice((1, 1, 2, 2, 3, 4, 5, 6, 7, 8))))
        left -= free[node]
    return free


def parts(busy: int, rng: np.random.Generator) -> Iterator[int]:
    """Yield the GPUs of jobs that take this number together."""
    while busy > 0:
        gpus = min(busy, int(rng.choice(SIZES)))
        yield gpus
        busy -= gpus


def placements(sim: Simulation, rng: np.random.Generator) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Return the GPUs that are not free, and where in them each job that runs begins: neighbours hold a job."""
    nodes = sim.cluster.speed.size
    place = np.arange(nodes * GPUS_PER_NODE).reshape(nodes, GPUS_PER_NODE)
    busy = place[np.arange(GPUS_PER_NODE) >= free_gpus(nodes, rng)[:, None]].astype(np.int32)
    return busy, np.cumsum([0, *parts(busy.size, rng)])[:-1]


def arrange(sim: Simulation, case: Case, rng: np.random.Generator) -> None:
    """Put row 0 at a decision: jobs run, faults were seen, others wait, and the first of these is due."""
    state, jobs = sim.state, sim.scenarios
    reset(sim, 0, 0)
    state.now_s[0] = NOW_S
    state.observed_faults[0] = rng.poisson(0.1, case.nodes)
    estimate_hazards(sim, 0)
    busy, first = placements(sim, rng)
    count = first.size + case.queued
    jobs.jobs[0] = count
    jobs.gpus[0, :count] = [*np.diff(first, append=busy.size), case.gpus, *rng.choice(SIZES, case.queued - 1)]
    jobs.estimate_s[0, :count] = jobs.work_s[0, :count] = rng.lognormal(9.0, 1.0, count)
    state.guess_s[0] = jobs.estimate_s[0]
    state.submitted[0] = state.estimated[0] = first.size
    state.estimates_s[0] = jobs.estimate_s[0, : first.size].sum()
    run(sim, busy, first, rng)
    for _ in range(case.queued):
        submit_next_job(sim, 0)
    move_clock(sim, 0, NOW_S)
    assert find_due_job(sim, 0)


def run(sim: Simulation, busy: NDArray[np.int32], first: NDArray[np.int64], rng: np.random.Generator) -> None:
    """Let jobs run on the GPUs of which theirs begin at these places, each for some part of its time."""
    state, speed, node = sim.state, sim.cluster.speed, sim.cluster.gpu_node[busy]
    others = np.diff(node, prepend=-1) > 0
    others[first] = False
    slowdown = 1.0 + sim.rules.node_penalty * np.add.reduceat(others, first, dtype=np.int64)
    slowdown /= np.minimum.reduceat(speed[node], first)
    whole_s, done = sim.scenarios.work_s[0, : first.size] * slowdown, rng.random(first.size)
    state.slowdown[0, : first.size], state.overhead_s[0, : first.size] = slowdown, 0.0
    state.start_s[0, : first.size] = state.first_start_s[0, : first.size] = NOW_S - done * whole_s
    state.end_s[0, : first.size] = NOW_S + (1.0 - done) * whole_s
    for job, gpus in enumerate(np.split(busy, first[1:])):
        resume_run(sim, 0, job, gpus)


def took_ms(
    case: Case, policies: dict[str, Policy], decisions: int, *, is_first: bool = False
) -> dict[str, NDArray[np.float64]]:
    """Return how long each policy takes for each decision, shape (decisions,), but for one before them.

    Args:
        case: What the decisions are about.
        policies: By name.
        decisions: How many are timed.
        is_first: Whether each is the first of its scheduler, which has to sort the expected ends.
    """
    progress(f"{case}: {decisions} decisions")
    sim = simulation(case)
    took: dict[str, list[float]] = {name: [] for name in policies}
    for decision in range(1 + decisions):
        for name, policy in policies.items():  # of the same cluster, arranged again for each
            arrange(sim, case, np.random.default_rng((case.nodes, case.queued, decision)))
            if not is_first:
                sort_expected_ends(sim, 0)
            began_s = time.perf_counter()
            policy.place(sim, 0)
            took[name].append(1e3 * (time.perf_counter() - began_s))
    return {name: np.array(values[1:]) for name, values in took.items()}


def one_pass(policies: dict[str, Policy]) -> Iterator[Row]:
    """Yield how long a decision takes in one pass."""
    for case in (Case(nodes, queued) for nodes in (SMALL, LARGE) for queued in (FEW, MANY)):
        for name, ms in took_ms(case, policies, DECISIONS).items():
            title = f"{name}: {case}"
            yield Row(title, float(np.median(ms)), "ms", most=MEDIAN_MS[case.nodes])
            yield Row(f"{title}, p99", float(np.percentile(ms, 99)), "ms", most=P99_MS[case.nodes])
    for nodes in (SMALL, LARGE):
        for name, ms in took_ms(Case(nodes, MANY), policies, TRIALS, is_first=True).items():
            yield Row(f"{name}: {Case(nodes, MANY)}, the first of a scheduler", float(np.median(ms)), "ms")
    wide = Case(LARGE, MANY, WIDE)
    for name, ms in took_ms(wide, policies, WIDE_DECISIONS).items():
        yield Row(f"{name}: {wide}, longest", float(ms.max()), "ms", most=WIDE_MS)


def with_rollouts(policies: dict[str, Policy]) -> Iterator[Row]:
    """Yield the longest decision of rollouts that have a time for it."""
    rollouts: dict[str, Policy] = {
        f"rollout:{name}@{BUDGET_MS:.0f}ms": rollout_of(policy, BUDGET_MS) for name, policy in policies.items()
    }
    sim = simulation(Case(SMALL, FEW))
    arrange(sim, Case(SMALL, FEW), np.random.default_rng(0))
    for policy in policies.values():
        Rollout(rollout_of(policy).base, Search(futures=1, width=1)).costs_s(sim, 0)  # compiles
    for case in (Case(nodes, MANY) for nodes in (SMALL, LARGE)):
        for name, ms in took_ms(case, rollouts, TRIALS).items():
            yield Row(f"{name}: {case}, longest", float(ms.max()), "ms", most=OVER_MS)


def measure() -> Iterator[Row]:
    """Yield all rows."""
    policies: dict[str, Policy] = {name: load_policy(ROOT / "checkpoints" / f"{name}.zip") for name in CHECKPOINTS}
    yield from one_pass(policies)
    yield from with_rollouts(policies)


if __name__ == "__main__":
    main(measure)
