"""Lower bounds on makespan and mean JCT of scenarios (docs/evaluation.md, "How far from the best possible")."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ...cluster.model.layouts import reference_s
from ...cluster.model.plans import Iteration
from ...cluster.model.problem import Problem
from ...cluster.model.scenarios import Scenarios
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
    names = [name for name in Jobs._fields if name not in ("fixed_s", "planned_s")]
    columns = {name: getattr(scenarios, name)[row, :count] for name in names}
    planned_s, fixed_s = np.zeros(count), np.zeros(count)
    if scenarios.pipeline.size:
        fixed_s = scenarios.fixed_s[row, :count]
        for job in np.flatnonzero(scenarios.pipeline[row, :count]):
            planned_s[job] = reference_s(_iteration(scenarios, row, int(job)), problem.rules)
    return Jobs(**columns, fixed_s=fixed_s, planned_s=planned_s)


def _iteration(scenarios: Scenarios, row: int, job: int) -> Iteration:
    """Return what an iteration of a job does that has a plan."""
    names = {"gradient_bytes": "parameter_bytes"}
    figures = {name: getattr(scenarios, names.get(name, name))[row, job].item() for name in Iteration._fields[1:]}
    data = int(scenarios.gpus[row, job]) // (figures["pipeline"] * figures["tensor"])
    return Iteration(data, **figures)
