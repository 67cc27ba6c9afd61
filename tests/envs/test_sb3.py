"""The batched environment under Stable-Baselines3 and sb3-contrib."""

import numpy as np
import pytest
from sb3_contrib import MaskablePPO
from sb3_contrib.common.maskable.evaluation import evaluate_policy
from sb3_contrib.common.maskable.utils import get_action_masks, is_masking_supported
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import DummyVecEnv, VecMonitor, VecNormalize

from longshore.envs.batch import AgentView
from longshore.envs.gymnasium_envs import PlacementEnv
from longshore.envs.sb3 import PlacementVecEnv
from tests.envs.random_run import open_actions, small_problem

pytestmark = pytest.mark.usefixtures("one_thread")


class Episodes(BaseCallback):
    """Collects the episodes that the environment reports beside those of the monitor."""

    def __init__(self) -> None:
        super().__init__()
        self.episodes: list[dict[str, float]] = []

    def _on_step(self) -> bool:
        self.episodes += [info["episode"] for info in self.locals["infos"] if "episode" in info]
        return True


@pytest.mark.parametrize("action", ["node", "gpu"])
def test_masked_ppo_learns_a_few_hundred_steps_behind_a_monitor(action: str) -> None:
    env = VecMonitor(PlacementVecEnv(small_problem(jobs=6, faults=2, waiting=True), AgentView(action=action), 8))
    collected = Episodes()
    model = MaskablePPO("MlpPolicy", env, n_steps=32, batch_size=64, n_epochs=1, gamma=1.0, seed=1, device="cpu")
    model.learn(512, callback=collected)
    assert model.num_timesteps == 512
    assert collected.episodes
    assert all(np.isfinite(parameter.detach().numpy()).all() for parameter in model.policy.parameters())


def test_masked_ppo_learns_on_the_scalar_environment_too() -> None:
    env = PlacementEnv(small_problem(jobs=6))
    model = MaskablePPO("MlpPolicy", env, n_steps=64, batch_size=64, n_epochs=1, gamma=1.0, seed=1, device="cpu")
    model.learn(128)
    mean, _ = evaluate_policy(model, VecMonitor(PlacementVecEnv(small_problem(jobs=6), AgentView(), 2)), 4)
    assert np.less(mean, 0)


def test_summaries_of_episodes_agree_with_a_monitor_that_counts_for_itself() -> None:
    problem = small_problem(jobs=6, faults=2)
    one, two = (PlacementVecEnv(problem, AgentView(reward="potential"), 4, first=0) for _ in range(2))
    monitored, rng, episodes = VecMonitor(two), np.random.default_rng(1), 0
    one.reset()
    monitored.reset()
    for _ in range(60):
        actions = open_actions(one.action_masks(), rng)
        _, _, ended, ours = one.step(actions)
        theirs = monitored.step(actions)[3]
        for row in np.flatnonzero(ended):
            assert ours[row]["episode"]["r"] == pytest.approx(theirs[row]["episode"]["r"], rel=1e-5)
            assert ours[row]["episode"]["l"] == theirs[row]["episode"]["l"]
            episodes += 1
    assert episodes > 4


def test_it_equals_sb3s_own_vector_of_scalar_environments() -> None:
    problem = small_problem(scenarios=1, jobs=6, faults=2, waiting=True)
    ours = PlacementVecEnv(problem, AgentView(), 3)
    theirs = DummyVecEnv([lambda: PlacementEnv(problem)] * 3)
    rng, episodes = np.random.default_rng(2), 0
    assert np.array_equal(ours.reset(), np.asarray(theirs.reset()))
    for _ in range(40):
        masks = get_action_masks(ours)
        assert (masks == get_action_masks(theirs)).all()
        actions = open_actions(masks, rng)
        *got, infos = ours.step(actions)
        *expected, _ = theirs.step(actions)
        assert all(np.array_equal(np.asarray(one), np.asarray(other)) for one, other in zip(got, expected, strict=True))
        for row in np.flatnonzero(np.asarray(got[2])):
            other = theirs.buf_infos[row]
            assert (infos[row]["terminal_observation"] == other["terminal_observation"]).all()
            assert infos[row]["TimeLimit.truncated"] == other["TimeLimit.truncated"]
            assert infos[row]["episode"] == other["metrics"]
            episodes += 1
    assert episodes > 3


def test_an_episode_that_is_cut_off_says_so() -> None:
    problem = small_problem(jobs=6)
    env = PlacementVecEnv(problem._replace(rules=problem.rules._replace(limit_s=3600.0)), AgentView(), 2)
    env.reset()
    rng, truncated = np.random.default_rng(1), []
    for _ in range(30):
        _, _, ended, infos = env.step(open_actions(env.action_masks(), rng))
        truncated += [infos[row]["TimeLimit.truncated"] for row in np.flatnonzero(ended)]
    assert truncated
    assert all(truncated)


def test_a_closed_action_is_refused() -> None:
    env = PlacementVecEnv(small_problem(waiting=True), AgentView(), 2)
    env.reset()
    with pytest.raises(ValueError, match=r"action 4 of row 0 is masked; open: \[0 1 2 3\]"):
        env.step(np.array([4, 4]))


def test_sb3s_calls_are_answered_for_the_requested_rows() -> None:
    env = PlacementVecEnv(small_problem(), AgentView(), 3)
    env.reset()
    assert is_masking_supported(env)
    assert env.get_attr("render_mode", [0, 2]) == [None, None]
    assert not env.has_attr("nothing")
    assert len(env.env_method("action_masks", indices=1)) == 1
    assert env.env_is_wrapped(type(env)) == [False] * 3
    with pytest.raises(AttributeError, match="'fly'"):
        env.env_method("fly")
    assert np.asarray(VecNormalize(env, norm_reward=False).reset()).shape == env.batch.observations.shape
