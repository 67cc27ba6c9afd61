"""How fast the simulator runs whole workloads by the heuristic `pack`, on one core and with faults."""

from collections.abc import Iterator
from functools import partial

import numpy as np

from longshore.agents.heuristics import PACK
from longshore.cluster.model.problem import ORDERS, Problem, stack
from longshore.cluster.presets.drawn import hetero64
from longshore.cluster.simulator.simulation import outcome_of, simulation_of
from longshore.cluster.state.state import Simulation
from longshore.cluster.workloads.generator import PROFILES, Arrivals, generate

from .harness import Row, main, medians, seconds

SEED = 2026
ROUNDS = 7
MIXED_ROUNDS = 3
JOBS = 100_000
LOAD = 0.8
MOST_OVER_FIFO = 5.0
SMALL, LARGE, DEEP = "64 GPUs, 64 jobs", "4,096 GPUs, 4,096 jobs", "4,096 GPUs, 16,384 jobs"
QUEUES = (16_000, 100_000)  # jobs that are submitted at once
ARRIVALS, AT_ONCE, EASY = (f"1,024 GPUs, 100,000 jobs {how}" for how in ("over time", "all at once", "over time, EASY"))


def preset(scenarios: int, nodes: int, jobs: int) -> Simulation:
    """Return a simulation of a number of scenarios of the preset, or of a larger one like it."""
    return simulation_of(hetero64(scenarios, SEED, nodes=nodes, jobs=jobs), rows=scenarios)


def long_run(arrivals: Arrivals, order: str) -> Simulation:
    """Return a simulation of one long workload like the trace Philly's, on 128 nodes with the preset's faults."""
    cluster, drawn, process, rules = hetero64(1, SEED, nodes=128, jobs=1)
    workload = generate(
        PROFILES["philly"],
        JOBS,
        load=LOAD,
        cluster_gpus=cluster.gpu_node.size,
        rng=np.random.default_rng(SEED),
        arrivals=arrivals,
    )
    scenarios = stack(
        cluster,
        [workload],
        fault_seed=drawn.fault_seed,
        source_rate_per_s=drawn.source_rate_per_s,
        speed=drawn.speed,
    )
    return simulation_of(Problem(cluster, scenarios, process, rules._replace(order=ORDERS[order])))


def queue(jobs: int, order: str, *, alike: bool, nodes: int = 128) -> Simulation:
    """Return a simulation of one batch with the preset's mix of jobs and faults on 128 nodes, or another number.

    Where nodes are `alike`, nearly every job that is offered also starts. Else half of the nodes are 2.5 times as fast
    as the others, and a job is offered by what it would take on those: many placements are refused.
    """
    cluster, scenarios, process, rules = hetero64(1, SEED, nodes=nodes, jobs=jobs)
    if alike:
        scenarios = scenarios._replace(speed=np.ones_like(scenarios.speed))
    return simulation_of(Problem(cluster, scenarios, process, rules._replace(order=ORDERS[order])))


def run(sim: Simulation) -> None:
    """Run the first scenario in the first row, the second in the second, and so on."""
    PACK.run(sim, np.arange(sim.state.now_s.size))


def measure() -> Iterator[Row]:
    """Yield job events (submissions, starts, stops, finishes) a second, and the time of long workloads."""
    sims = {
        SMALL: preset(1000, 8, 64),
        LARGE: preset(8, 512, 4096),
        DEEP: preset(2, 512, 16_384),
        ARRIVALS: long_run("profile", "fifo"),
        AT_ONCE: long_run("batch", "fifo"),
        EASY: long_run("profile", "easy"),
    }
    taken_s = medians({name: partial(seconds, partial(run, sim)) for name, sim in sims.items()}, ROUNDS)
    outcomes = {name: outcome_of(sim) for name, sim in sims.items()}
    per_s = {name: float(outcome.job_events.sum()) / taken_s[name] for name, outcome in outcomes.items()}
    yield Row(SMALL, per_s[SMALL], "events/s", least=2_000_000)
    yield Row(LARGE, per_s[LARGE], "events/s", least=300_000)
    yield Row(DEEP, per_s[DEEP], "events/s", least=300_000)
    yield Row(ARRIVALS, taken_s[ARRIVALS], "s", most=3)
    yield Row(AT_ONCE, taken_s[AT_ONCE], "s", most=3)
    yield Row(EASY, taken_s[EASY], "s")
    for name, outcome in outcomes.items():
        yield Row(f"{name}: stops by faults", float(outcome.stops.sum()), "stops", least=1)
    yield from measure_orders()


def measure_orders() -> Iterator[Row]:
    """Yield how long queues take under each order regime, by the time of FIFO, and what a decision takes."""
    for jobs in QUEUES:
        sims = {order: queue(jobs, order, alike=True) for order in ORDERS}
        taken_s = medians({order: partial(seconds, partial(run, sim)) for order, sim in sims.items()}, ROUNDS)
        for order in ORDERS:
            name = f"1,024 GPUs that are alike, {jobs:,} jobs at once, {order}"
            yield Row(name, taken_s[order] / taken_s["fifo"], "x FIFO", most=MOST_OVER_FIFO)
    for gpus, nodes in ((64, 8), (1024, 128)):
        # Without bars: how many placements are refused, each a decision, depends on the policy and the order.
        sims = {order: queue(QUEUES[0], order, alike=False, nodes=nodes) for order in ORDERS}
        taken_s = medians({order: partial(seconds, partial(run, sim)) for order, sim in sims.items()}, MIXED_ROUNDS)
        for order, sim in sims.items():
            decisions = float(outcome_of(sim).decisions.sum())
            name = f"{gpus:,} GPUs of two speeds, {QUEUES[0]:,} jobs at once, {order}"
            yield Row(name, taken_s[order] / taken_s["fifo"], "x FIFO")
            yield Row(f"{name}: {decisions:,.0f} decisions", 1e6 * taken_s[order] / decisions, "us each")


if __name__ == "__main__":
    main(measure)
