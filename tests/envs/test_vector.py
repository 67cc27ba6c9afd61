"""The batched twin of the environment, against the scalar one."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from longshore.envs.gymnasium_envs import PlacementEnv, PlacementVectorEnv
from tests.envs.random_run import SEEN, open_actions, small_problem

ROWS = 6


def test_make_vec_gives_the_batched_twin() -> None:
    env = gymnasium.make_vec("longshore/Placement-v0", num_envs=1024, vectorization_mode="vector_entry_point")
    assert isinstance(env, PlacementVectorEnv)
    assert env.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    observations, infos = env.reset(seed=0)
    assert observations in env.observation_space
    assert infos["action_mask"].shape == (1024, 8)
    assert env.action_space == gymnasium.spaces.MultiDiscrete(np.full(1024, 8))
    assert type(gymnasium.make_vec("longshore/Placement-v0", num_envs=2)) is PlacementVectorEnv


@pytest.mark.few(9)
@pytest.mark.parametrize(("action", "observation"), SEEN)
@pytest.mark.parametrize("reward", ["dt", "potential", "jct"])
def test_every_row_shows_to_the_bit_what_a_scalar_environment_shows(action: str, observation: str, reward: str) -> None:
    problem = small_problem(scenarios=ROWS * 3 - 1, jobs=3, faults=2, order="easy", waiting=True)
    options: dict[str, Any] = {"action": action, "observation": observation, "reward": reward}
    batched = PlacementVectorEnv(ROWS, problem, **options)
    scalar = [PlacementEnv(problem, **options) for _ in range(ROWS)]
    rng, episodes = np.random.default_rng(1), np.zeros(ROWS, dtype=int)
    seen, infos = batched.reset(options={"scenario": 0})
    expected = [env.reset(options={"scenario": row}) for row, env in enumerate(scalar)]
    for _ in range(150):
        for row, (observed, info) in enumerate(expected):
            assert (seen[row] == observed).all()
            assert (infos["action_mask"][row] == info["action_mask"]).all()
        actions = open_actions(batched.action_masks(), rng)
        seen, rewards, terminated, truncated, infos = batched.step(actions)
        assert not truncated.any()
        for row, env in enumerate(scalar):
            observed, paid, ended, _, info = env.step(actions[row])
            assert (rewards[row], terminated[row]) == (paid, ended)
            if ended:
                episodes[row] += 1
                assert data_equivalence(infos["final_obs"][row], observed, exact=True)
                assert infos["final_info"]["metrics"]["r"][row] == info["metrics"]["r"]
                assert infos["final_info"]["metrics"]["scenario"][row] == info["metrics"]["scenario"]
                scenario = int(row + episodes[row] * ROWS) % problem.scenarios.jobs.size
                observed, info = env.reset(options={"scenario": scenario})
            expected[row] = observed, info
    assert episodes.sum() > ROWS


@pytest.mark.parametrize("waiting", ["off", "on"])
def test_it_answers_what_gymnasiums_own_vector_of_scalar_environments_answers(waiting: str) -> None:
    problem = small_problem(scenarios=1, jobs=6)  # one scenario: the two go through several in another order

    def scalar() -> PlacementEnv:
        return PlacementEnv(problem, waiting=waiting)

    theirs = SyncVectorEnv([scalar] * ROWS, autoreset_mode=AutoresetMode.SAME_STEP)
    ours = PlacementVectorEnv(ROWS, problem, waiting=waiting)
    assert ours.observation_space == theirs.observation_space
    assert ours.action_space == theirs.action_space
    assert alike(ours.reset(seed=0), theirs.reset(seed=0))
    ours.action_space.seed(3)
    for _ in range(60):
        actions = ours.action_space.sample()  # closed ones among them
        assert alike(ours.step(actions), theirs.step(actions))


def alike(ours: Any, theirs: Any) -> bool:
    """Compare what the two vector environments return, where absent keys and rows matter too."""
    if isinstance(ours, dict):
        return ours.keys() == theirs.keys() and all(alike(ours[key], theirs[key]) for key in ours)
    if isinstance(ours, tuple):
        return all(alike(one, other) for one, other in zip(ours, theirs, strict=True))
    if ours.dtype == object:
        return all(
            (one is None and other is None) or alike(one, other) for one, other in zip(ours, theirs, strict=True)
        )
    return bool(ours.dtype == theirs.dtype and np.array_equal(ours, theirs))


def test_numbers_that_are_no_actions_are_refused() -> None:
    env = PlacementVectorEnv(3, small_problem())
    env.reset(seed=0)
    with pytest.raises(ValueError, match="action 4 of row 2 is none of 0 to 3"):
        env.step(np.array([0, 1, 4]))
    with pytest.raises(ValueError, match=r"shape \(2,\), expected \(3,\)"):
        env.step(np.array([0, 1]))


@pytest.mark.parametrize(("render_mode", "kind"), [("ansi", str), ("rgb_array", np.ndarray)])
def test_every_row_has_its_picture(render_mode: str, kind: type) -> None:
    env = PlacementVectorEnv(3, small_problem(), render_mode=render_mode)
    env.reset(seed=0)
    pictures = env.render()
    assert pictures is not None
    assert [type(picture) for picture in pictures] == [kind] * 3
