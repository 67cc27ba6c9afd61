"""How a policy in training fares against the best heuristic, on scenarios that it never trains on."""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..agents.heuristics.heuristics import own_rivals
from ..agents.protocol import Policy
from ..cluster.model.intervals import ratio_estimates, unit_sums
from ..cluster.model.outcome import metrics
from ..cluster.model.problem import Problem
from ..cluster.model.weighting import Weighting, usual_weighting
from ..cluster.simulator.simulation import outcome_of, simulation_of
from ..cluster.state.state import Simulation


class Score(NamedTuple):
    """A policy against the best heuristic, by the objective."""

    mean_s: float  # of the objective; in seconds if it is a time
    percent: float  # difference of the means in per cent of the heuristic's, below 0 is better
    half_width: float  # half the width of its 95 % interval; inf if there is one workload only

    @property
    def text(self) -> str:
        """Difference and half width in words."""
        if math.isinf(self.half_width):
            return f"{self.percent:+.2f} % (one workload, so no interval)"
        return f"{self.percent:+.2f} % (+- {self.half_width:.2f})"


class Validation:
    """Scenarios to validate on, with every heuristic of the same actions already run.

    If none is asked for, the objective is the makespan if all jobs are there from the start, and else the mean JCT.

    Args:
        problems: What is run. The score is the mean over them.
        weighting: The objective.
    """

    def __init__(self, *problems: Problem, weighting: Weighting | None = None) -> None:
        self._rivalries = [Rivalry(problem, weighting) for problem in problems]
        self.weighting = self._rivalries[0].weighting
        self.best = ", ".join(dict.fromkeys(it.best for it in self._rivalries))
        self.scenarios = sum(problem.scenarios.jobs.size for problem in problems)

    def told(self, score: Score) -> tuple[str, float]:
        """Return the mean of the objective as figures of a run tell it, with its name: times in hours."""
        name = self.weighting.field.removesuffix("_s")
        return (f"{name}_h", score.mean_s / 3600.0) if self.weighting.is_time else (name, score.mean_s)

    def score(self, policy: Policy) -> Score:
        """Run a policy and compare it with the best heuristic of each problem, paired by scenario."""
        found = [it.score(policy) for it in self._rivalries]
        mean_s, percent = (float(np.mean([getattr(it, name) for it in found])) for name in ("mean_s", "percent"))
        # The problems' draws are independent of each other.
        return Score(mean_s, percent, float(np.linalg.norm([it.half_width for it in found])) / len(found))


class Rivalry:
    """The scenarios of one problem, and the heuristic that does best on them.

    Args:
        problem: What is run.
        weighting: The objective; what is usual for the problem if None.
    """

    def __init__(self, problem: Problem, weighting: Weighting | None = None) -> None:
        self.problem = problem
        self._sim = simulation_of(problem, rows=problem.scenarios.jobs.size)
        self.weighting = weighting or usual_weighting(problem.scenarios.submit_s)
        run = {policy.name: self._run(policy) for policy in own_rivals(problem.rules)}
        self.best = min(run, key=lambda name: float(run[name].mean()))
        self._best_s = run[self.best]

    def _run(self, policy: Policy) -> NDArray[np.float64]:
        return cost_of(self._sim, policy, self.problem, self.weighting)

    def score(self, policy: Policy) -> Score:
        """Run a policy and compare it with the best heuristic, paired by scenario."""
        values = self._run(policy)
        # A unit of the interval is a workload: its fault draws are no independent evidence.
        _, workload = np.unique(self.problem.scenarios.work_s, axis=0, return_inverse=True)
        difference, base = unit_sums(np.stack([values - self._best_s, self._best_s]), workload)
        found = ratio_estimates(100.0 * difference[None], base[None], confidence=0.95)
        half_width = (found.high[0] - found.low[0]) / 2.0
        return Score(
            float(values.mean()), float(found.value[0]), math.inf if math.isnan(half_width) else float(half_width)
        )  # fmt: skip


def cost_of(sim: Simulation, policy: Policy, problem: Problem, weighting: Weighting) -> NDArray[np.float64]:
    """Return the objective of each scenario under a policy, shape (scenarios,)."""
    scenarios = problem.scenarios
    policy.run(sim, np.arange(scenarios.jobs.size))
    gpus = problem.cluster.gpu_node.size
    figures = metrics(outcome_of(sim), scenarios.jobs, scenarios.gpus, scenarios.submit_s, gpus, scenarios.work_s)
    return weighting.cost(figures)
