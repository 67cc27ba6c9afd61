"""By how much the base heuristic's choice is favoured: a network's small advantages may be its errors.

A policy is trained by sampling, and then decides greedily, where a small error of a logit decides alone. So the base is
the safe action, and another candidate has to earn it.
"""

from collections.abc import Callable, Sequence

import numpy as np

from ...agents.networks.candidates import CandidateNetwork, CandidatePolicy
from ...cluster.model.objective import objective_of
from ...cluster.model.outcome import metrics
from ...cluster.model.problem import Problem
from ...cluster.model.weighting import Weighting
from ...cluster.simulator.simulation import outcome_of, simulation_of

MARGINS = (0.0, 0.25, 0.5, 1.0, 2.0)


def with_best_margin(policy: CandidatePolicy, cost: Callable[[CandidatePolicy], float]) -> CandidatePolicy:
    """Return a policy with the margin of least cost, the smallest of equals."""
    found = [with_margin(policy, margin) for margin in MARGINS]
    return min(found, key=cost)


def with_margin(policy: CandidatePolicy, margin: float) -> CandidatePolicy:
    """Return a policy that favours the base heuristic by a margin."""
    network = policy.network
    assert isinstance(network, CandidateNetwork)
    return CandidatePolicy(policy.name, policy.schema.model_copy(update={"margin": margin}), network)


def log_cost(
    policy: CandidatePolicy, problems: Sequence[Problem], tail: float, weighting: Weighting | None = None
) -> float:
    """Return the mean over problems of the mean logarithm of what each scenario costs.

    So each scenario weighs alike, whatever its jobs' lengths, as in the comparison of traces.

    Args:
        policy: What runs them.
        problems: To validate on.
        tail: Share of the p99 of JCT in the cost where jobs arrive; the rest is the mean. A batch costs its makespan.
        weighting: What a user asks for in place of both.
    """
    return float(np.mean([_log_cost(policy, problem, tail, weighting) for problem in problems]))


def _log_cost(policy: CandidatePolicy, problem: Problem, tail: float, weighting: Weighting | None) -> float:
    scenarios = problem.scenarios
    sim = simulation_of(problem, rows=scenarios.jobs.size)
    policy.run(sim, np.arange(scenarios.jobs.size))
    gpus = problem.cluster.gpu_node.size
    found = metrics(outcome_of(sim), scenarios.jobs, scenarios.gpus, scenarios.submit_s, gpus, scenarios.work_s)
    if weighting is not None:
        return float(np.log(weighting.cost(found)).mean())
    if objective_of(scenarios.submit_s) == "makespan":
        return float(np.log(found.makespan_s).mean())
    return float(np.log((1.0 - tail) * found.mean_jct_s + tail * found.p99_jct_s).mean())
