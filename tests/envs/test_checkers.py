"""The checkers of Gymnasium and Stable-Baselines3; warnings are errors."""

from itertools import product

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env as check_with_gymnasium
from stable_baselines3.common.env_checker import check_env as check_with_sb3

import longshore.envs
from longshore.envs.batch import REWARDS
from longshore.envs.gymnasium_envs import PlacementEnv
from tests.envs.random_run import SEEN, small_problem

NAME = "longshore/Placement-v0"
OPTIONS = [(*seen, *rest) for seen, *rest in product(SEEN, REWARDS, ("off", "on"))]


@pytest.mark.few(12)
@pytest.mark.parametrize(("action", "observation", "reward", "waiting"), OPTIONS)
def test_both_checkers_accept_the_environment(action: str, observation: str, reward: str, waiting: str) -> None:
    problem = small_problem(order="easy", faults=2)
    env = gymnasium.make(
        NAME, problem=problem, action=action, observation=observation, reward=reward, waiting=waiting
    ).unwrapped
    check_with_gymnasium(env)
    check_with_sb3(env)


def test_both_checkers_accept_what_comes_without_options() -> None:
    env = gymnasium.make(NAME).unwrapped
    assert isinstance(env, PlacementEnv)
    check_with_gymnasium(env)
    check_with_sb3(env)


def test_a_random_agent_that_knows_no_masks_comes_to_the_end_behind_gymnasiums_own_wrappers() -> None:
    env = gymnasium.make(f"{longshore.envs.__name__}:{NAME}", problem=small_problem(), waiting="on")
    env.reset(seed=1)
    env.action_space.seed(2)
    ended = False
    while not ended:
        _, _, ended, truncated, _ = env.step(env.action_space.sample())
        assert not truncated
