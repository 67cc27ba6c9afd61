"""Compiles the kernels that most tests call, before the tests begin: `python -m tests.kernels policies|environments`.

Else each of the processes in which tests run compiles them for itself. A kernel that is missing here is compiled by the
first test that calls it.
"""

import sys

import numpy as np

from longshore.cluster.model.scenarios import ORDERS
from longshore.cluster.presets.hetero64 import hetero64
from longshore.cluster.simulator.simulation import simulation_of
from longshore.envs.batch import Batch, View
from tests.policies_under_test import POLICIES


def of_policies() -> None:
    """Let each policy run."""
    problem = hetero64(1, 0, jobs=4)
    for policy in POLICIES.values():
        sim = simulation_of(problem._replace(rules=problem.rules._replace(waiting=policy.waits)))
        policy.run(sim, np.array([0]))
        sys.stderr.write(f"kernels of {policy.name} are compiled\n")


def of_environments() -> None:
    """Step each kind of environment."""
    problem = hetero64(1, 0, jobs=4)
    problem = problem._replace(rules=problem.rules._replace(waiting=True, order=ORDERS["easy"]))
    for action in ("node", "gpu", "candidate"):
        batch = Batch(problem, View(action, "full", "dt"), 1)
        batch.reset()
        batch.step(batch.masks.argmax(axis=1))
        sys.stderr.write(f"kernels of environments of {action} actions are compiled\n")


if __name__ == "__main__":
    {"policies": of_policies, "environments": of_environments}[sys.argv[1]]()
