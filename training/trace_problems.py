"""Problems of traces that users bring: windows at several loads, on the preset's cluster or the user's own."""

from itertools import product
from typing import NamedTuple

import numpy as np

from ..cluster.faults.recorded import FaultTrace, read_fault_trace
from ..cluster.files.errors import InputError
from ..cluster.model.problem import Problem
from ..cluster.model.scenarios import joined
from ..cluster.model.workload import Workload
from ..cluster.presets.cluster_file import ClusterSetup, read_cluster
from ..cluster.presets.hetero64 import HETERO64
from ..cluster.presets.hetero64 import Site as Drawn
from ..cluster.presets.problems import (
    RUNS,
    WINDOW_JOBS,
    Regime,
    capacity_of,
    cluster_problem,
    enough_runs,
    window_problem,
    windows_of,
)
from ..cluster.presets.streams import VALIDATION_SEED, Stream, stream, training_key
from ..cluster.traces.detect import read_trace
from ..cluster.workloads.estimates import EstimateKind, with_scenario_estimates
from .asked import MIXED, SIGMA, TRAINED_PART, VALIDATED_PART, Asked, KnownEstimates, Problems

TRAINED_WINDOWS, TRAINED_RUNS = 4096, 2  # in all, overlapping at random; draws of the cluster and its faults for each
VALIDATED_WINDOWS = 16  # of each trace, if it has room for so many that share no job
# Where no cluster file is given, a part of the training is on clusters of other sizes, speeds and fault rates.
OTHERS = (
    Drawn(nodes=4, node_gpus=4, faults=0.0),
    Drawn(nodes=32, speeds=(3.0, 1.7, 1.0)),
    Drawn(nodes=16, node_gpus=4, faults=10.0),
)
OTHER_WINDOWS = 1024  # of each, in all
TRACE_LOAD = 0.85  # offered where policies are compared
LEAST_JOBS = 2 * WINDOW_JOBS  # of a trace, so that its parts have any


class Windows(NamedTuple):
    """Which windows of a trace are taken."""

    part: tuple[float, float]  # of the trace, in order of time
    most: int
    runs: int | None  # draws of faults for each; enough for an interval if None
    seed: int
    disjoint: bool


class Site(NamedTuple):
    """The cluster that windows run on."""

    setup: ClusterSetup | None  # one that is drawn anew for each window if None
    faults: FaultTrace | None
    drawn: Drawn = HETERO64


def trace_problems(asked: Asked) -> Problems:
    """Return windows of the first 60 % of each trace to train on, and of the next 10 % to validate on.

    Raises:
        InputError: If a file cannot be used, or a trace has too few jobs.
    """
    own = _trained(asked, TRAINED_WINDOWS)
    trained = [window_problems(asked, regime, own, asked.loads) for regime in asked.regimes]
    if asked.cluster is None:
        other = _trained(asked, OTHER_WINDOWS)
        trained += [window_problems(asked, regime, other, asked.loads, drawn) for regime, drawn in dealt_out(asked)]
    # Many traces have many windows together: more draws of each would only take longer.
    runs = None if len(asked.traces) == 1 else RUNS
    validated = Windows(VALIDATED_PART, VALIDATED_WINDOWS, runs, VALIDATION_SEED, disjoint=True)
    return Problems(
        tuple(trained), tuple(window_problems(asked, regime, validated, (TRACE_LOAD,)) for regime in asked.regimes)
    )


def _trained(asked: Asked, windows: int) -> Windows:
    each = max(1, windows // len(asked.traces) // len(asked.loads))
    return Windows(TRAINED_PART, each, TRAINED_RUNS, training_key(asked.seed), disjoint=False)


def dealt_out(asked: Asked) -> list[tuple[Regime, Drawn]]:
    """Return which other clusters are trained on under which order regime: each of both occurs."""
    most = max(len(asked.regimes), len(OTHERS))
    return [(asked.regimes[place % len(asked.regimes)], OTHERS[place % len(OTHERS)]) for place in range(most)]


def window_problems(
    asked: Asked, regime: Regime, windows: Windows, loads: tuple[float, ...], drawn: Drawn = HETERO64
) -> Problem:
    """Return windows of every trace at every load, in one problem: on the cluster file's cluster, or on those drawn."""
    site = Site(
        read_cluster(asked.cluster) if asked.cluster else None,
        read_fault_trace(asked.faults) if asked.faults else None,
        drawn,
    )
    parts = []
    for number, (path, load) in enumerate(product(asked.traces, loads)):
        workload = read_trace(path)
        if workload.jobs < LEAST_JOBS:
            short = f"{path} has {workload.jobs} jobs, too few to train on the first and compare on the later"
            raise InputError(short, f"give a trace of at least {LEAST_JOBS}", field="--trace")
        own = windows._replace(seed=windows.seed + number)
        problem = _on(site, workload, regime, own, load)
        parts.append(_estimated(problem, _kind(asked.estimates, number), own.seed))
    return _joined(parts)


def _on(site: Site, workload: Workload, regime: Regime, windows: Windows, load: float) -> Problem:
    if site.setup is None:
        return window_problem(
            workload, regime, windows=windows.most, runs=windows.runs, part=windows.part, seed=windows.seed,
            load=load, disjoint=windows.disjoint, site=site.drawn,
        )  # fmt: skip
    cluster = site.setup.cluster
    found = windows_of(
        workload, windows.most, part=windows.part, seed=windows.seed, load=load, capacity=capacity_of(cluster),
        max_gpus=max(1, cluster.gpu_node.size * 3 // 4), disjoint=windows.disjoint,
    )  # fmt: skip
    runs = windows.runs or enough_runs(len(found))
    return cluster_problem(site.setup, found, regime, runs=runs, seed=windows.seed, faults=site.faults)


def _kind(estimates: KnownEstimates, number: int) -> EstimateKind:
    return MIXED[number % len(MIXED)] if estimates == "mixed" else estimates


def _estimated(problem: Problem, kind: EstimateKind, seed: int) -> Problem:
    rng = stream(seed, Stream.ESTIMATES)
    return problem._replace(scenarios=with_scenario_estimates(problem.scenarios, kind, sigma=SIGMA, rng=rng))


def _joined(parts: list[Problem]) -> Problem:
    """Return problems of one cluster in one, which is cut off as late as the last of them."""
    limit_s = max(it.rules.limit_s for it in parts)
    scenarios, suits = [], dict[bytes, int]()  # classes of needs are numbered anew: each part has its own numbers
    for part in parts:
        number = np.array([suits.setdefault(row.tobytes(), len(suits)) for row in part.cluster.suits], dtype=np.int32)
        scenarios.append(part.scenarios._replace(needs=number[part.scenarios.needs]))
    cluster = parts[0].cluster
    rows = [np.frombuffer(row, dtype=cluster.suits.dtype) for row in suits]
    return parts[0]._replace(
        cluster=cluster._replace(suits=np.stack(rows)), scenarios=joined(scenarios),
        rules=parts[0].rules._replace(limit_s=limit_s),
    )  # fmt: skip
