"""Lower bounds on makespan and mean JCT of scenarios (docs/evaluation.md, "How far from the best possible")."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...cluster.model.problem import Problem
from .placements import Jobs, needs
from .relaxation import least_makespan_s, least_mean_jct_s

ROUNDING = 1e-9  # of a bound: the simulator sums times in another order


class Bounds(NamedTuple):
    """What no order, no placement and no waiting can be below, each of shape (scenarios,)."""

    makespan_s: NDArray[np.float64]
    mean_jct_s: NDArray[np.float64]


def lower_bounds(problem: Problem, tell: Callable[[int, int], None] = lambda done, count: None) -> Bounds:
    """Return lower bounds of each scenario.

    They hold for any policy, order regime, ageing bound and waiting, and for a scheduler that knows all jobs and
    faults beforehand. Faults, repairs, restarts and lost work only ever add time, so that the bounds are those of a
    cluster where nothing fails.

    Args:
        problem: The scenarios.
        tell: Called with how many different scenarios are done, and how many there are.
    """
    scenarios = problem.scenarios
    count = scenarios.jobs.size
    found: dict[bytes, tuple[float, float]] = {}
    keys = []
    for row in range(count):
        jobs = _jobs(problem, row)
        need = needs(problem.cluster, scenarios.speed[row], problem.rules, jobs)
        key = b"".join(part.tobytes() for part in (jobs.submit_s, need.run_s, need.shares_s))
        keys.append(key)
        if key not in found:  # draws of faults of the same jobs have the same bounds
            tell(row, count)
            found[key] = (
                least_makespan_s(jobs.submit_s, need.run_s, need.shares_s),
                least_mean_jct_s(jobs.submit_s, need.run_s, need.shares_s),
            )
    makespan_s, mean_jct_s = np.array([found[key] for key in keys]).T * (1.0 - ROUNDING)
    return Bounds(makespan_s, mean_jct_s)


def _jobs(problem: Problem, row: int) -> Jobs:
    scenarios, count = problem.scenarios, int(problem.scenarios.jobs[row])
    return Jobs(*(getattr(scenarios, name)[row, :count] for name in Jobs._fields))
