"""Lower bounds on makespan and mean JCT of scenarios (docs/evaluation.md, "How far from the best possible")."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ...cluster.model.problem import Problem
from .placements import Jobs, needs
from .relaxation import least_makespan_s, least_mean_jct_s

ROUNDING = 1e-9  # of a bound: the simulator sums times in another order
LEAST = {"makespan_s": least_makespan_s, "mean_jct_s": least_mean_jct_s}


def lower_bounds(
    problem: Problem,
    figure: str,
    rows: NDArray[np.intp] | None = None,
    tell: Callable[[int, int], None] = lambda done, count: None,
) -> NDArray[np.float64]:
    """Return what a figure cannot be below, shape (rows,); nan of a figure that has no bound.

    They hold for any policy, order regime, ageing bound and waiting, and for a scheduler that knows all jobs and
    faults beforehand. Faults, repairs, restarts and lost work only ever add time, so that the bounds are those of a
    cluster where nothing fails.

    Args:
        problem: The scenarios.
        figure: Its name; those of LEAST have bounds.
        rows: Scenarios that are asked for, shape (rows,); all if left out.
        tell: Called with how many scenarios are done, and how many there are.
    """
    scenarios = problem.scenarios
    asked = np.arange(scenarios.jobs.size) if rows is None else rows
    if figure not in LEAST:
        return np.full(asked.size, np.nan)
    known: dict[bytes, float] = {}
    found = np.empty(asked.size)
    for place, row in enumerate(asked.tolist()):
        jobs = _jobs(problem, row)
        need = needs(problem.cluster, scenarios.speed[row], problem.rules, jobs)
        key = b"".join(part.tobytes() for part in (jobs.submit_s, *need))
        if key not in known:  # draws of faults of the same jobs have the same bounds
            tell(place, asked.size)
            known[key] = LEAST[figure](jobs.submit_s, need)
        found[place] = known[key]
    return found * (1.0 - ROUNDING)


def _jobs(problem: Problem, row: int) -> Jobs:
    scenarios, count = problem.scenarios, int(problem.scenarios.jobs[row])
    return Jobs(*(getattr(scenarios, name)[row, :count] for name in Jobs._fields))
