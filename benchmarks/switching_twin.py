"""Whole runs with faults and switching, through the simulator and through the live scheduler: the same replacements.

The scheduler has its store, its loop, and a connection to each ring. The clock, the jobs and their rings are simulated.
"""

import logging
import math
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import product, zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np

from longshore.agents.heuristics import HEURISTICS
from longshore.agents.registry import find_policy
from longshore.cluster.model.outcome import Event
from longshore.cluster.model.problem import ORDERS, Problem, fault_sources, rules_stopping_at_faults
from longshore.cluster.model.topology import Cluster, grid_cluster
from longshore.cluster.presets.drawn import PresetSite as Preset
from longshore.cluster.presets.drawn import hetero64
from longshore.cluster.simulator.event_log import START, SWITCH, events_of
from longshore.cluster.simulator.simulation import simulation_of
from longshore.cluster.state.state import Log, Simulation, allocate_log
from longshore.cluster.switching import FORMULAS
from longshore.scheduler.mirror.cluster_mirror import ClusterSite
from longshore.scheduler.model.gpu_index import ONE_OFFER, Layout
from longshore.scheduler.placement.placer import Placer
from longshore.scheduler.store.database import Store, open_store
from longshore.scheduler.store.events import events_after
from longshore.scheduler.store.rings import SEAT_EVENT, TAKEN
from longshore.testing.simulated import SimulatedBackend
from longshore.testing.twin import EVERY_EVENT, Twin, job_of

from .harness import Row, main, progress

JOBS, LOAD, FAULTS = 60, 0.6, 60.0  # of one run, and how many more faults GPUs have than the preset's
SEEDS = range(1, 6)
NODES, NODE_GPUS, NODES_PER_RACK = 8, 8, 3
NODE_FAULTS_PER_S, RACK_FAULTS_PER_S, TRANSIENT = 1e-5, 2e-6, 0.2
BOUND = "within an hour"  # in words of a seat that stays empty, as a ring has been given enough GPUs


class Replacement(NamedTuple):
    """A seat that was left, or that a ring which had gone on without it won back."""

    time_s: float
    job: int
    seat: int  # in the order of the ring's GPUs; behind them if it is won back
    left: int  # GPU that failed, -1 if the seat is won back
    came: int  # GPU that came, -1 if none did


class Compared(NamedTuple):
    """What came of one trace, by the simulator and by the scheduler."""

    simulated: list[Replacement]
    scheduled: list[Replacement]
    stored: list[tuple[float, int, int]]  # time, job and GPU of each that was given, by the store
    other_events: int  # of jobs and of GPUs: those of either that the other has not
    bounded: int  # seats that stayed empty as a ring had been given enough GPUs


def uneven_cluster(seed: int) -> Cluster:
    """Return a cluster of three racks and three types of nodes, whose peaks are not in the ratio of their speeds."""
    rng = np.random.default_rng(seed)
    cluster = grid_cluster(NODES, NODE_GPUS, nodes_per_rack=NODES_PER_RACK)
    kinds = rng.permutation(np.arange(NODES) % 3)
    return cluster._replace(
        node_type=kinds.astype(np.int32),
        speed=np.array([1.0, 2.5, 1.7])[kinds],
        peak_flops=np.array([2.0e14, 2.1e14, 1.0e14])[kinds],
        intra_bytes_per_s=rng.uniform(1e10, 2e11, NODES),
        nic_bytes_per_s=rng.uniform(2e9, 2e10, NODES),
        uplink_bytes_per_s=rng.uniform(1e9, 2e10, cluster.uplink_bytes_per_s.size),
    )


def layout_of(cluster: Cluster) -> Layout:
    """Return how the scheduler names the GPUs of such a cluster, of which every node suits every job."""
    names, offers = [f"n{node}" for node in range(NODES)], ONE_OFFER * (1 + int(cluster.node_type.max()))
    return Layout(names, [NODE_GPUS] * NODES, cluster.node_type.tolist(), offers)


def trace(seed: int, formula: int, jobs: int = JOBS, *, transient: bool = False) -> Simulation:
    """Return a simulation of jobs that come over time, and of faults of GPUs, nodes and racks.

    Where some faults are transient, both know the true rates of faults: a scheduler learns from faults that it sees,
    and one that is over at once is seen by the simulator alone.

    Jobs start in the order of their submission: a live scheduler does not know how far the work of a job has come that
    has switched, so regimes that reckon with the ends of jobs may start others.
    """
    cluster = uneven_cluster(seed)
    _, scenarios, process, rules = hetero64(1, seed, jobs=jobs, load=LOAD, site=Preset(faults=FAULTS))
    rates = np.zeros((1, fault_sources(cluster)))
    gpus, nodes = cluster.gpu_node.size, cluster.speed.size
    rates[0, :gpus] = scenarios.source_rate_per_s[0, :gpus]
    rates[0, gpus : gpus + nodes], rates[0, gpus + nodes :] = NODE_FAULTS_PER_S, RACK_FAULTS_PER_S
    scenarios = scenarios._replace(source_rate_per_s=rates, speed=cluster.speed[None].copy())
    rules = rules._replace(
        switching=True, detection_s=12.0, switch_s=30.0, ring=True, replacement=formula, order=ORDERS["fifo"],
        checkpoint_s=600.0, limit_s=math.inf, estimated_hazards=not transient,
    )  # fmt: skip
    process = process._replace(transient_probability=TRANSIENT if transient else 0.0)
    log = allocate_log(5000 * jobs, 50_000 * jobs)
    return simulation_of(Problem(cluster, scenarios, process, rules), log=log)


def replacements_in(log: Log) -> list[Replacement]:
    """Return the replacements of a run, by time, job and seat.

    Seats are filled in the order of the GPUs that failed, and the log names the GPU that came last first.
    """
    found, rings = [], dict[int, list[int]]()
    for at in range(int(log.size[0])):
        kind, job = int(log.kind[at]), int(log.job[at])
        if kind not in (START, SWITCH):
            continue
        ring = log.gpus[log.first_gpu[at] : log.first_gpu[at + 1]].tolist()
        if kind == SWITCH:
            was, time_s = sorted(rings[job]), float(log.time_s[at])
            left, came = [it for it in was if it not in ring], [it for it in reversed(ring) if it not in was]
            for gone, new in zip_longest(left, came, fillvalue=-1):
                seat = was.index(gone) if gone >= 0 else len(was)
                found.append(Replacement(time_s, job, seat, gone, new))
        rings[job] = ring
    return sorted(found)


def compared(seed: int, formula: int, jobs: int = JOBS, *, transient: bool = False) -> Compared:
    """Run one trace through the simulator and through the scheduler."""
    simulated, real = (trace(seed, formula, jobs, transient=transient) for _ in range(2))
    find_policy("pack").run(simulated, np.zeros(1, dtype=np.int64))
    layout = layout_of(real.cluster)
    site = ClusterSite(real.cluster, rules_stopping_at_faults(real.rules), real.process, real.scenarios.hazard_per_s[0])
    with TemporaryDirectory() as folder:
        store = open_store(f"sqlite:///{Path(folder) / 'longshore.db'}")
        twin = Twin(SimulatedBackend(real, layout), site, store, Placer(HEURISTICS["pack"]))
        twin.run()
        stored, bounded = _seats_given(store, layout)
        twin.scheduler.close()
        store.close()
    theirs, ours = Counter(_events(simulated)), Counter(_events(real))
    other = (theirs - ours) + (ours - theirs)
    return Compared(replacements_in(simulated.log), replacements_in(real.log), stored, other.total(), bounded)


def _events(sim: Simulation) -> list[Event]:
    if sim.log.size[1]:
        raise ValueError("the log of the simulation is full; give it more room")
    return events_of(sim.log)


def _seats_given(store: Store, layout: Layout) -> tuple[list[tuple[float, int, int]], int]:
    """Return which GPUs rings got by the store, and how many seats stayed empty by the bound of an hour."""
    with store.read() as tx:
        events = [it for it in events_after(tx, 0, EVERY_EVENT) if it.kind == SEAT_EVENT]
    given = [
        (it.at_s, job_of(it.job_id or ""), layout.number(str(it.data["node"]), int(str(it.data["gpu"]))))
        for it in events
        if it.now == TAKEN and it.data is not None
    ]
    return sorted(given), sum(BOUND in it.cause for it in events)


def equal(simulated: Sequence[Replacement], scheduled: Sequence[Replacement]) -> int:
    """Return how many replacements both have, at the same place of the sequence."""
    return sum(a == b for a, b in zip(simulated, scheduled, strict=False))


def measure() -> Iterator[Row]:
    """Yield how many replacements are equal, over traces and both formulas."""
    logging.getLogger("longshore").setLevel(logging.CRITICAL)  # thousands of faults are as they should be
    totals, kinds = Counter[str](), Counter[str]()
    for (name, formula), transient in product(FORMULAS.items(), (False, True)):
        for seed in SEEDS:
            began_s = time.perf_counter()
            it = compared(seed, formula, transient=transient)
            same = equal(it.simulated, it.scheduled)
            run = f"{name}, {'some' if transient else 'no'} faults transient, seed {seed}"
            progress(f"{run}: {same} of {len(it.simulated)} in {time.perf_counter() - began_s:.0f} s")
            given, stored = (
                Counter((one.time_s, one.job, one.came) for one in it.scheduled if one.came >= 0),
                Counter(it.stored),
            )
            totals["equal"] += same
            totals["other"] += max(len(it.simulated), len(it.scheduled)) - same
            totals["stored"] += ((given - stored) + (stored - given)).total()
            totals["events"] += it.other_events
            totals["bounded"] += it.bounded
            kinds.update("grown" if one.left < 0 else "filled" if one.came >= 0 else "empty" for one in it.simulated)
    yield Row("replacements at the same time, of the same seat, by the same GPU", totals["equal"], "seats", least=1000)
    yield Row("other replacements", totals["other"], "seats", most=0)
    yield Row("of all: the seat of a GPU that failed is filled", kinds["filled"], "seats", least=100)
    yield Row("of all: it stays empty", kinds["empty"], "seats", least=100)
    yield Row("of all: a seat is won back later", kinds["grown"], "seats", least=100)
    yield Row("replacements that differ in the store", totals["stored"], "seats", most=0)
    yield Row("starts, stops, ends, faults and switches of one side alone", totals["events"], "events", most=0)
    yield Row("seats that stay empty by the bound of an hour", totals["bounded"], "seats", most=0)


if __name__ == "__main__":
    main(measure)
