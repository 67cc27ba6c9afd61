"""Whether the heuristics do on `hetero64` what independent simulations of the same setting gave."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from longshore.agents.heuristics import HEURISTICS, Heuristic
from longshore.cluster.model.outcome import RunMetrics, metrics
from longshore.cluster.model.problem import Problem
from longshore.cluster.presets.drawn import HOUR_S, hetero64
from longshore.cluster.simulator.simulation import outcome_of, simulation_of

from .harness import Row, main, progress

SEED = 2026
WORKLOADS = 4000


class Reference(NamedTuple):
    """Means over workloads."""

    makespan_h: float
    jct_h: float
    ratio: float  # of the makespan to that of `eft`
    stops: float  # jobs stopped by faults in a workload


REFERENCE = {
    "eft": Reference(44.82, 19.61, 1.0, 4.44),
    "random": Reference(61.32, 27.11, 1.368, 6.95),
    "first-fit": Reference(61.14, 27.18, 1.364, 7.02),
    "spread": Reference(52.26, 23.54, 1.166, 5.44),
    "fastest": Reference(53.80, 23.90, 1.200, 6.13),
    "pack": Reference(45.81, 20.29, 1.022, 4.73),
    "pack-hazard": Reference(48.04, 21.21, 1.072, 4.33),
    "eft-hazard": Reference(44.90, 19.63, 1.002, 4.42),
    "eft-wait": Reference(41.13, 19.65, 0.918, 2.11),
    "patient": Reference(38.25, 17.75, 0.853, 2.88),
}
MAKESPAN, RATIO, STOPS = 0.015, 0.01, 0.05  # allowed relative differences


def run(heuristic: Heuristic, workloads: int, seed: int) -> RunMetrics:
    """Return what a heuristic makes of each workload; it may wait if that is what it is about."""
    cluster, scenarios, process, rules = hetero64(workloads, seed)
    sim = simulation_of(Problem(cluster, scenarios, process, rules._replace(waiting=heuristic.waits)), rows=workloads)
    heuristic.run(sim, np.arange(workloads))
    return metrics(
        outcome_of(sim), scenarios.jobs, scenarios.gpus, scenarios.submit_s, cluster.gpu_node.size, scenarios.work_s
    )


def near(name: str, value: float, unit: str, reference: float, allowed: float) -> Row:
    """Return a row whose bar is a relative distance from a reference."""
    return Row(name, value, unit, least=reference * (1 - allowed), most=reference * (1 + allowed))


def measure() -> Iterator[Row]:
    """Yield makespan, its ratio to that of `eft`, jobs stopped and JCT of each heuristic, means over the workloads."""
    eft_s = float("nan")
    for name, reference in REFERENCE.items():
        progress(name)
        figures = run(HEURISTICS[name], WORKLOADS, SEED)
        makespan_s = float(figures.makespan_s.mean())
        eft_s = makespan_s if name == "eft" else eft_s
        yield near(f"{name}: makespan", makespan_s / HOUR_S, "h", reference.makespan_h, MAKESPAN)
        yield near(f"{name}: makespan over that of eft", makespan_s / eft_s, "", reference.ratio, RATIO)
        yield near(f"{name}: jobs stopped", float(figures.restarts.mean()), "", reference.stops, STOPS)
        yield Row(f"{name}: JCT (reference {reference.jct_h})", float(figures.mean_jct_s.mean()) / HOUR_S, "h")


if __name__ == "__main__":
    main(measure)
