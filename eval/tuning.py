"""`patient` at its best for an objective: its factor is tuned on jobs that came before those that are run."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from ..agents.heuristics.heuristics import HEURISTICS, Heuristic, patient_of, tuned_patient
from ..agents.protocol import Policy
from ..cluster.model.problem import Problem
from ..cluster.model.weighting import Weighting
from ..cluster.presets.problems import Regime
from ..cluster.traces.detect import read_trace
from .metrics.metric import result_of
from .run import run_all
from .setting import PAST_PART, EvaluationRequest, keeps_past, setting_of
from .terminal import Tell

DRAWS = 10_000  # added to the seed: the cluster's faults are drawn anew


def tuned_patients(request: EvaluationRequest, regimes: Sequence[Regime], tell: Tell) -> dict[str, Heuristic]:
    """Return `patient` with the factor that does best on the trace's past, by order; empty if nothing can be tuned.

    Nothing is tuned if no objective was asked for, no policy may wait, or there is no past.
    """
    weighting, trace = request.objective, request.trace
    if weighting is None or trace is None or not request.heuristics or not request.regime.waiting:
        return {}
    if not keeps_past(read_trace(trace)):
        return {}
    problem = setting_of(replace(request, part=PAST_PART, seed=request.seed + DRAWS)).problem
    found = {}
    for regime in regimes:
        tell(f"tuning patient under {regime.order}")
        ruled = problem._replace(rules=regime.over(problem.rules))
        found[regime.order] = tuned_patient(partial(_cost, ruled, weighting))
    return found


def _cost(problem: Problem, weighting: Weighting, policy: Heuristic) -> float:
    """Return the mean of the objective under a policy, inf if a run was cut off."""
    outcome = run_all(problem, [policy])[policy.name]
    if (outcome.finished < problem.scenarios.jobs).any():
        return math.inf
    figures = result_of(outcome, problem.scenarios, problem.cluster.gpu_node.size).figures
    return float(weighting.cost(figures).mean())


def is_heuristic(policy: Policy) -> bool:
    """Say whether a policy is one of the heuristics, or `patient` with another factor."""
    return policy.name in HEURISTICS or (isinstance(policy, Heuristic) and policy == patient_of(policy.patience))


def tuned_text(tuned: Mapping[str, Heuristic]) -> str:
    """Return what was tuned, in words; empty if nothing was."""
    if not tuned:
        return ""
    each = ", ".join(f"{policy.name} under {order}" for order, policy in tuned.items())
    return f"{each}, on the first {100 * PAST_PART[1]:.0f} % of the trace"
