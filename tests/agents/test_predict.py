"""`predict`, as Stable-Baselines3's models have it, is the policy's own choice."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sb3_contrib.common.maskable.evaluation import evaluate_policy
from stable_baselines3.common.evaluation import evaluate_policy as evaluate_without_masks

from longshore.agents.learned.checkpoint import layout_of, policy_of, schema_of
from longshore.agents.learned.network import LearnedPolicy, log_softmax
from longshore.agents.networks.candidates import TEMPERATURE, CandidateNetwork
from longshore.agents.registry import find_policy
from longshore.cluster.model.outcome import Outcome
from longshore.cluster.model.problem import Problem
from longshore.cluster.simulator.simulation import outcome_of, simulation_of
from longshore.envs.batch import AgentView, Batch, ideal_time_s
from longshore.envs.gymnasium_envs import PlacementEnv
from longshore.envs.sb3 import PlacementVecEnv
from tests.agents.untrained import untrained
from tests.envs.random_run import small_problem
from tests.policies_under_test import LEARNED

SHIPPED = Path(__file__).parents[2] / "checkpoints" / "hetero64-wait.zip"
NETWORKS = [*LEARNED, find_policy(str(SHIPPED))]
ROWS = 4


def view_of(policy: LearnedPolicy) -> AgentView:
    return AgentView(policy.schema.action, policy.schema.observation, "dt")


def run_of(policy: LearnedPolicy, problem: Problem) -> Outcome:
    sim = simulation_of(problem, rows=ROWS)
    policy.run(sim, np.arange(ROWS))
    return outcome_of(sim)


@pytest.mark.few(8)
@pytest.mark.parametrize("policy", NETWORKS, ids=lambda policy: policy.name)
@pytest.mark.parametrize(("order", "waiting"), [("fifo", False), ("fifo", True), ("easy-shortest", True)])
def test_episodes_by_predict_are_those_that_the_policy_runs(
    policy: LearnedPolicy, order: str, *, waiting: bool
) -> None:
    problem = small_problem(ROWS, jobs=16, order=order, waiting=waiting, faults=4)
    expected, view = run_of(policy, problem), view_of(policy)
    env = PlacementEnv(problem, action=view.action, observation=view.observation)
    for scenario in range(2):
        observation, info = env.reset(options={"scenario": scenario})
        ended = False
        while not ended:
            action, state = policy.predict(observation, action_masks=info["action_mask"])
            assert (action.shape, state) == ((), None)
            observation, _, ended, _, info = env.step(int(action))
            assert not info["masked_action"]
        assert (outcome_of(env.batch.sim).finish_s[0] == expected.finish_s[scenario]).all()
    batched = PlacementVecEnv(problem, view, ROWS, first=0)
    observations, ends_s = batched.reset(), np.zeros(ROWS)
    while not ends_s.all():
        actions, _ = policy.predict(observations, action_masks=batched.action_masks())
        batched.step_async(actions)
        observations, _, _, infos = batched.step_wait()
        for row, info in enumerate(infos):
            if info and not ends_s[row]:
                ends_s[row] = info["episode"]["makespan_s"]
    np.testing.assert_allclose(ends_s, expected.finish_s.max(axis=1))


@pytest.mark.few(5)
@pytest.mark.parametrize("policy", NETWORKS, ids=lambda policy: policy.name)
@pytest.mark.parametrize("waiting", [False, True])
def test_sb3_and_its_contrib_evaluate_a_policy_with_masks_and_without(policy: LearnedPolicy, *, waiting: bool) -> None:
    problem = small_problem(ROWS, jobs=16, waiting=waiting, faults=4)
    expected = -(run_of(policy, problem).finish_s.max(axis=1) / ideal_time_s(problem)).mean()
    evaluations: list[Any] = [evaluate_policy, evaluate_without_masks]  # the first asks for a MaskablePPO
    for evaluate in evaluations:
        mean, _ = evaluate(
            policy, PlacementVecEnv(problem, view_of(policy), ROWS, first=0), n_eval_episodes=ROWS, warn=False
        )
        assert mean == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("observation", ["full", "patent", "patent-literal"])
def test_what_an_observation_says_of_open_actions_is_what_the_mask_says(observation: str) -> None:
    policy = untrained("set", action="gpu", observation=observation)
    batch = Batch(small_problem(ROWS, jobs=16, faults=4), view_of(policy), ROWS)
    batch.reset()
    rng = np.random.default_rng(0)
    for _ in range(40):
        actions = policy.predict(batch.observations)[0]
        assert (actions == policy.predict(batch.observations, action_masks=batch.masks)[0]).all()
        batch.step(np.array([rng.choice(np.flatnonzero(mask)) for mask in batch.masks]))
        batch.reset_rows(np.flatnonzero(batch.ended))


@pytest.mark.parametrize("algorithm", ["group", "distil"])
def test_actions_that_are_drawn_follow_the_networks_probabilities(algorithm: str) -> None:
    schema = schema_of(
        algorithm=algorithm, network="candidates", action="candidate", observation="full", waiting=True,
        node_gpus=(8,) * 4,
    )  # fmt: skip
    torch.manual_seed(1)
    policy = policy_of("drawn", schema, CandidateNetwork(layout_of(schema)))
    batch = Batch(small_problem(1, waiting=True), view_of(policy), 1)
    batch.reset()
    count = int(batch.masks[0].sum())
    with torch.inference_mode():
        logits = policy.network(torch.from_numpy(batch.observations))[0].numpy()[:, :count]
    probabilities = np.exp(log_softmax(logits / (TEMPERATURE if algorithm == "distil" else 1.0)))[0]
    many = np.repeat(batch.observations, 20_000, axis=0)
    drawn = []
    for _ in range(2):
        torch.manual_seed(7)
        drawn.append(policy.predict(many, deterministic=False, action_masks=np.repeat(batch.masks, 20_000, axis=0))[0])
    assert (drawn[0] == drawn[1]).all()
    assert count > 2
    np.testing.assert_allclose(np.bincount(drawn[0], minlength=count) / 20_000, probabilities, atol=0.02)


def test_what_no_environment_shows_is_refused() -> None:
    policy, batch = untrained("mlp"), Batch(small_problem(1, nodes=8), AgentView(), 1)
    batch.reset()
    observation, mask = batch.observations, batch.masks
    with pytest.raises(ValueError, match=r"observations have shape .* expected 36 numbers and 20 for each of 8 nodes"):
        policy.predict(observation[:, :-20])
    with pytest.raises(ValueError, match=r"action_masks have shape \(1, 7\), expected 1 rows of 8 actions"):
        policy.predict(observation, action_masks=mask[:, :-1])
    with pytest.raises(ValueError, match=r"action_masks have shape \(2, 8\)"):
        policy.predict(observation, action_masks=np.repeat(mask, 2, axis=0))
    with pytest.raises(ValueError, match="observation 0 has no open action"):
        policy.predict(observation, action_masks=np.zeros_like(mask))
    state = (np.zeros(1),)
    assert policy.predict(observation[0], state, np.ones(1), action_masks=mask[0].astype(np.int8))[1] is state
