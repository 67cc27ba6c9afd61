"""Compiles the kernels that most tests call, before the tests begin: `python -m tests.kernels GROUP ...`.

Else each of the processes in which tests run compiles them for itself. A kernel that is missing here is compiled by the
first test that calls it. Two processes may run at once, one with `heuristics candidates`, the other with `environments
networks`: what they both call is little.
"""

import sys
from collections.abc import Callable, Iterable, Mapping

import numpy as np

from longshore.agents.learned.step_policy import LearnedPolicy
from longshore.agents.networks.candidates import CandidatePolicy
from longshore.agents.protocol import Policy
from longshore.agents.rollouts.rollout import Rollout
from longshore.cluster.model.scenarios import ORDERS
from longshore.cluster.presets.hetero64 import hetero64
from longshore.cluster.simulator.simulation import simulation_of
from longshore.envs.batch import Batch, View
from tests.policies_under_test import POLICIES


def run(policies: Iterable[Policy]) -> None:
    """Let each policy run."""
    problem = hetero64(1, 0, jobs=4)
    for policy in policies:
        sim = simulation_of(problem._replace(rules=problem.rules._replace(waiting=policy.waits)))
        policy.run(sim, np.array([0]))
        sys.stderr.write(f"kernels of {policy.name} are compiled\n")


def step() -> None:
    """Step each kind of environment."""
    problem = hetero64(1, 0, jobs=4)
    problem = problem._replace(rules=problem.rules._replace(waiting=True, order=ORDERS["easy"]))
    for action in ("node", "gpu", "candidate"):
        batch = Batch(problem, View(action, "full", "dt"), 1)
        batch.reset()
        batch.step(batch.masks.argmax(axis=1))
        sys.stderr.write(f"kernels of environments of {action} actions are compiled\n")


NETWORKS = [it for it in POLICIES.values() if isinstance(it, LearnedPolicy) and not isinstance(it, CandidatePolicy)]
CANDIDATES = [it for it in POLICIES.values() if isinstance(it, CandidatePolicy | Rollout)]
GROUPS: Mapping[str, Callable[[], None]] = {
    "heuristics": lambda: run(it for it in POLICIES.values() if it not in (*NETWORKS, *CANDIDATES)),
    "candidates": lambda: run(CANDIDATES),
    "environments": step,
    "networks": lambda: run(NETWORKS),
}

if __name__ == "__main__":
    for group in sys.argv[1:] or sys.exit(f"name some of {', '.join(GROUPS)}"):
        GROUPS[group]()
