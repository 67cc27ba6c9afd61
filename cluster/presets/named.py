"""Problems by name, or in one call from a trace and a cluster of one's own."""

import logging
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from ..faults.recorded import read_fault_trace
from ..model.problem import ORDERS, Problem
from ..traces.read import read_trace
from .cluster_file import read_cluster
from .drawn import HETERO64_SITE
from .problems import (
    LOAD,
    Regime,
    capacity_of,
    cluster_problem,
    draw_windows,
    hetero64_problem,
    patent_problem,
    user_key,
    window_problem,
)

STREAM_JOBS, STREAM_LOAD = 128, 0.85

Draw = Callable[[int, int, Regime], Problem]  # of a number of scenarios, a seed and a regime


class NamedProblem(NamedTuple):
    """A problem that has a name.

    Args:
        draw: Draws its scenarios; None where these are windows of a trace, or of a scheduler's past.
        order: Default order regime.
        waiting: Whether policies may wait by default.
    """

    draw: Draw | None
    order: str = "fifo"
    waiting: bool = False


_PATENT4, _PATENT64 = NamedProblem(partial(patent_problem, 4)), NamedProblem(partial(patent_problem, 64))
NAMED = {
    "hetero64": NamedProblem(hetero64_problem),
    "hetero64-stream": NamedProblem(partial(hetero64_problem, jobs=STREAM_JOBS, load=STREAM_LOAD)),
    "traces": NamedProblem(None, order="shortest", waiting=True),
    "history": NamedProblem(None, waiting=True),
    "philly": NamedProblem(None),
    "itp": NamedProblem(None),
    "patent4": _PATENT4,
    "patent64": _PATENT64,
    "patent4-ours": _PATENT4,
    "patent64-ours": _PATENT64,
}


log = logging.getLogger(__name__)

FIRST_PART = (0.0, 0.6)  # as `longshore train` takes; `longshore evaluate` compares on the last 30 %
NAMES = tuple(name for name, named in NAMED.items() if named.draw is not None)


def problem_of(
    trace: str | Path, cluster: str | Path | None = None, *, windows: int = 1024, load: float | None = LOAD,
    part: tuple[float, float] = FIRST_PART, order: str = "fifo", ageing_h: float = math.inf, waiting: bool = False,
    oracle: bool = False, turns: bool = True, faults: str | Path | None = None, max_gpus: int | None = None,
    seed: int = 0,
) -> Problem:  # fmt: skip
    """Return windows of 96 consecutive jobs of a trace on a cluster, each with faults of its own.

    Args:
        trace: File of the jobs, any format of `longshore trace`.
        cluster: Cluster file; clusters of the preset `hetero64` if None.
        windows: How many are drawn, one scenario each; they may overlap.
        load: Share of the cluster's GPU-time that arrivals are scaled to offer; None leaves them as they are recorded.
        part: Share of the trace, in order of time, that they come from.
        order: Order regime.
        ageing_h: How long a waiting job may be overtaken.
        waiting: Whether policies may wait.
        oracle: Whether policies know the true fault rates; else they estimate them.
        turns: Whether users take turns in the queue, where the trace has the users of jobs.
        faults: Recorded faults in place of the cluster file's fault model.
        max_gpus: Jobs that ask for more get this number; three quarters of the cluster if None.
        seed: Of windows and faults.

    Raises:
        InputError: If a file cannot be used, the part has no job, or the windows would take too much memory.
        ValueError: If there is no such order, a number makes no sense, or recorded faults come without a cluster.
    """
    _check_window_options(windows, part, ageing_h, max_gpus)
    regime, workload = (
        _checked_regime(order, ageing_h, waiting=waiting, oracle=oracle, turns=turns),
        read_trace(Path(trace)),
    )
    setup = None if cluster is None else read_cluster(Path(cluster))
    if setup is None and faults is not None:
        raise ValueError("recorded faults need a cluster; give its file")
    gpus = HETERO64_SITE.gpus if setup is None else int(setup.cluster.gpu_node.size)
    largest = max(1, gpus * 3 // 4) if max_gpus is None else max_gpus
    if cut := int((workload.gpus > largest).sum()):
        log.warning(
            "%s: %d of %d jobs ask for more than %d GPUs, and are cut to that", trace, cut, workload.jobs, largest
        )
    if setup is None:
        return window_problem(
            workload, regime, windows=windows, runs=1, part=part, seed=seed, load=load, max_gpus=largest
        )
    found = draw_windows(
        workload, windows, part=part, seed=seed, load=load, max_gpus=largest, capacity=capacity_of(setup.cluster),
        disjoint=False,
    )  # fmt: skip
    recorded = None if faults is None else read_fault_trace(Path(faults))
    return cluster_problem(setup, found, regime, runs=1, seed=seed, faults=recorded)


def preset_problem(
    name: str, scenarios: int = 1024, *, seed: int = 0, order: str = "fifo", waiting: bool = False, oracle: bool = False
) -> Problem:
    """Return scenarios of a preset as `longshore train` draws them, by another key.

    Args:
        name: One of NAMES, such as `hetero64`, `hetero64-stream`, `patent4` or `patent64`.
        scenarios: How many.
        seed: Of the draw, which has no scenario of `longshore evaluate` or of training by the same seed.
        order: Order regime.
        waiting: Whether policies may wait.
        oracle: Whether policies know the true fault rates; else they estimate them.

    Raises:
        InputError: If they would take too much memory.
        ValueError: If there is no such preset or order, or a number is too small.
    """
    regime = _checked_regime(order, math.inf, waiting=waiting, oracle=oracle)
    draw = NAMED[name].draw if name in NAMED else None
    if draw is None:
        raise ValueError(f"{name!r} is none of {', '.join(NAMES)}")
    return draw(scenarios, user_key(seed), regime)


def _checked_regime(order: str, ageing_h: float, *, waiting: bool, oracle: bool, turns: bool = False) -> Regime:
    if order not in ORDERS:
        raise ValueError(f"{order!r} is none of {', '.join(ORDERS)}")
    return Regime(order, ageing_h * 3600.0, waiting, oracle, turns)


def _check_window_options(windows: int, part: tuple[float, float], ageing_h: float, max_gpus: int | None) -> None:
    if not isinstance(windows, int) or windows < 1:
        raise ValueError(f"windows is {windows}, expected a whole number of at least 1")
    if max_gpus is not None and (not isinstance(max_gpus, int) or max_gpus < 1):
        raise ValueError(f"max_gpus is {max_gpus}, expected a whole number of at least 1, or None")
    if not ageing_h >= 0.0:
        raise ValueError(f"ageing_h is {ageing_h}, expected hours of at least 0")
    if not 0.0 <= part[0] < part[1] <= 1.0:
        raise ValueError(f"part is {part}, expected two rising shares from 0 to 1")
