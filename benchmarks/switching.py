"""What switching saves: GPU-hours that jobs of a real trace lose to recorded faults, against restarting.

Windows of 96 jobs of philly_vc_2869ce, which share no job, at a load of 0.85; on examples/switching.yaml:
80 GPUs in nodes of two, of which 5 % are spares. InfiniteHBD's faults are replayed, and each takes a whole node. Each
draw is another piece of their trace, on nodes drawn again. Intervals are by a bootstrap of windows, over all draws. The
same jobs without spares, and on nodes of eight GPUs, are shown for information: there a fault takes most jobs whole.
"""

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from longshore.agents.heuristics import HEURISTICS
from longshore.cluster.faults.recorded import FaultTrace, read_fault_trace
from longshore.cluster.model.workload import Workload
from longshore.cluster.presets.cluster_file import ClusterSetup, read_cluster
from longshore.cluster.presets.problems import LOAD, Regime, capacity_of, cluster_problem, draw_windows, evaluation_key
from longshore.cluster.traces.read import read_trace
from longshore.eval.asides import (
    RESTART,
    SWITCH,
    FaultCosts,
    HandlingComparison,
    compare_handlings,
    handling_comparison,
)

from .harness import ROOT, Row, main, progress

TRACE = ROOT / "../shared/data/traces/philly_vc_2869ce.muri.csv"
FAULTS = ROOT / "../shared/data/faults/fault_trace.json"
CLUSTER = ROOT / "examples/switching.yaml"
SEED = 2026
WINDOWS = 24  # fewer if the trace has room for fewer
DRAWS = 16
DAY_S, HOUR_S = 86400.0, 3600.0
POLICY = "pack"
MOST_LOST = 0.5  # of what restarts lose


def later(trace: FaultTrace, from_s: float) -> FaultTrace:
    """Return a fault trace as it goes on from a moment; outages that had begun before are left out."""
    kept = trace.start_s >= from_s
    return replace(
        trace,
        node=trace.node[kept],
        start_s=trace.start_s[kept] - from_s,
        end_s=trace.end_s[kept] - from_s,
        span_s=trace.span_s - from_s,
    )


def windows(setup: ClusterSetup, trace: Path) -> list[Workload]:
    """Return the windows, at the load of the cluster."""
    gpus = setup.cluster.gpu_node.size
    return draw_windows(
        read_trace(trace), WINDOWS, part=(0.0, 1.0), seed=evaluation_key(SEED), load=LOAD, max_gpus=gpus * 3 // 4,
        capacity=capacity_of(setup.cluster), disjoint=True,
    )  # fmt: skip


def with_large_nodes(folder: Path) -> ClusterSetup:
    """Return the same GPUs in nodes of eight, all else equal."""
    path = folder / "large.yaml"
    path.write_text(CLUSTER.read_text().replace("gpus: 2\n", "gpus: 8\n").replace("10}", "5}").replace("4\n", "2\n"))
    return read_cluster(path)


def compare(setup: ClusterSetup, jobs: list[Workload], faults: FaultTrace, draws: int) -> HandlingComparison:
    """Return restart against switch over all windows and draws of faults."""
    regime, parts = Regime(order="easy"), []
    for draw in range(draws):
        progress(f"draw {draw + 1} of {draws} on {setup.name}")
        piece = later(faults, faults.span_s * 0.9 * draw / draws)
        problem = cluster_problem(setup, jobs, regime, runs=1, seed=evaluation_key(SEED + draw), faults=piece)
        found = compare_handlings(problem, HEURISTICS[POLICY])
        assert found is not None  # all jobs end
        parts.append(found.costs)
    costs = {
        name: FaultCosts(*map(np.concatenate, zip(*(part[name] for part in parts), strict=True)))
        for name in (RESTART, SWITCH)
    }
    return handling_comparison(POLICY, costs, np.tile(np.arange(len(jobs)), draws))


def rows(name: str, found: HandlingComparison, *, most: float | None) -> Iterator[Row]:
    """Yield what is lost with both handlings."""
    for handling, costs in found.costs.items():
        yield Row(f"{name}, {handling}: lost", float(costs.lost_gpu_s.mean()) / HOUR_S, "GPU-h/window")
        yield Row(f"{name}, {handling}: stops", float(costs.stops.mean()), "/window")
    yield Row(f"{name}, switch: rings formed again", float(found.costs[SWITCH].switches.mean()), "/window")
    value, low, high = (float(end[0]) for end in found.lost)
    yield Row(f"{name}: lost with switching over lost with restarts", value, "x")
    yield Row(f"{name}: the same, low end of the interval", low, "x")
    yield Row(f"{name}: the same, high end", high, "x", most=most)
    value, low, high = (float(end[0]) for end in found.jct_percent)
    yield Row(f"{name}: mean JCT with switching, {low:+.2f} to {high:+.2f} %", value, "%")


def measure() -> Iterator[Row]:
    """Yield GPU-hours lost, stops and JCT on nodes of two GPUs and of eight."""
    if not (TRACE.exists() and FAULTS.exists()):
        progress("the trace or the recorded faults are not there: nothing to measure")
        return
    setup, faults = read_cluster(CLUSTER), read_fault_trace(FAULTS)
    jobs = windows(setup, TRACE)
    yield Row("windows", len(jobs), f"of {jobs[0].jobs} jobs")
    yield Row("draws of faults for each", DRAWS, "draws")
    yield from rows("nodes of 2 GPUs", compare(setup, jobs, faults, DRAWS), most=MOST_LOST)
    poolless = replace(setup, rules=setup.rules._replace(spares=0.0))
    yield from rows("nodes of 2 GPUs, no spares", compare(poolless, jobs, faults, DRAWS), most=None)
    with tempfile.TemporaryDirectory() as folder:
        large = with_large_nodes(Path(folder))
        yield from rows("nodes of 8 GPUs", compare(large, jobs, faults, DRAWS), most=None)


if __name__ == "__main__":
    main(measure)
