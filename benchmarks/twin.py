"""The twin test at length: workloads with faults through the simulator and through the real scheduler.

The scheduler has its store, its loop, and the policy in a process of its own; only clock and jobs are simulated.
"""

import logging
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from longshore.agents.heuristics import HEURISTICS
from longshore.agents.registry import find_policy
from longshore.cluster.model.problem import ORDERS, Problem
from longshore.cluster.presets.drawn import hetero64
from longshore.cluster.simulator.event_log import events_of
from longshore.cluster.simulator.simulation import simulation_of
from longshore.cluster.state.state import Simulation, allocate_log
from longshore.scheduler.mirror.cluster_mirror import ClusterSite
from longshore.scheduler.model.gpu_index import Layout
from longshore.scheduler.placement.placer import Placer
from longshore.scheduler.store.database import open_store
from longshore.testing.simulated import SimulatedBackend
from longshore.testing.twin import Start, Twin, starts_of

from .harness import Row, main, progress

CASES = {"patient": 5000, "checkpoints/hetero64-wait.zip": 5000}  # jobs, by policy
LOAD = 0.85
PATIENCE_S = 600.0


def simulation(jobs: int, seed: int) -> Simulation:
    """Return a simulation of `hetero64` whose jobs arrive over time, with its faults."""
    cluster, scenarios, process, rules = hetero64(1, seed, jobs=jobs, load=LOAD)
    rules = rules._replace(order=ORDERS["easy-shortest"], waiting=True, ageing_s=24 * 3600.0)
    return simulation_of(Problem(cluster, scenarios, process, rules), log=allocate_log(20 * jobs, 200 * jobs))


def simulated(policy: str, jobs: int, seed: int) -> list[Start]:
    """Return all starts of a simulation."""
    sim = simulation(jobs, seed)
    find_policy(policy).run(sim, np.zeros(1, dtype=np.int64))
    return [(it.time_s, it.job, tuple(sorted(it.gpus))) for it in events_of(sim.log) if it.kind == "start"]


def scheduled(policy: str, jobs: int, seed: int) -> tuple[list[Start], int]:
    """Return all starts of the scheduler, and how often its policy gave no valid answer."""
    sim = simulation(jobs, seed)
    cluster = sim.cluster._replace(speed=sim.scenarios.speed[0])
    site = ClusterSite(cluster, sim.rules, sim.process, sim.scenarios.hazard_per_s[0])
    layout = Layout([f"n{node}" for node in range(cluster.speed.size)], np.diff(cluster.first_gpu).tolist())
    placer = Placer(HEURISTICS["pack"], policy, PATIENCE_S)
    with TemporaryDirectory() as folder:
        store = open_store(f"sqlite:///{Path(folder) / 'longshore.db'}")
        twin = Twin(SimulatedBackend(sim, layout), site, store, placer)
        twin.tick()
        placer.wait_until_ready(PATIENCE_S)
        twin.run()
        starts = starts_of(store, layout)
        twin.scheduler.close()
        store.close()
    return starts, sum(placer.misses.values())


def measure() -> Iterator[Row]:
    """Yield how many decisions are equal, for a heuristic and for a trained policy."""
    logging.getLogger("longshore").setLevel(logging.ERROR)  # thousands of faults are as they should be
    equal = decisions = missed = 0
    for policy, jobs in CASES.items():
        began = time.perf_counter()
        theirs = simulated(policy, jobs, seed=7)
        ours, misses = scheduled(policy, jobs, seed=7)
        same = sum(a == b for a, b in zip(ours, theirs, strict=False))
        progress(f"{policy}: {same} of {len(theirs)} in {time.perf_counter() - began:.0f} s")
        equal, decisions, missed = equal + same, decisions + max(len(ours), len(theirs)), missed + misses
    yield Row("starts at the same time, in the same order, on the same GPUs", equal, "starts", least=10_000)
    yield Row("other starts", decisions - equal, "starts", most=0)
    yield Row("decisions that the policy did not make", missed, "decisions", most=0)


if __name__ == "__main__":
    main(measure)
