"""How fast the live scheduler is: its whole loop with the store, on simulated clusters that are full.

Time passes in steps in which as many jobs end as in one tick of a scheduler that keeps up.
"""

import math
import resource
import statistics
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np

from longshore.agents.heuristics import HEURISTICS
from longshore.cluster.model.problem import ORDERS, Problem, stack
from longshore.cluster.model.workload import workload_of
from longshore.cluster.presets.cluster_file import ClusterSetup, draw_faults, read_cluster
from longshore.cluster.simulator.simulation import simulation_of
from longshore.scheduler.mirror.cluster_mirror import ClusterSite
from longshore.scheduler.model.gpu_index import Layout
from longshore.scheduler.placement.placer import Placer
from longshore.scheduler.service.service import BACKFILL_DEPTH
from longshore.scheduler.store.database import open_store
from longshore.testing.simulated import SimulatedBackend
from longshore.testing.twin import Twin

from .harness import Row, main, progress

CLUSTER = """\
name: measured
node_types:
  slow: {{gpus: 8, peak_flops: 125e12, memory_bytes: 32e9, hazard_per_s: 1.85e-7}}
  fast: {{gpus: 8, peak_flops: 312.5e12, memory_bytes: 32e9, hazard_per_s: 1.85e-7}}
racks:
  - {{count: {racks}, nodes: [{{type: slow, count: 4}}, {{type: fast, count: 4}}]}}
run_time: {{model: simple, node_penalty: 0.25}}
"""
ENDS = 64  # jobs that end between two ticks
POLICY = "checkpoints/hetero64.zip"
PATIENCE_S = 300.0


class Figures(NamedTuple):
    """What was measured."""

    placements_per_s: float
    longest_s: float  # the longest cycle in which jobs started
    idle_s: float  # a cycle in which nothing has changed
    memory_bytes: float  # most that the process had, its simulation included


def setup_of(folder: Path, racks: int) -> ClusterSetup:
    """Return a cluster of a number of racks of 64 GPUs."""
    path = folder / "cluster.yaml"
    path.write_text(CLUSTER.format(racks=racks), encoding="utf-8")
    return read_cluster(path)


def twin_of(setup: ClusterSetup, folder: Path, jobs: int, policy: str | None, seed: int) -> Twin:
    """Return a scheduler with a number of jobs, all submitted at once."""
    rng = np.random.default_rng(seed)
    gpus = rng.choice([1, 1, 1, 2, 4, 8], jobs)
    work_s = rng.lognormal(8.0, 1.0, jobs)
    names = tuple(map(str, range(jobs)))
    workload = workload_of(names, gpus, work_s, np.zeros(jobs))
    rates, process = draw_faults(setup, 0)
    scenarios = stack(setup.cluster, [workload], fault_seed=np.array([seed]), source_rate_per_s=0.0 * rates)
    rules = setup.rules._replace(order=ORDERS["easy"], ageing_s=math.inf, waiting=True, backfill_depth=BACKFILL_DEPTH)
    sim = simulation_of(Problem(setup.cluster, scenarios, process, rules))
    layout = Layout(setup.node_names, np.diff(setup.cluster.first_gpu).tolist())
    site = ClusterSite(setup.cluster, rules, process, setup.hazard_per_s)
    store = open_store(f"sqlite:///{folder / 'longshore.db'}")
    placer = Placer(HEURISTICS["patient"], policy, 1.0)
    return Twin(SimulatedBackend(sim, layout), site, store, placer)


def run(twin: Twin, placements: int) -> Figures:
    """Fill the cluster, then let jobs end and others start."""
    began = time.perf_counter()
    twin.tick()
    twin.parts.placer.wait_until_ready(PATIENCE_S)
    twin.process_next_moment()
    twin.tick()
    progress(f"full after {time.perf_counter() - began:.1f} s")
    state, cycles_s, first = twin.backend.sim.state, [], twin.backend.launches
    while twin.backend.launches < first + placements and not twin.is_over:
        ended = int(state.finished[0])
        while state.finished[0] < ended + ENDS and not twin.is_over:
            twin.backend.process_moment(twin.backend.next_event_time_s())
        cycles_s.append(cycle_s(twin))
    placed = twin.backend.launches - first
    idle_s = statistics.median(cycle_s(twin) for _ in range(10))
    memory_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0
    return Figures(placed / sum(cycles_s), max(cycles_s), idle_s, memory_bytes)


def cycle_s(twin: Twin) -> float:
    """Return how long the scheduler takes over one cycle."""
    began = time.perf_counter()
    twin.scheduler.tick()
    return time.perf_counter() - began


def measured(racks: int, jobs: int, policy: str | None, placements: int) -> Figures:
    """Return the figures of a cluster of a number of racks."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        twin = twin_of(setup_of(folder, racks), folder, jobs, policy, seed=1)
        figures = run(twin, placements)
        twin.scheduler.close()
        twin.parts.store.close()
    return figures


def in_process(racks: int, jobs: int, policy: str | None, placements: int) -> Figures:
    """Return the same, measured in a process of its own: its memory is its own."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(measured, racks, jobs, policy, placements).result()


def measure() -> Iterator[Row]:
    """Yield throughput, the longest and the idle cycle of a middling and a large cluster."""
    small = in_process(16, 11_000, None, 3000)
    yield Row("patient, 1,024 GPUs, 10,000 jobs queued", small.placements_per_s, "placements/s", least=300)
    yield Row("its cycle when nothing has changed", 1e3 * small.idle_s, "ms", most=100)
    one_pass = in_process(16, 11_000, POLICY, 2000)
    yield Row("hetero64, one pass, in its own process, the same", one_pass.placements_per_s, "placements/s", least=150)
    large = in_process(256, 106_000, None, 1000)
    yield Row("patient, 16,384 GPUs, 100,000 jobs queued", large.placements_per_s, "placements/s")
    yield Row("its cycle when nothing has changed", large.idle_s, "s", most=1)
    yield Row("its longest cycle, with 64 ends", large.longest_s, "s", most=1)
    yield Row("its memory", large.memory_bytes / 2**30, "GiB", most=1)


if __name__ == "__main__":
    main(measure)
