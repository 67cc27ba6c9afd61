"""Playing policies on the same scenarios."""

from collections.abc import Callable, Sequence

import numpy as np

from ..agents.protocol import Policy
from ..cluster.event_log import events_of
from ..cluster.outcome import Event, Outcome
from ..cluster.simulation import outcome_of, simulation_of
from ..cluster.state import allocate_log
from ..envs.batch import Problem


def play_all(
    problem: Problem, policies: Sequence[Policy], tell: Callable[[str], None] = lambda name: None
) -> dict[str, Outcome]:
    """Play every scenario under every policy.

    Args:
        problem: What is played.
        policies: Who plays, each on the same faults.
        tell: Called with the name of a policy before it plays.
    """
    rows = problem.scenarios.jobs.size
    sim = simulation_of(problem.cluster, problem.scenarios, problem.process, problem.rules, rows=rows)
    outcomes = {}
    for policy in policies:
        tell(policy.name)
        policy.play(sim, np.arange(rows))
        outcomes[policy.name] = outcome_of(sim)
    return outcomes


def play_recorded(problem: Problem, policy: Policy, scenario: int) -> tuple[Outcome, list[Event]]:
    """Play one scenario and return also every event of it."""
    jobs = int(problem.scenarios.jobs[scenario])
    room = 8 * jobs + 4 * problem.cluster.gpu_node.size
    while True:
        log = allocate_log(room, 8 * room)
        sim = simulation_of(problem.cluster, problem.scenarios, problem.process, problem.rules, log=log)
        policy.play(sim, np.array([scenario]))
        if log.size[1] == 0:
            return outcome_of(sim), events_of(log)
        room *= 4
