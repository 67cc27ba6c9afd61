"""The chosen order and policy under other ageing bounds."""

import math
from collections.abc import Callable

from ...agents.protocol import Policy
from ...cluster.model.problem import Problem
from ..run import run_all
from .grid import Figures, Grid, figures_of

BOUNDS_S = (6 * 3600.0, 24 * 3600.0, 72 * 3600.0, 7 * 86400.0, math.inf)


def other_bounds(
    grid: Grid, problem: Problem, policy: Policy, tell: Callable[[str, int], None] = lambda what, done: None
) -> dict[float, Figures]:
    """Return the figures of the chosen candidate by the ageing bound in seconds; none where no bound changes anything.

    Bounds under which a run is cut off are left out.

    Args:
        grid: How all candidates did.
        problem: What was run, under the chosen order.
        policy: The chosen policy.
        tell: Called with what is run and how many scenarios are done.
    """
    found = {}
    for ageing_s in sorted({*BOUNDS_S, problem.rules.ageing_s}):
        ruled = problem._replace(rules=problem.rules._replace(ageing_s=ageing_s))
        outcome = run_all(ruled, [policy], tell)[policy.name]
        figures = figures_of(outcome, problem.scenarios, problem.cluster.gpu_node.size)
        if figures.finished.all():
            found[ageing_s] = figures
    costs = [grid.weighting.cost(figures) for figures in found.values()]
    return found if any((cost != costs[0]).any() for cost in costs) else {}
