"""Environments and shipped policies on a problem in which jobs switch: nothing about them is another."""

from pathlib import Path

import numpy as np
import pytest

from longshore.agents.registry import find_policy
from longshore.cluster.model.problem import Problem
from longshore.cluster.presets.drawn import hetero64
from longshore.cluster.simulator.simulation import outcome_of, simulation_of
from longshore.cluster.simulator.state_border import checked_state
from longshore.envs.batch import AgentView, Batch
from tests.envs.random_run import open_actions, small_problem

CHECKPOINTS = Path(__file__).parents[2] / "checkpoints"


def switching(problem: Problem, *, learns: bool = False) -> Problem:
    rules = problem.rules._replace(
        switching=True, detection_s=60.0, preflight_s=5.0, switch_s=30.0, spares=0.1, estimated_hazards=learns
    )
    return problem._replace(rules=rules)


@pytest.mark.parametrize(
    "view", [AgentView("node", "full", "dt"), AgentView("gpu", "patent", "dt"), AgentView("candidate", "full", "dt")]
)
@pytest.mark.parametrize("learns", [False, True])
def test_observations_keep_their_shape_and_every_state_is_sound(view: AgentView, *, learns: bool) -> None:
    plain = small_problem(nodes=6, waiting=True, order="easy", faults=20)
    usual, batch = Batch(plain, view, 3), Batch(switching(plain, learns=learns), view, 3)
    assert batch.observations.shape == usual.observations.shape
    rng = np.random.default_rng(0)
    batch.reset()
    for _ in range(150):
        batch.step(open_actions(batch.masks, rng))
        assert np.isfinite(batch.observations).all()
        assert np.isfinite(batch.rewards).all()
        batch.reset_rows(np.flatnonzero(batch.ended))
        checked_state(batch.sim, batch.sim.state)
    assert batch.sim.state.switches.sum() > 0


@pytest.mark.parametrize("name", ["hetero64", "hetero64-wait", "traces"])
def test_a_shipped_policy_plays_a_problem_in_which_jobs_switch(name: str) -> None:
    cluster, scenarios, process, rules = hetero64(2, 7, jobs=24)
    policy = find_policy(str(CHECKPOINTS / f"{name}.zip"))
    rates = scenarios._replace(source_rate_per_s=scenarios.source_rate_per_s * 4.0)
    problem = Problem(cluster, rates, process, rules._replace(waiting=policy.waits))
    sim = simulation_of(switching(problem), rows=2)
    policy.run(sim, np.arange(2))
    outcome = outcome_of(sim)
    assert outcome.finished.tolist() == [24, 24]
    assert outcome.switches.sum() > 0
