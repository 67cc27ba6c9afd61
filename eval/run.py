"""Playing policies on the same scenarios."""

import time
from collections.abc import Callable, Sequence

import numpy as np

from ..agents.protocol import Policy
from ..cluster.model.outcome import Event, Outcome
from ..cluster.model.problem import Problem
from ..cluster.simulator.event_log import events_of
from ..cluster.simulator.simulation import outcome_of, simulation_of
from ..cluster.state.state import allocate_log

CHUNK = 4096  # scenarios that are run side by side: more are no faster, but take memory and show no progress
FIRST, ENOUGH_S = 16, 0.25  # scenarios in the first chunk of a policy; chunks that take this long are large enough


def run_all(
    problem: Problem,
    policies: Sequence[Policy],
    tell: Callable[[str, int], None] = lambda name, numbers: None,
    *,
    chunk: int = CHUNK,
) -> dict[str, Outcome]:
    """Run every scenario under every policy.

    Args:
        problem: What is numbers.
        policies: Who runs, each on the same faults.
        tell: Called with the name of a policy and how many scenarios it has numbers, before each chunk of them.
        chunk: Scenarios that are run at once at most; outcomes do not depend on it.
    """
    scenarios = problem.scenarios.jobs.size
    rows = min(chunk, scenarios)
    sim = simulation_of(problem, rows=rows)
    outcomes = {}
    for policy in policies:
        parts, first, size = [], 0, min(FIRST, rows)
        while first < scenarios:
            tell(policy.name, first)
            numbers = np.arange(first, min(first + size, scenarios))
            began = time.monotonic()
            policy.run(sim, numbers)
            parts.append(outcome_of(sim, slice(numbers.size)))
            first += size
            if time.monotonic() - began < ENOUGH_S:
                size = min(4 * size, rows)
        outcomes[policy.name] = Outcome(*map(np.concatenate, zip(*parts, strict=True)))
    return outcomes


def run_recorded(problem: Problem, policy: Policy, scenario: int) -> tuple[Outcome, list[Event]]:
    """Run one scenario and return also every event of it."""
    jobs = int(problem.scenarios.jobs[scenario])
    room = 8 * jobs + 4 * problem.cluster.gpu_node.size
    while True:
        log = allocate_log(room, 8 * room)
        sim = simulation_of(problem, log=log)
        policy.run(sim, np.array([scenario]))
        if log.size[1] == 0:
            return outcome_of(sim), events_of(log)
        room *= 4
